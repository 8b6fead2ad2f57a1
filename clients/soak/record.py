"""What was sent and what came back."""

import threading
from collections import Counter, defaultdict

MAX_PROBLEMS = 40
EXCERPT = 300


class Record:
    """Outcomes by kind of request, and everything that should not have happened."""

    def __init__(self):
        self._lock = threading.Lock()
        self.outcomes = defaultdict(Counter)
        self.longest = defaultdict(float)
        self.problems = []

    def count(self, kind, outcome, seconds=0.0):
        with self._lock:
            self.outcomes[kind][str(outcome)] += 1
            self.longest[kind] = max(self.longest[kind], seconds)

    def problem(self, text):
        with self._lock:
            if len(self.problems) < MAX_PROBLEMS:
                self.problems.append(text)

    def expect(self, kind, answer, allowed):
        """Counts an answer, which must have one of these statuses."""
        self.count(kind, answer.status, answer.seconds)
        if answer.status not in allowed:
            body = answer.body[:EXCERPT].decode(errors="replace")
            self.problem(f"{kind}: {answer.status} instead of {sorted(map(str, allowed))}: {body}")

    def with_status(self, status):
        """How many answers had this status."""
        return sum(outcomes[str(status)] for outcomes in self.outcomes.values())

    def table(self):
        width = max(map(len, self.outcomes), default=0)
        lines = [f"{'kind':{width}}   sent  longest  came back"]
        for kind, outcomes in sorted(self.outcomes.items()):
            back = ", ".join(f"{outcome}: {count}" for outcome, count in sorted(outcomes.items()))
            lines.append(f"{kind:{width}} {outcomes.total():6} {self.longest[kind]:6.1f} s  {back}")
        return "\n".join(lines)
