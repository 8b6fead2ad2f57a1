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
    """One document a text: its first tokens as context, the rest to be weighed. Gives the
    log-probability that the reference has for each rest, token by token."""
    cases = json.loads(GOLDENS.read_text(encoding="utf-8"))["cases"]
    expected = []
    with path.open("w", encoding="utf-8") as file:
        for case in cases:
            if case["kind"] != "text":
                continue
            tokens, context = opening(case, server)
            rest = case["text"][len(context):]
            file.write(json.dumps({"context": context, "continuation": rest}) + "\n")
            expected.append(case["token_logprobs"][tokens - 1:])
    return expected


def opening(case, server):
    """The fewest of a text's tokens that are whole characters and end with no space, which lm-eval
    would move behind them."""
    for count in range(1, len(case["ids"])):
        text = server.post("/detokenize", {"tokens": case["ids"][:count]})["prompt"]
        if text == text.rstrip() and case["text"].startswith(text):
            return count, text
    raise AssertionError(f"no tokens begin {case['text']!r}")


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
    sums = [sum(logprobs) for logprobs in texts]
    expected = -sum(sums) / len(sums)
    tokens = sum(len(logprobs) for logprobs in texts) / len(texts)
    print(f"log perplexity {math.log(perplexity):.5f}, transformers' {expected:.5f}")
    assert math.log(perplexity) == pytest.approx(expected, abs=TOLERANCE * tokens)
