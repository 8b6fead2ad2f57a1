"""Compares the rendering of gpt-oss conversations with `openai-harmony`.

Needs TIKTOKEN_ENCODINGS_BASE, the folder that vocabulary.py fills.
"""

import json

from openai_harmony import (
    Author,
    Conversation,
    DeveloperContent,
    HarmonyEncodingName,
    Message,
    Role,
    SystemContent,
    ToolDescription,
    load_harmony_encoding,
)

import loquat
from conversations import CONVERSATIONS, WITHOUT_TOOLS, user

TEMPLATE = "llama.cpp:openai-gpt-oss-120b.jinja"
# Loquat's built-in template, for checkpoints without one; it does not support tools.
BUILTIN = "gpt-oss"
TODAY, NOW = "2026-01-02", 1767323045

TYPES = {
    "words": {"type": "array", "items": {"type": "string"}, "description": "Some of them"},
    "counts": {"type": "array", "items": {"type": "integer"}},
    "shares": {"type": "array", "items": {"type": "number"}},
    "flag": {"type": "boolean"},
    "maybe": {"type": ["string", "null"]},
    "perhaps": {"type": "string", "nullable": True},
    "any": {"anyOf": [{"type": "string"}, {"type": "null"}]},
}
TYPED = {
    "type": "function",
    "function": {
        "name": "typed",
        "description": "Takes all kinds.",
        "parameters": {"type": "object", "properties": TYPES, "required": ["words", "any"]},
    },
}
WITH_TYPES = CONVERSATIONS | {"parameters of all kinds": ([user()], [TYPED])}

# Conversations that the template renders differently than harmony, apart from what `Conversion`
# adapts: it keeps only the first of several calls. (It also differs in indentation of nested objects,
# defaults and `oneOf`; none of the conversations has them.)
DIFFER = {"two calls"}


class Conversion:
    """A conversation in harmony's types, following the template where harmony allows several forms."""

    def __init__(self, messages, tools):
        self.messages = [self.message(Role.SYSTEM, self.system_content())]
        instructions = ""
        if messages[0]["role"] == "system":
            instructions, messages = messages[0]["content"], messages[1:]
        if instructions or tools:
            self.messages.append(self.message(Role.DEVELOPER, self.developer(instructions, tools)))
        for message in messages:
            getattr(self, message["role"])(message)

    @staticmethod
    def message(role, content, channel=None):
        message = Message.from_role_and_content(role, content)
        return message.with_channel(channel) if channel else message

    @staticmethod
    def system_content():
        return SystemContent.new().with_conversation_start_date(TODAY)

    @staticmethod
    def developer(instructions, tools):
        content = DeveloperContent.new()
        if instructions:
            # The template ends them with an empty line whether or not tools follow.
            content = content.with_instructions(instructions + ("" if tools else "\n\n"))
        functions = [tool["function"] for tool in tools or []]
        descriptions = [
            # The template writes empty parameters as none.
            ToolDescription.new(
                function["name"],
                function["description"],
                function["parameters"] if function["parameters"]["properties"] else None,
            )
            for function in functions
        ]
        return content.with_function_tools(descriptions) if descriptions else content

    def user(self, message):
        self.messages.append(self.message(Role.USER, message["content"]))

    def assistant(self, message):
        thinking, text = message.get("reasoning_content"), message["content"]
        calls = message.get("tool_calls", [])
        if calls:
            # The template treats text before a call as thinking.
            thinking, text = thinking or text, None
        if thinking:
            self.messages.append(self.message(Role.ASSISTANT, thinking, "analysis"))
        for call in calls:
            self.call(**call["function"])
        if text:
            self.messages.append(self.message(Role.ASSISTANT, text, "final"))

    def call(self, name, arguments):
        content = json.dumps(arguments, ensure_ascii=False)
        message = self.message(Role.ASSISTANT, content, "commentary")
        # The template omits `<|constrain|>`.
        message = message.with_recipient(f"functions.{name}").with_content_type("json")
        self.messages.append(message)

    def tool(self, message):
        author = Author.new(Role.TOOL, f"functions.{message['name']}")
        # The template writes the text as a JSON string.
        content = json.dumps(message["content"], ensure_ascii=False)
        result = Message.from_author_and_content(author, content)
        self.messages.append(result.with_channel("commentary").with_recipient("assistant"))


def judge(verdict, encoding, subject, template, conversations):
    cases = [
        template
        | {
            "messages": [with_thinking(message) for message in messages],
            "tools": tools,
            "generate": True,
            "now": NOW,
        }
        for messages, tools in conversations.values()
    ]
    answers = loquat.run_example("render", cases)
    for (name, (messages, tools)), answer in zip(conversations.items(), answers):
        conversation = Conversation.from_messages(Conversion(messages, tools).messages)
        tokens = encoding.render_conversation_for_completion(conversation, Role.ASSISTANT)
        found, expected = answer.get("text", answer), encoding.decode(tokens)
        case = f"{subject}: {name}"
        if name in DIFFER:
            verdict.expect("renderings known to differ still do", case, found != expected, True)
        else:
            verdict.expect("renderings", case, found, expected)


def with_thinking(message):
    """Renames `reasoning_content` to the template's name for it."""
    names = {"reasoning_content": "thinking"}
    return {names.get(key, key): value for key, value in message.items()}


def main():
    verdict = loquat.Verdict("harmony_rendering")
    encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
    judge(verdict, encoding, BUILTIN, {"builtin": BUILTIN}, WITHOUT_TOOLS)
    if corpus := loquat.corpus():
        judge(verdict, encoding, TEMPLATE, {"template": corpus[TEMPLATE]}, WITH_TYPES)
    verdict.end()


if __name__ == "__main__":
    main()
