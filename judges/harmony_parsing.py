"""Parsing of gpt-oss's replies, compared with `openai-harmony` token by token.

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
    # The recipient after the channel, and in the role's place.
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
    """Cuts every completion after every token. If the reply ends there, Loquat must have parsed the
    same as harmony; if it goes on, it must have emitted the same but for the last token."""
    cuts = [cut for completion in COMPLETIONS for cut in cuts_of(encoding, completion)]
    formats = {"reasoning": "harmony", "calls": "harmony"}
    ended = loquat.parse([formats | {"chunks": chunks} for chunks, _ in cuts])
    ongoing = loquat.parse([formats | {"chunks": chunks, "cut": True} for chunks, _ in cuts])
    for (chunks, theirs), whole, so_far in zip(cuts, ended, ongoing):
        said = "".join(chunks)
        verdict.expect("replies that end there", said, whole, theirs)
        near = theirs if keeps_up(so_far, theirs, len(chunks[-1])) else so_far
        verdict.expect("replies that go on", said, near, theirs)


def cuts_of(encoding, completion):
    """The texts of each number of first tokens, and what harmony parses in them. Cuts inside a header
    or in a call without arguments are left out."""
    tokens = encoding.encode(completion, allowed_special="all")
    chunks = loquat.chunks(bytes(encoding._inner.decode_bytes([token])) for token in tokens)
    parser = StreamableParser(encoding, Role.ASSISTANT)
    for length, token in enumerate(tokens, 1):
        parser.process(token)
        empty_call = parser.current_recipient and not parser.current_content
        if parser.state != StreamState.HEADER and not empty_call:
            yield chunks[:length], reading(parser)


def keeps_up(ours, theirs, behind):
    """Whether ours is a prefix of theirs that lacks at most `behind` characters."""

    def texts(whole):
        return [whole["reasoning"], whole["text"], *(part for call in whole["calls"] for part in call)]

    ours, theirs = texts(ours), texts(theirs)
    begins = len(ours) == len(theirs) and all(map(str.startswith, theirs, ours))
    return begins and sum(map(len, theirs)) - sum(map(len, ours)) <= behind


def reading(parser):
    """What a harmony parser has parsed so far, in the form of `loquat.reading`."""
    whole = {"reasoning": "", "text": "", "calls": []}
    messages = [(m.channel, m.recipient, m.content[0].text) for m in parser.messages]
    if parser.state == StreamState.CONTENT:
        messages.append((parser.current_channel, parser.current_recipient, parser.current_content))
    for channel, recipient, text in messages:
        if recipient:
            whole["calls"].append([recipient.removeprefix("functions."), text])
        else:
            whole["reasoning" if channel == "analysis" else "text"] += text
    return whole


def main():
    verdict = loquat.Verdict("harmony_parsing")
    judge(verdict, load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS))
    verdict.end()


if __name__ == "__main__":
    main()
