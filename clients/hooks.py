"""Makes most requests of schemathesis name a served model, so that they pass the first checks, and
limits the number of tokens, so that they are fast."""

import os

import schemathesis

MODEL = os.environ["LOQUAT_MODEL"]
# Fields that determine a request's cost, and the maximum value of each.
MAX_VALUES = {"max_tokens": 8, "max_completion_tokens": 8, "max_output_tokens": 8, "n": 2, "best_of": 2}


@schemathesis.hook
def map_body(context, body):
    if not isinstance(body, dict):
        return body
    if isinstance(body.get("model"), str) and len(body["model"]) % 8:
        body["model"] = MODEL
    for field, max_value in MAX_VALUES.items():
        if isinstance(body.get(field), int) and not isinstance(body[field], bool):
            body[field] = min(body[field], max_value)
    return body
