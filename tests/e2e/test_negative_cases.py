"""docs/negative-cases.md: every case of the contract is there, and what it names exists."""

import re

from rig import ROOT

CASES = {"A": 28, "W": 23, "R": 12, "Q": 18, "X": 8, "I": 12}  # the last of each group


def test_every_case_names_tests_that_exist():
    rows = re.findall(r"^\| ([AWRQXI]\d+) [^|]*\| (.*) \|$", (ROOT / "docs/negative-cases.md").read_text(), re.M)
    assert [case for case, _ in rows] == [f"{group}{i}" for group, last in CASES.items() for i in range(1, last + 1)]
    units = {f"{suite}.{name}" for file in (ROOT / "src").rglob("*_test.cc")
             for suite, name in re.findall(r"^TEST(?:_F|_P)?\((\w+), (\w+)\)", file.read_text(), re.M)}  # fmt: skip
    units |= {f"{suite}.{name}" for file in (ROOT / "src").rglob("*_test.cc")
              for suite, name in re.findall(r"^RC_GTEST_PROP\((\w+), (\w+)", file.read_text(), re.M)}  # fmt: skip
    served = {f"{file.stem}::{name}" for file in (ROOT / "tests/e2e").glob("test_*.py") for name in re.findall(r"def (test_\w+)\(", file.read_text())}
    scripts = {f"sched/{file.stem}" for file in (ROOT / "tests/golden/sched").glob("*.txt")}
    for case, tests in rows:
        named = re.findall(r"`([^`]+)`", tests)
        assert named or re.match(r"open: |no route ", tests), case
        for name in named:
            assert name in units | served | scripts, f"{case}: {name}"
