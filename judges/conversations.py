"""Conversations in the chat-completions format, used by several judges.

Call ids have nine letters and digits, as Mistral's formats require; arguments are objects, as chat
templates expect them.
"""

TEXT = 'Hello, "world" <b>é 你好 🙂</b>\n\tand a \\ backslash'

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Its name, e.g. São Paulo"},
                "unit": {"type": "string", "enum": ["c", "f"]},
                "days": {"type": "integer"},
            },
            "required": ["city"],
        },
    },
}
CLOCK = {
    "type": "function",
    "function": {
        "name": "now",
        "description": "The time here.",
        "parameters": {"type": "object", "properties": {}},
    },
}


def system(text="Be brief."):
    return {"role": "system", "content": text}


def user(text=TEXT):
    return {"role": "user", "content": text}


def assistant(text="Hi!", *calls, thinking=None):
    message = {"role": "assistant", "content": text}
    if thinking is not None:
        message["reasoning_content"] = thinking
    if calls:
        message["tool_calls"] = list(calls)
    return message


def call(id, name="get_weather", **arguments):
    function = {"name": name, "arguments": arguments}
    return {"id": id, "type": "function", "function": function}


def result(id, content, name="get_weather"):
    return {"role": "tool", "tool_call_id": id, "name": name, "content": content}


PARIS = call("call00001", city="Paris", unit="c")
ODD = call("call00002", city='Ab"c\\d\n é你🙂', days=3)
NESTED = call("call00003", city="X", where={"at": [1, 2.5, None, True], "": {}})
CLOCK_CALL = call("call00004", "now")

# name: (messages, tools)
CONVERSATIONS = {
    "one question": ([user()], None),
    "a system message": ([system(), user()], None),
    "a long system message": ([system(f"{TEXT}\n\n{TEXT}"), user("Hi")], None),
    "several turns": ([user(), assistant(), user("  And now?  ")], None),
    "system and turns": (
        [system(), user("1"), assistant("one"), user("2"), assistant("two"), user("3")],
        None,
    ),
    "spaces around words": ([user("  a  "), assistant("b c"), user("\nd\n")], None),
    "two questions in a row": ([user("one"), user("two")], None),
    "tools": ([user()], [WEATHER]),
    "tools and system": ([system(), user()], [WEATHER, CLOCK]),
    "tools, later turns": (
        [system(), user("1"), assistant("one"), user("2")],
        [WEATHER, CLOCK],
    ),
    "a call": ([user("Paris?"), assistant("", PARIS), result("call00001", "21")], [WEATHER]),
    "a call, JSON result": (
        [user("Paris?"), assistant("", PARIS), result("call00001", '{"t": 21, "s": "é"}')],
        [WEATHER],
    ),
    "odd arguments": (
        [user("?"), assistant("", ODD), result("call00002", "not\nJSON \"at\" all")],
        [WEATHER],
    ),
    "nested arguments": (
        [user("?"), assistant("", NESTED), result("call00003", "nothing")],
        [WEATHER],
    ),
    "no arguments": (
        [user("When?"), assistant("", CLOCK_CALL), result("call00004", "noon", "now")],
        [WEATHER, CLOCK],
    ),
    "a call some turns ago": (
        [
            system(),
            user("Paris?"),
            assistant("", PARIS),
            result("call00001", "21"),
            assistant("It is 21."),
            user("Thanks"),
        ],
        [WEATHER],
    ),
    "two calls": (
        [
            user("Both?"),
            assistant("", PARIS, CLOCK_CALL),
            result("call00001", "21"),
            result("call00004", "noon", "now"),
        ],
        [WEATHER, CLOCK],
    ),
    "one call after another": (
        [
            user("Both?"),
            assistant("", PARIS),
            result("call00001", "21"),
            assistant("", CLOCK_CALL),
            result("call00004", "noon", "now"),
        ],
        [WEATHER, CLOCK],
    ),
    "words before a call": (
        [user("?"), assistant("Let me look.", PARIS), result("call00001", "21")],
        [WEATHER],
    ),
    "thinking before an answer": (
        [user("1"), assistant("one", thinking="hm <b>\n"), user("2")],
        None,
    ),
    "thinking before a call": (
        [user("?"), assistant("", PARIS, thinking="I need it."), result("call00001", "21")],
        [WEATHER],
    ),
}
WITHOUT_TOOLS = {
    name: (messages, tools) for name, (messages, tools) in CONVERSATIONS.items() if not tools
}
