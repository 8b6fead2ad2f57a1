"""Compares the parsing of gpt-oss replies with `openai-harmony`, token by token.

Needs TIKTOKEN_ENCODINGS_BASE, the folder that vocabulary.py fills.
"""

from openai_harmony import (
    HarmonyEncodingName,
    Role,
    StreamableParser,
    StreamState,
    load_harmony_encoding,
)

import loquat

# Model output after `<|start|>assistant`.
COMPLETIONS = [
    "<|channel|>final<|message|>Hello é 你好 🙂\n\n<b> a < b <|return|>",
    "<|channel|>analysis<|message|>Hm.\nLet me see.<|end|><|start|>assistant"
    "<|channel|>final<|message|>Hi<|return|>",
    "<|channel|>analysis<|message|>one<|end|><|start|>assistant"
    "<|channel|>analysis<|message|>two<|end|><|start|>assistant"
    "<|channel|>final<|message|>three<|return|>",
    # The recipient after the channel, and after the role.
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
    '{"city": "S\u00e3o \\"P\\"", "days": [1, {"a": null}]}<|call|>',
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=functions.get_weather"
    '<|channel|>commentary <|constrain|>json<|message|>{"city": "Paris"}<|call|>',
    " to=functions.get_weather<|channel|>commentary <|constrain|>json<|message|>"
    '{"city": "Paris"}<|call|>',
    # The content's type spelled differently, or missing.
    "<|channel|>commentary to=functions.now json<|message|>{}<|call|>",
    "<|channel|>commentary to=functions.now<|message|>{}<|call|>",
    # A preamble before a call, and several calls.
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    "<|channel|>commentary<|message|>I will look.<|end|><|start|>assistant"
    "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}<|call|>",
    "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}<|end|>"
    "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
    '{"city": "X"}<|call|>',
    # Calls while thinking, arguments of another type, arguments that are not JSON.
    '<|channel|>analysis to=functions.f code<|message|>{"a": 1}<|call|>',
    '<|channel|>analysis to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>',
    '<|channel|>commentary to=functions.f code<|message|>{"a": 1}<|call|>',
    '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": }<|call|>',
    # Odd channels, empty and repeated ones, space inside.
    "<|message|>Hello<|end|>",
    "<|channel|>other<|message|>Hello<|end|>",
    "<|channel|>analysis<|message|><|end|><|start|>assistant"
    "<|channel|>final<|message|>one<|end|><|start|>assistant"
    "<|channel|>final<|message|>two<|return|>",
    "<|channel|>analysis<|message|>\n think \n<|end|><|start|>assistant"
    "<|channel|>final<|message|>  spaced \n\n<|return|>",
]


def judge(verdict, encoding):
    """Cuts every completion after every token. If the reply ends there, Loquat must parse the same as
    harmony; if it continues, Loquat must have emitted the same except for the last token."""
    all_cuts = [cut for completion in COMPLETIONS for cut in cuts(encoding, completion)]
    formats = {"reasoning": "harmony", "calls": "harmony"}
    ended = loquat.parse([formats | {"chunks": chunks} for chunks, _ in all_cuts])
    ongoing = loquat.parse([formats | {"chunks": chunks, "cut": True} for chunks, _ in all_cuts])
    for (chunks, expected), final, partial in zip(all_cuts, ended, ongoing):
        text = "".join(chunks)
        verdict.expect("complete replies", text, final, expected)
        found = expected if keeps_up(partial, expected, len(chunks[-1])) else partial
        verdict.expect("partial replies", text, found, expected)


def cuts(encoding, completion):
    """The first chunks of the completion, for every length, and what harmony parses from them. Skips
    cuts inside a header or in a call without arguments."""
    tokens = encoding.encode(completion, allowed_special="all")
    chunks = loquat.chunks(bytes(encoding._inner.decode_bytes([token])) for token in tokens)
    parser = StreamableParser(encoding, Role.ASSISTANT)
    for length, token in enumerate(tokens, 1):
        parser.process(token)
        empty_call = parser.current_recipient and not parser.current_content
        if parser.state != StreamState.HEADER and not empty_call:
            yield chunks[:length], parsed_reply(parser)


def keeps_up(found, expected, max_behind):
    """Whether `found` is a prefix of `expected` that lacks at most `max_behind` characters."""

    def texts(reply):
        return [reply["reasoning"], reply["text"], *(part for call in reply["calls"] for part in call)]

    found, expected = texts(found), texts(expected)
    is_prefix = len(found) == len(expected) and all(map(str.startswith, expected, found))
    return is_prefix and sum(map(len, expected)) - sum(map(len, found)) <= max_behind


def parsed_reply(parser):
    """What the harmony parser has parsed so far, in the form of `loquat.join_pieces`."""
    reply = {"reasoning": "", "text": "", "calls": []}
    messages = [(m.channel, m.recipient, m.content[0].text) for m in parser.messages]
    if parser.state == StreamState.CONTENT:
        messages.append((parser.current_channel, parser.current_recipient, parser.current_content))
    for channel, recipient, text in messages:
        if recipient:
            reply["calls"].append([recipient.removeprefix("functions."), text])
        else:
            reply["reasoning" if channel == "analysis" else "text"] += text
    return reply


def main():
    verdict = loquat.Verdict("harmony_parsing")
    judge(verdict, load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS))
    verdict.end()


if __name__ == "__main__":
    main()
