"""Compares the parsing of Mistral tool calls and thinking with `mistral-common`."""

import json
import re
import tempfile

from mistral_common.experimental.think import _split_content_and_think_chunks
from mistral_common.experimental.tools import _decode_tool_calls, _split_content_and_tool_calls
from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy, SpecialTokens
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

import loquat
from mistral_tokenizers import THINK, tokenizers

# Model output by call notation: a JSON list up to v7, name and arguments in later versions.
LIST_COMPLETIONS = [
    'Hello é 你好 🙂 [1, 2] {"a": 1}',
    '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}]',
    '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "P"}, "id": "abcdefghi"}]',
    '[TOOL_CALLS] [{"name": "now", "arguments": {}}, {"name": "now", "arguments": {}}]',
    '[TOOL_CALLS][{"arguments": {"city": "X"}, "name": "get_weather"}]',
    '[TOOL_CALLS]\n[\n  {\n    "name": "now",\n    "arguments": {}\n  }\n]',
    '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "}]\\"[\\\\ \\u00e9 é 🙂"}}]',
    '[TOOL_CALLS][{"name": "f", "arguments": {"a": [1, -2.5e3, null, {"b": [true, "]"]}]}}]',
]
NAMED_COMPLETIONS = [
    "Hello é 你好 🙂 [ARGS",
    '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris", "days": 3}',
    '[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]get_weather[ARGS]{"city": "X"}',
    'Let me look.[TOOL_CALLS]get_weather[ARGS]{"city": "}]\\"[\\\\ \\u00e9 é 🙂"}',
    '[TOOL_CALLS]f[ARGS]{"a": [1, -2.5e3, null, {"b": [true, "]"]}]}',
]
ID_COMPLETIONS = [
    '[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{"city": "Paris"}',
    "[TOOL_CALLS]now[CALL_ID]abcdefghi[ARGS]{}[TOOL_CALLS]now[CALL_ID]bcdefghij[ARGS]{}",
]
THINK_COMPLETIONS = [
    "[THINK]Hm, é 🙂[/THINK]Hello",
    '[THINK]I need it.[/THINK][TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}',
    "[THINK]cut off",
]
# (tokenizer, Loquat's name of the notation, completions)
NOTATIONS = [
    ("tekken v3", "mistral_list", LIST_COMPLETIONS),
    ("tekken v7", "mistral_list", LIST_COMPLETIONS),
    ("tekken v11", "mistral", NAMED_COMPLETIONS + ID_COMPLETIONS),
    ("tekken v13", "mistral", NAMED_COMPLETIONS + THINK_COMPLETIONS),
]


def judge(verdict, files):
    """Feeds completions token by token and compares with what the package decodes."""
    cases, expected = [], []
    for name, notation, completions in NOTATIONS:
        tokenizer = MistralTokenizer.from_file(files[name]).instruct_tokenizer.tokenizer
        for completion in completions:
            tokens = encode_with_special(tokenizer, completion)
            chunks = loquat.chunks(token_bytes(tokenizer, token) for token in tokens)
            cases.append({"reasoning": "mistral", "calls": notation, "chunks": chunks})
            expected.append(parsed_reply(tokenizer, tokens))
    for case, found, reference in zip(cases, loquat.parse(cases), expected):
        found["calls"] = [[name, json.loads(arguments)] for name, arguments in found["calls"]]
        verdict.expect("completions", "".join(case["chunks"]), found, reference)


def encode_with_special(tokenizer, text):
    """Token IDs of a completion that contains special tokens by name."""
    names = [token.value for token in SpecialTokens if tokenizer.is_special(token.value)]
    parts = re.split(f"({'|'.join(map(re.escape, names))})", text)
    encoded = (
        [tokenizer.get_special_token(part)] if part in names else tokenizer.encode(part, False, False)
        for part in parts
    )
    return [token for tokens in encoded for token in tokens]


def token_bytes(tokenizer, token):
    if tokenizer.is_special(token):
        return tokenizer.id_to_piece(token).encode()
    return tokenizer.id_to_byte_piece(token, SpecialTokenPolicy.RAISE)


def parsed_reply(tokenizer, tokens):
    """What the package parses from a completion, in the form of `loquat.join_pieces`."""
    call_token = tokenizer.get_special_token(SpecialTokens.tool_calls.value)
    content, calls = _split_content_and_tool_calls(tokens, call_token)
    supports_thinking = all(tokenizer.is_special(token.value) for token in THINK)
    parts = [(content, False)]
    if supports_thinking:
        parts = _split_content_and_think_chunks(content, *map(tokenizer.get_special_token, THINK))
    reply = {"reasoning": "", "text": ""}
    for part, is_thinking in parts:
        text = tokenizer.decode(part, special_token_policy=SpecialTokenPolicy.IGNORE)
        reply["reasoning" if is_thinking else "text"] += text
    functions = [call.function for call in _decode_tool_calls(calls, tokenizer)]
    reply["calls"] = [[function.name, json.loads(function.arguments)] for function in functions]
    return reply


def main():
    verdict = loquat.Verdict("mistral_parsing")
    with tempfile.TemporaryDirectory() as folder:
        judge(verdict, tokenizers(folder))
    verdict.end()


if __name__ == "__main__":
    main()
