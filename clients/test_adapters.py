"""Adapters through the openai package. Each answer must be the one that `loquat generate` gives."""

import json
import subprocess

import openai
import pytest
from serving import ROOT, Server, binary

GOLDENS = ROOT / "crates/testkit/goldens-lora"
BASE = GOLDENS / "base/llama"
ADAPTERS = {"poet": GOLDENS / "llama__qv", "sql": GOLDENS / "llama__dora"}
PROMPT = "sing"
MAX_TOKENS = 12


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    """A server with a tiny model and two adapters, of which one is loaded at once."""
    config = tmp_path_factory.mktemp("adapters") / "loquat.toml"
    adapters = ", ".join(f'{name} = "{path}"' for name, path in ADAPTERS.items())
    config.write_text(
        f"""
        [[models]]
        name = "tiny"
        source = "{BASE}"
        adapters = {{ {adapters} }}
        max_adapters = 1
        """,
        encoding="utf-8",
    )
    with Server(config=config, model="tiny") as running:
        yield running


def generated(*adapter):
    options = ["-n", str(MAX_TOKENS), "-t", "0", "--output", "json", *adapter]
    command = [binary(), "generate", str(BASE), PROMPT, *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)["text"]


def test_models_choose_adapters(adapted):
    client = openai.OpenAI(base_url=f"{adapted.url}/v1", api_key="none", max_retries=0)
    expected = {"tiny": generated()}
    for name, path in ADAPTERS.items():
        expected[name] = expected[f"tiny:{name}"] = generated("--adapter", str(path))
    assert len(set(expected.values())) == 1 + len(ADAPTERS)
    for _ in range(2):
        for model, text in expected.items():
            answer = client.completions.create(
                model=model, prompt=PROMPT, max_tokens=MAX_TOKENS, temperature=0
            )
            assert answer.choices[0].text == text, model
    listed = {model.id: model.parent for model in client.models.list()}
    assert listed == {"tiny": None, **dict.fromkeys(ADAPTERS, "tiny")}
    with pytest.raises(openai.NotFoundError) as refused:
        client.completions.create(model="tiny:nobody", prompt=PROMPT)
    assert refused.value.code == "adapter_not_found"
    adapted.wait_until_idle()
