"""Rendering of Mistral's conversations, compared with `mistral-common`.

The package contains a generator for its templates as well as the reference tokenizers, so each
version's template, rendered by Loquat, must give the text that the tokenizer gives.
"""

import copy
import json
import re
import tempfile

from mistral_common.exceptions import MistralCommonException
from mistral_common.integrations.chat_templates.chat_templates import (
    convert_tokenizer_to_chat_template,
)
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy, SpecialTokens
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from mistral_common.tokens.tokenizers.tekken import is_tekkenizer

import loquat
from conversations import CONVERSATIONS, WITHOUT_TOOLS, system
from mistral_tokenizers import tokenizers

# The generated v2 and v3 templates write a result as a string; the tokenizer first parses it as
# JSON.
GENERATED_DIFFER = {version: {"a call, JSON result"} for version in ("v2", "v3")}

# Loquat's own templates, for checkpoints without one. They do not support tools, and do not join two
# questions in a row as the tokenizer does.
BUILTIN = {"mistral-v3": "sentencepiece v3", "mistral-v7": "tekken v7"}

PLAIN_RESULTS = {
    "odd arguments",
    "nested arguments",
    "no arguments",
    "two calls",
    "one call after another",
}
# Real templates, the tokenizer they belong to, and the conversations they render differently.
# All refuse two questions in a row.
CORPUS = {
    # A result that is not JSON is written without its quotes.
    "llama.cpp:mistralai-Mistral-Nemo-Instruct-2407.jinja": (
        "tekken v3",
        PLAIN_RESULTS | {"two questions in a row"},
    ),
    "vllm:tool_chat_template_mistral.jinja": (
        "sentencepiece v3",
        PLAIN_RESULTS | {"two questions in a row"},
    ),
    # Words beside a call are left out.
    "llama.cpp:Mistral-Small-3.2-24B-Instruct-2506.jinja": (
        "tekken v11",
        {"two questions in a row", "words before a call"},
    ),
    # Thinking is read from parts of the content, not from a field of its own.
    "llama.cpp:mistralai-Ministral-3-14B-Reasoning-2512.jinja": (
        "tekken v13",
        {"two questions in a row", "thinking before an answer", "thinking before a call"},
    ),
}


def reference(tokenizer, messages, tools):
    """The conversation as the tokenizer writes it; `None` if its version cannot."""
    messages = copy.deepcopy(messages)
    for call in (call for message in messages for call in message.get("tool_calls", [])):
        call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    request = ChatCompletionRequest.from_openai(messages, tools)
    try:
        tokenized = tokenizer.encode_chat_completion(request)
    except MistralCommonException:
        return None
    if is_tekkenizer(tokenizer.instruct_tokenizer.tokenizer):
        return tokenizer.decode(tokenized.tokens, special_token_policy=SpecialTokenPolicy.KEEP)
    return sentencepiece_text(tokenized.text)


def sentencepiece_text(pieces):
    """Pieces with their spellings of spaces and of rare characters' bytes replaced."""

    def spelled_out(match):
        return bytes.fromhex(re.sub("<0x|>", "", match[0])).decode()

    return re.sub("(<0x[0-9A-F]{2}>)+", spelled_out, pieces).replace("\u2581", " ")


def judge(verdict, files):
    """The package's own templates, Loquat's, and real ones if the corpus is present."""
    cases = [*generated_cases(files), *builtin_cases(files), *corpus_cases(files)]
    answers = loquat.ask("render", [case for _, case, _, _ in cases])
    for (what, _, expected, differs), answer in zip(cases, answers):
        ours = answer.get("text", answer)
        if differs:
            verdict.expect("renderings known to differ still do", what, ours != expected, True)
        else:
            verdict.expect("renderings", what, ours, expected)


def generated_cases(files):
    for name, path in files.items():
        differ = GENERATED_DIFFER.get(name.split()[1], set())
        template = {"template": convert_tokenizer_to_chat_template(path)}
        yield from cases_of(f"{name}, its own template", path, template, differ, CONVERSATIONS)


def builtin_cases(files):
    for name, tokenizer in BUILTIN.items():
        differ = {"two questions in a row"}
        yield from cases_of(name, files[tokenizer], {"builtin": name}, differ, WITHOUT_TOOLS)


def corpus_cases(files):
    corpus = loquat.corpus()
    for name, (tokenizer, differ) in CORPUS.items() if corpus else ():
        conversations = CONVERSATIONS
        if SpecialTokens.begin_system.value in corpus[name]:
            conversations = with_system_messages(conversations)
        template = {"template": corpus[name]}
        yield from cases_of(name, files[tokenizer], template, differ, conversations)


def with_system_messages(conversations):
    """With a system message each: the template would otherwise insert its own."""
    return {
        name: (messages if messages[0]["role"] == "system" else [system(), *messages], tools)
        for name, (messages, tools) in conversations.items()
    }


def cases_of(subject, path, template, differ, conversations):
    """(what, case, expected, whether it is known to differ) for what the tokenizer can write."""
    tokenizer = MistralTokenizer.from_file(path)
    for name, (messages, tools) in conversations.items():
        expected = reference(tokenizer, messages, tools)
        if expected is not None:
            case = template | {"messages": messages, "tools": tools, "generate": True}
            case |= {"bos": "<s>", "eos": "</s>"}
            yield f"{subject}: {name}", case, expected, name in differ


def main():
    verdict = loquat.Verdict("mistral_rendering")
    with tempfile.TemporaryDirectory() as folder:
        judge(verdict, tokenizers(folder))
    verdict.end()


if __name__ == "__main__":
    main()
