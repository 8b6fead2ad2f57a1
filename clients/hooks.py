"""Makes most requests of schemathesis name a served model, so that they pass the first checks, and
limits the number of tokens, so that they are fast."""

import os

import schemathesis

MODEL = os.environ["LOQUAT_MODEL"]
# Fields that determine a request's cost, and the maximum value of each.
MAX_VALUES = {
    "max_tokens": 8,
    "max_completion_tokens": 8,
    "max_output_tokens": 8,
    "n_predict": 8,
    "num_predict": 8,
    "n": 2,
    "best_of": 2,
}
# The value of token limits that means as many as fit.
NO_LIMIT = -1


def limit_cost(fields):
    for field, max_value in MAX_VALUES.items():
        value = fields.get(field)
        if isinstance(value, int) and not isinstance(value, bool):
            fields[field] = max_value if value == NO_LIMIT else min(value, max_value)


@schemathesis.hook
def map_body(context, body):
    if not isinstance(body, dict):
        return body
    if isinstance(body.get("model"), str) and len(body["model"]) % 8:
        body["model"] = MODEL
    limit_cost(body)
    if isinstance(body.get("options"), dict):
        limit_cost(body["options"])
    return body
