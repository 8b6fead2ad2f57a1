"""Images through real clients. Each answer must be the one that `loquat run` gives for the file."""

import base64
import functools
import json
import os
import shutil
import subprocess
from pathlib import Path

import anthropic
import litellm
import ollama
import openai
import pytest
from serving import ROOT, Server, binary

GOLDENS = ROOT / "crates/testkit/goldens-vision"
MODEL = "tiny-vision"
QUESTION = "What is this?"
# Of one size, so that their prompts have the same tokens.
IMAGES = ["img1_90x61.png", "frame0_90x61.png"]
MAX_TOKENS = 16
# Golden checkpoints have no chat template. This writes images as Qwen's templates do.
TEMPLATE = """\
{%- for message in messages -%}
{%- if message.content is string -%}{{ message.content }}{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>
{%- elif part.type == 'video' -%}<|vision_start|><|video_pad|><|vision_end|>
{%- else -%}{{ part.text }}{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- endfor -%}"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """The folder of a tiny model that reads images."""
    folder = tmp_path_factory.mktemp("vision") / MODEL
    shutil.copytree(GOLDENS / "qwen3_vl", folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def vision(checkpoint):
    """A server with that model, and with a text-only one."""
    config = checkpoint.with_name("loquat.toml")
    text_only = ROOT / "crates/testkit/goldens/llama"
    config.write_text(
        f"""
        [[models]]
        name = "{MODEL}"
        source = "{checkpoint}"
        preload = true

        [[models]]
        name = "text-only"
        source = "{text_only}"
        template = "chatml"
        """,
        encoding="utf-8",
    )
    with Server(config=config, model=MODEL) as running:
        yield running


@pytest.fixture(scope="module")
def expected(checkpoint):
    """The answers of the command line, by image."""

    def answer(name):
        options = ["-n", str(MAX_TOKENS), "-t", "0", "--output", "json"]
        image = ["--image", str(GOLDENS / "images" / name), QUESTION]
        command = [binary(), "run", str(checkpoint), *options, *image]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        return json.loads(done.stdout)["text"]

    answers = {name: answer(name) for name in IMAGES}
    assert len(set(answers.values())) == len(IMAGES)
    return answers


@functools.cache
def data(name):
    return base64.b64encode((GOLDENS / "images" / name).read_bytes()).decode()


def openai_parts(name):
    url = f"data:image/png;base64,{data(name)}"
    return [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": QUESTION},
    ]


def openai_client(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def ask_openai_chat(server, name):
    reply = openai_client(server).chat.completions.create(
        model=server.model,
        messages=[{"role": "user", "content": openai_parts(name)}],
        max_tokens=MAX_TOKENS,
        temperature=0,
    )
    return reply.choices[0].message.content


def ask_openai_responses(server, name):
    content = [
        {"type": "input_image", "image_url": f"data:image/png;base64,{data(name)}", "detail": "auto"},
        {"type": "input_text", "text": QUESTION},
    ]
    reply = openai_client(server).responses.create(
        model=server.model,
        input=[{"role": "user", "content": content}],
        max_output_tokens=MAX_TOKENS,
        temperature=0,
    )
    return reply.output_text


def ask_anthropic(server, name):
    client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    source = {"type": "base64", "media_type": "image/png", "data": data(name)}
    content = [{"type": "image", "source": source}, {"type": "text", "text": QUESTION}]
    reply = client.messages.create(
        model=server.model,
        messages=[{"role": "user", "content": content}],
        max_tokens=MAX_TOKENS,
        extra_body={"temperature": 0},
    )
    return "".join(block.text for block in reply.content)


def ask_ollama_chat(server, name):
    # The client encodes the file itself.
    message = {"role": "user", "content": QUESTION, "images": [str(GOLDENS / "images" / name)]}
    options = {"temperature": 0, "num_predict": MAX_TOKENS}
    reply = ollama.Client(host=server.url).chat(server.model, messages=[message], options=options)
    return reply.message.content


def ask_ollama_generate(server, name):
    options = {"temperature": 0, "num_predict": MAX_TOKENS}
    client = ollama.Client(host=server.url)
    return client.generate(server.model, QUESTION, images=[data(name)], options=options).response


def ask_litellm(provider):
    def ask(server, name):
        reply = litellm.completion(
            model=f"{provider}/{server.model}",
            api_base=f"{server.url}/v1" if provider == "openai" else server.url,
            api_key="none",
            messages=[{"role": "user", "content": openai_parts(name)}],
            max_tokens=MAX_TOKENS,
            temperature=0,
        )
        return reply.choices[0].message.content

    return ask


def ask_llama_cpp(server, name):
    """As llama.cpp's own clients do, without a template."""
    prompt = {"prompt_string": f"<__media__>{QUESTION}", "multimodal_data": [data(name)]}
    body = {"model": server.model, "prompt": prompt, "n_predict": MAX_TOKENS, "temperature": 0}
    return server.post("/completion", body)["content"]


CLIENTS = {
    "openai-chat": ask_openai_chat,
    "openai-responses": ask_openai_responses,
    "anthropic": ask_anthropic,
    "ollama-chat": ask_ollama_chat,
    "ollama-generate": ask_ollama_generate,
    "llama.cpp": ask_llama_cpp,
    "litellm-openai": ask_litellm("openai"),
    "litellm-anthropic": ask_litellm("anthropic"),
    "litellm-ollama": ask_litellm("ollama_chat"),
}


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("client", CLIENTS)
def test_answer_is_that_of_the_command_line(vision, expected, client, name):
    # litellm strips white space.
    assert CLIENTS[client](vision, name).strip() == expected[name].strip()


def test_image_for_a_text_only_model_names_the_field(vision):
    with pytest.raises(openai.BadRequestError) as raised:
        openai_client(vision).chat.completions.create(
            model="text-only",
            messages=[{"role": "user", "content": openai_parts(IMAGES[0])}],
        )
    assert raised.value.param == "messages[0].content[0].image_url"


def test_listings_say_what_models_read(vision):
    models = {model.id: model for model in openai_client(vision).models.list()}
    assert "image" in models[MODEL].input_modalities
    client = ollama.Client(host=vision.url)
    assert "vision" in client.show(MODEL).capabilities
    assert "vision" not in client.show("text-only").capabilities


@pytest.mark.parametrize("folder, file", [("node", "images.test.mjs"), ("page", "images.test.mjs")])
def test_javascript(vision, expected, folder, file):
    """The openai package for JavaScript, and the page in a browser."""
    environment = {
        **os.environ,
        "LOQUAT_URL": vision.url,
        "LOQUAT_MODEL": MODEL,
        "LOQUAT_IMAGES": str(GOLDENS / "images"),
        "LOQUAT_ANSWERS": json.dumps(expected),
    }
    here = Path(__file__).resolve().parent / folder
    subprocess.run(["node", "--test", file], cwd=here, env=environment, check=True)
