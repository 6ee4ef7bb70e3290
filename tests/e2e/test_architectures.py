"""Every architecture and quantization of the golden files answers through the real program, with the same text whatever the
kernels, threads, chunks and block size."""

import pytest
from rig import ROOT, tally

FILES = sorted((ROOT / "tests/golden/arch").glob("*.gguf"))


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_answers(file):
    base = ("run", file, "the quick brown fox jumps over the lazy dog", "--raw", "--max-tokens", "12", "--max-model-len", "128")
    wanted = tally(*base)
    assert wanted.returncode == 0, wanted.stderr
    other = tally(*base, "--isa", "scalar", "--threads", "1", "--step-tokens", "7", "--block-tokens", "16")
    assert other.returncode == 0 and other.stdout == wanted.stdout


def test_all_families_are_here():
    assert len(FILES) >= 58
