"""lm-eval's local-completions, unmodified: its log-likelihoods and answers are those that generation tells, token by token."""

import json
import os
import subprocess

import pytest

from rig import DEADLINE_S, LONG_RUN, ROOT, SMOL

PROGRAM = ROOT / ".venv-lmeval/bin/lm_eval"
TASKS = ROOT / "tests/e2e/lm_eval"


def lines_of(name):
    return [json.loads(line) for line in (TASKS / name).read_text().splitlines()]


class Ours:
    """The same figures without echo: each token is forced by a bias, and its log-probability is that of the raw logits."""

    def __init__(self, server):
        self.server = server

    def ids(self, text):
        return self.server.post("/tokenize", {"prompt": text}).json["tokens"]

    def next_logprob(self, ids, token):
        choice = self.server.complete(ids, max_tokens=1, temperature=0, logprobs=1, logit_bias={str(token): 100})["choices"][0]
        logprobs = choice["logprobs"]
        return logprobs["token_logprobs"][0], logprobs["token_logprobs"][0] == max(logprobs["top_logprobs"][0].values())

    def loglikelihood(self, context, continuation):
        whole = self.ids(context + continuation)
        begin = len(self.ids(context))
        assert begin < len(whole)
        told = [self.next_logprob(whole[:i], whole[i]) for i in range(begin, len(whole))]
        return sum(logprob for logprob, _ in told), all(greedy for _, greedy in told)


if LONG_RUN:

    @pytest.fixture(scope="module")
    def server(start_shared):
        return start_shared(SMOL, "--kv-pool", "64MiB")

    @pytest.fixture(scope="module", params=["one by one", "together"])
    def results(request, server, tmp_path_factory):
        """What lm-eval found: the results of each task, and its samples in order."""
        folder = tmp_path_factory.mktemp("lm_eval")
        batch = 4 if request.param == "together" else 1
        arguments = f"model={server.model},base_url={server.url}/v1/completions,max_retries=1,num_concurrent={batch}"
        kept = {k: v for k, v in os.environ.items() if k in ("PATH", "LANG", "TMPDIR")}
        done = subprocess.run(
            [PROGRAM, "run", "--model", "local-completions", "--model_args", arguments, "--include_path", TASKS, "--tasks", "tally_facts,tally_lines",
             "--batch_size", str(batch), "--log_samples", "--output_path", folder / "out"],
            cwd=TASKS, capture_output=True, text=True, timeout=5 * DEADLINE_S,
            env=kept | {"HOME": str(folder), "HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:1", "PYTHONDONTWRITEBYTECODE": "1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        (summary,) = (folder / "out").rglob("results_*.json")
        samples = {}
        for path in (folder / "out").rglob("samples_*.jsonl"):
            found = [json.loads(line) for line in path.read_text().splitlines()]
            samples["tally_facts" if "tally_facts" in path.name else "tally_lines"] = sorted(found, key=lambda s: s["doc_id"])
        server.at_rest()
        return json.loads(summary.read_text())["results"], samples

    def test_multiple_choice(server, results):
        scores, samples = results
        ours, right, right_by_byte = Ours(server), 0, 0
        items = lines_of("facts.jsonl")
        assert len(samples["tally_facts"]) == len(items)
        for item, sample in zip(items, samples["tally_facts"]):
            told = [ours.loglikelihood(item["question"], f" {choice}") for choice in item["choices"]]
            theirs = [(float(r[0]), str(r[1]) == "True") for r in sample["filtered_resps"]]
            for (logprob, greedy), (their_logprob, their_greedy) in zip(told, theirs, strict=True):
                assert logprob == pytest.approx(their_logprob, abs=1e-9) and greedy == their_greedy, (item, told, theirs)
            by_length = [logprob / len(choice) for (logprob, _), choice in zip(told, item["choices"])]
            right += max(range(len(told)), key=lambda i: told[i][0]) == item["label"]
            right_by_byte += max(range(len(told)), key=by_length.__getitem__) == item["label"]
        assert right > len(items) / 2, "the model knows some of it"
        assert scores["tally_facts"]["acc,none"] == pytest.approx(right / len(items))
        assert scores["tally_facts"]["acc_norm,none"] == pytest.approx(right_by_byte / len(items))

    def test_generation(server, results):
        scores, samples = results
        items = lines_of("lines.jsonl")
        answers = [
            server.complete(item["start"], max_tokens=16, temperature=0, stop=["\n", "."])["choices"][0]["text"] for item in items
        ]
        assert [sample["filtered_resps"][0] for sample in samples["tally_lines"]] == answers
        exact = sum(answer == item["end"] for answer, item in zip(answers, items))
        assert scores["tally_lines"]["exact_match,none"] == pytest.approx(exact / len(items))
