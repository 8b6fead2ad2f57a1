"""Runs Loquat's example programs: JSON lines in, JSON lines out."""

import codecs
import functools
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEMPLATES = ROOT.parent / "shared" / "templates" / "corpus.json"


def ask(example, cases, seconds=60):
    """One answer per case, from one process of the example, which may take `seconds`."""
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


def command():
    """The path of the command line itself."""
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
    """The real templates by name; empty, with a message, on a machine without them."""
    if not TEMPLATES.is_file():
        print("  skipped: the corpus of real templates (../shared/templates) is missing")
        return {}
    entries = json.loads(TEMPLATES.read_text(encoding="utf-8")).values()
    return {name: entry["template"] for entry in entries for name in entry["names"]}


def parse(cases):
    """What Loquat's parser reads in outputs that arrive in `chunks`, one reading per case."""
    return [reading(pieces) for pieces in ask("parse", cases)]


def reading(pieces):
    """The pieces of one output, joined."""
    whole = {"reasoning": "", "text": "", "calls": []}
    for piece in pieces:
        match piece:
            case {"reasoning": text}:
                whole["reasoning"] += text
            case {"text": text}:
                whole["text"] += text
            case {"call": name}:
                whole["calls"].append([name, ""])
            case {"arguments": text, "index": index}:
                whole["calls"][index][1] += text
    return whole


def chunks(spelled_tokens):
    """The text that each token adds, given the tokens' bytes: only complete characters."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return [decoder.decode(spelling) for spelling in spelled_tokens]


def around_difference(*values, before=40, after=160):
    """The values' `repr`, from shortly before the first difference."""
    shown = [repr(value) for value in values]
    start = max(0, len(os.path.commonprefix(shown)) - before)
    return [text[start : start + before + after] for text in shown]


class Verdict:
    """Counts agreements, prints disagreements, and sets the exit status."""

    SHOWN = 12

    def __init__(self, judge):
        self.judge = judge
        self.disagreements = 0
        self.agreed = {}

    def expect(self, subject, case, ours, theirs):
        """Counts under `subject`; `case` names the input."""
        if ours == theirs:
            self.agreed[subject] = self.agreed.get(subject, 0) + 1
            return
        self.disagreements += 1
        if self.disagreements <= self.SHOWN:
            ours, theirs = around_difference(ours, theirs)
            print(f"  DISAGREE {subject}: {case}\n    ours   {ours}\n    theirs {theirs}")

    def end(self):
        for subject, count in self.agreed.items():
            print(f"  {count:>5} agree: {subject}")
        if not self.agreed:
            sys.exit(f"{self.judge}: nothing was judged")
        if self.disagreements:
            sys.exit(f"{self.judge}: {self.disagreements} disagreements")
