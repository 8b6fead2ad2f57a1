"""Keeps schemathesis' requests fast: most of them name a served model and request few tokens, so that
they pass the first checks."""

import os

import schemathesis

MODEL = os.environ["LOQUAT_MODEL"]
# Fields that determine a request's cost, and the largest value of each.
WORK = {"max_tokens": 8, "max_completion_tokens": 8, "max_output_tokens": 8, "n": 2, "best_of": 2}


@schemathesis.hook
def map_body(context, body):
    if not isinstance(body, dict):
        return body
    if isinstance(body.get("model"), str) and len(body["model"]) % 8:
        body["model"] = MODEL
    for field, most in WORK.items():
        if isinstance(body.get(field), int) and not isinstance(body[field], bool):
            body[field] = min(body[field], most)
    return body
