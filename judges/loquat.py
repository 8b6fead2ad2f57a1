"""Helpers for all judges: runs Loquat's example programs, which read and write JSON lines."""

import codecs
import functools
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEMPLATES = ROOT.parent / "shared" / "templates" / "corpus.json"


def run_example(example, cases, seconds=60):
    """Runs one process of the example with all cases and returns one answer per case."""
    program = build(example)
    lines = "".join(json.dumps(case) + "\n" for case in cases)
    try:
        done = subprocess.run(
            program, cwd=ROOT, input=lines, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        sys.exit(f"{example}: no answer after {seconds} s")
    if done.returncode:
        sys.exit(f"{example}: failed ({done.returncode}):\n{done.stderr}")
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    if len(answers) != len(cases):
        sys.exit(f"{example}: {len(cases)} cases, {len(answers)} answers")
    return answers


def binary():
    """The path of `loquat`."""
    return build("loquat", "--bin")


@functools.cache
def build(name, kind="--example"):
    """The path of the program: in the folder LOQUAT_PROGRAMS, or built now."""
    if folder := os.environ.get("LOQUAT_PROGRAMS"):
        return Path(folder) / ("examples" if kind == "--example" else "") / name
    cargo = [os.environ.get("CARGO", "cargo"), "build", "--quiet", "--workspace"]
    cargo += [kind, name, "--message-format", "json-render-diagnostics"]
    done = subprocess.run(cargo, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    artifacts = [json.loads(line) for line in done.stdout.splitlines()]
    (path,) = (
        artifact["executable"]
        for artifact in artifacts
        if artifact.get("executable") and artifact["target"]["name"] == name
    )
    return path


def corpus():
    """The real templates by name; if they are missing, prints a message and returns none."""
    if not TEMPLATES.is_file():
        print("  skipped: the corpus of real templates (../shared/templates) is missing")
        return {}
    entries = json.loads(TEMPLATES.read_text(encoding="utf-8")).values()
    return {name: entry["template"] for entry in entries for name in entry["names"]}


def parse(cases):
    """The replies that Loquat parses from the `chunks` of each case."""
    return [join_pieces(pieces) for pieces in run_example("parse", cases)]


def join_pieces(pieces):
    """Joins the pieces of one parsed reply."""
    reply = {"reasoning": "", "text": "", "calls": []}
    for piece in pieces:
        match piece:
            case {"reasoning": text}:
                reply["reasoning"] += text
            case {"text": text}:
                reply["text"] += text
            case {"call": name}:
                reply["calls"].append([name, ""])
            case {"arguments": text, "index": index}:
                reply["calls"][index][1] += text
    return reply


def chunks(tokens):
    """The text that each token adds, given the tokens' bytes: only complete characters."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return [decoder.decode(token) for token in tokens]


def around_difference(*values, before=40, after=160):
    """The `repr` of each value, starting shortly before the first difference."""
    texts = [repr(value) for value in values]
    start = max(0, len(os.path.commonprefix(texts)) - before)
    return [text[start : start + before + after] for text in texts]


class Verdict:
    """Counts agreements, prints disagreements, and sets the exit status."""

    MAX_PRINTED = 12

    def __init__(self, judge):
        self.judge = judge
        self.disagreements = 0
        self.agreed = {}

    def expect(self, subject, case, found, expected):
        """Counts the result under `subject`; `case` names the input."""
        if found == expected:
            self.agreed[subject] = self.agreed.get(subject, 0) + 1
            return
        self.disagreements += 1
        if self.disagreements <= self.MAX_PRINTED:
            found, expected = around_difference(found, expected)
            print(f"  DISAGREE {subject}: {case}\n    found    {found}\n    expected {expected}")

    def end(self):
        for subject, count in self.agreed.items():
            print(f"  {count:>5} agree: {subject}")
        if not self.agreed:
            sys.exit(f"{self.judge}: no case was compared")
        if self.disagreements:
            sys.exit(f"{self.judge}: {self.disagreements} disagreements")
