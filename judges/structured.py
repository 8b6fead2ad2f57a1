"""Validates answers that are constrained by a schema with `jsonschema`.

SmolLM2 answers random schemas through the engine. Every finished answer must be valid; unfinished
answers are only counted.
"""

import json
import os
import sys
import time

from jsonschema import Draft202012Validator

import loquat
import schemas

# The first 120 of the same list, unless `cargo xtask test --full` runs all.
COUNT = 500 if os.environ.get("LOQUAT_FULL") == "1" else 120
# A run takes a minute or two; one that takes this long hangs.
SECONDS = 600
MIN_FINISHED = COUNT // 2


def problem(schema, answer):
    """Why a finished answer is not valid, or `None`."""
    try:
        value = json.loads(answer)
    except ValueError as error:
        return f"not JSON: {error}"
    checker = Draft202012Validator.FORMAT_CHECKER
    error = next(Draft202012Validator(schema, format_checker=checker).iter_errors(value), None)
    return error and f"{error.validator} at {error.json_path}: {error.message}"


def main():
    documents = schemas.generate(COUNT)
    for schema in documents:
        Draft202012Validator.check_schema(schema)
    cases = [{"schema": schema} for schema in documents]
    loquat.build("structured")
    start = time.monotonic()
    answers = loquat.run_example("structured", cases, SECONDS)
    seconds = time.monotonic() - start

    finished = invalid = refused = 0
    for schema, answer in zip(documents, answers):
        match answer:
            case {"refused": why}:
                refused += 1
                print(f"  REFUSED {json.dumps(schema)}\n    {why}")
            case {"finished": True, "text": text}:
                finished += 1
                if why := problem(schema, text):
                    invalid += 1
                    print(f"  INVALID {json.dumps(schema)}\n    {text!r}\n    {why}")
    unfinished = COUNT - finished - refused
    print(
        f"  {finished:>5} finished, {unfinished} at the token limit, {refused} refused, "
        f"{invalid} invalid; {seconds:.0f} s"
    )
    if invalid or refused or finished < MIN_FINISHED:
        sys.exit(f"structured: at least {MIN_FINISHED} must finish, all valid, none refused")


if __name__ == "__main__":
    main()
