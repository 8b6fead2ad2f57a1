"""Asks for `/health` every 200 ms, in a process of its own: the soak's threads must not delay it."""

import http.client
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

PERIOD = 0.2
# The server's promise. With two busy cores, some hundred milliseconds are usual while large bodies are
# parsed.
MAX_HEALTH_SECONDS = 5.0
CLIENTS = Path(__file__).resolve().parent.parent


class HealthProbe:
    """Runs beside the soak. `seconds` has the times of all answers after the end; none may exceed
    `max_seconds`."""

    def __init__(self, address, max_seconds=MAX_HEALTH_SECONDS):
        self.address = address
        self.max_seconds = max_seconds
        self.seconds = []

    def __enter__(self):
        host, port = self.address
        command = [sys.executable, "-m", "soak.health", host, str(port)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, text=True, cwd=CLIENTS, **pipes)
        return self

    def __exit__(self, *exception):
        output, _ = self.process.communicate()
        self.seconds = sorted(json.loads(output)) if self.process.returncode == 0 else []

    def percentile(self, share):
        return self.seconds[min(len(self.seconds) - 1, int(share * len(self.seconds)))]

    def summary(self):
        p50, p99, longest = (self.percentile(share) * 1000 for share in (0.5, 0.99, 1.0))
        return f"{len(self.seconds)} answers, p50 {p50:.1f} ms, p99 {p99:.1f} ms, max {longest:.1f} ms"


def main(host, port):
    """Asks until stdin ends. Fails if an answer is not 200 or the connection breaks."""
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    seconds = []
    while True:
        begun = time.monotonic()
        connection.request("GET", "/health")
        response = connection.getresponse()
        assert response.status == 200 and json.load(response) == {"status": "ok"}
        seconds.append(time.monotonic() - begun)
        if ended.wait(PERIOD):
            break
    print(json.dumps(seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
