"""lm-eval through `/v1/completions`: the perplexity that transformers' log-probabilities imply."""

import json
import math
import os

import pytest
from serving import ROOT, Server

GOLDENS = ROOT / "crates/testkit/goldens-real/smollm2-135m.json"
TASKS = ROOT / "clients/lm_eval_tasks"
# Per token, what the reference path is held to wherever it is judged; texts are a few hundred
# tokens at most, and errors of either sign.
TOLERANCE = 2e-3

# It asks the tokenizer and the task's data of nobody but us.
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


@pytest.fixture
def exact():
    """The model computed as exactly as the goldens are."""
    with Server("--precision", "reference") as running:
        yield running


def write_texts(path, server):
    """One document a text: its first token as context, the rest to be weighed."""
    cases = json.loads(GOLDENS.read_text(encoding="utf-8"))["cases"]
    texts = [case for case in cases if case["kind"] == "text"]
    with path.open("w", encoding="utf-8") as file:
        for case in texts:
            first = server.post("/detokenize", {"tokens": case["ids"][:1]})["prompt"]
            assert case["text"].startswith(first)
            rest = case["text"][len(first):]
            file.write(json.dumps({"context": first, "continuation": rest}) + "\n")
    return texts


def test_perplexity(exact, tmp_path):
    import lm_eval
    from lm_eval.tasks import TaskManager

    data = tmp_path / "texts.jsonl"
    texts = write_texts(data, exact)
    task = tmp_path / "river.yaml"
    files = f"dataset_kwargs:\n  data_files:\n    test: {data}\n"
    task.write_text((TASKS / "river.yaml").read_text(encoding="utf-8") + files, encoding="utf-8")
    found = lm_eval.simple_evaluate(
        model="local-completions",
        model_args={
            "model": exact.model,
            "base_url": f"{exact.url}/v1/completions",
            "num_concurrent": 4,
        },
        tasks=["river"],
        task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
        bootstrap_iters=0,
    )
    perplexity = found["results"]["river"]["perplexity,none"]
    sums = [sum(case["token_logprobs"]) for case in texts]
    expected = math.exp(-sum(sums) / len(sums))
    tokens = sum(len(case["token_logprobs"]) for case in texts) / len(texts)
    assert math.log(perplexity) == pytest.approx(math.log(expected), abs=TOLERANCE * tokens)
