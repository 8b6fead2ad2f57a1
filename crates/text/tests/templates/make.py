"""Renders the templates and snippets of this folder with transformers, and writes what came out.

    pip install transformers jinja2
    python make.py

Writes `expected.json` (every template over every conversation) and the results in `snippets.json`.
"""

import copy
import datetime
import json
import pathlib
import warnings

import transformers.utils.chat_template_utils as templates

warnings.simplefilter("ignore")
HERE = pathlib.Path(__file__).parent


class Frozen(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 1, 2, 3, 4, 5)


templates.datetime = Frozen


def render(template, conversation):
    conversation = copy.deepcopy(conversation)
    try:
        rendered, _ = templates.render_jinja_template(
            [conversation["messages"]],
            tools=conversation.get("tools"),
            chat_template=template,
            add_generation_prompt=conversation.get("add_generation_prompt", True),
            bos_token="<s>",
            eos_token="</s>",
            **conversation.get("variables", {}),
        )
        return {"ok": rendered[0]}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def write(name, value):
    text = json.dumps(value, ensure_ascii=False, indent=0)
    (HERE / name).write_text(text + "\n", encoding="utf-8")


conversations = json.loads((HERE / "conversations.json").read_text(encoding="utf-8"))
expected = {}
for path in sorted(HERE.glob("*.jinja")):
    template = path.read_bytes().decode("utf-8")
    for name, conversation in conversations.items():
        expected[f"{path.stem}/{name}"] = render(template, conversation)
write("expected.json", expected)

snippets = json.loads((HERE / "snippets.json").read_text(encoding="utf-8"))
subject = conversations["system"]
write("snippets.json", [{"template": s["template"], **render(s["template"], subject)} for s in snippets])
