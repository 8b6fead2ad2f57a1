"""lm-eval through `/v1/completions`: its perplexity must match transformers' log-probabilities."""

import json
import math
import os

import pytest
from serving import ROOT, Server

GOLDENS = ROOT / "crates/testkit/goldens-real/smollm2-135m.json"
TASKS = ROOT / "clients/lm_eval_tasks"
# Per token, the tolerance of the reference path in all its tests; texts have at most a few hundred
# tokens, and errors have either sign.
TOLERANCE = 2e-3

# Prevents downloads of a tokenizer or of task data.
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


@pytest.fixture
def exact():
    """A server that computes the model as exactly as the goldens."""
    with Server("--precision", "reference") as running:
        yield running


def write_texts(path, server):
    """Writes one document per text: its first tokens as context, the rest to be scored. Returns the
    reference log-probabilities of the scored tokens of each."""
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
    """The fewest first tokens of a text that are whole characters and do not end with a space, which
    lm-eval would move to the continuation."""
    for count in range(1, len(case["ids"])):
        text = server.post("/detokenize", {"tokens": case["ids"][:count]})["prompt"]
        if text == text.rstrip() and case["text"].startswith(text):
            return count, text
    raise AssertionError(f"no first tokens of {case['text']!r} can be a context")


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
