"""Starts `loquat serve` on a free port, and stops it again."""

import functools
import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODEL = "smollm2:135m"
# Only a hang takes longer.
START_SECONDS = 300
IDLE_SECONDS = 300
CANCEL_SECONDS = 300


def binary():
    """The path of `loquat`: LOQUAT_BINARY, or built now."""
    return os.environ.get("LOQUAT_BINARY") or build("--bin", "loquat")


def example(name):
    """The path of an example program: next to LOQUAT_BINARY, or built now."""
    if named := os.environ.get("LOQUAT_BINARY"):
        return str(Path(named).parent / "examples" / name)
    return build("--example", name)


@functools.cache
def build(kind, name):
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


class Server:
    """A server process. Fails if its exit status is not 0."""

    def __init__(self, *args, config=None, model=MODEL):
        self.model = model
        self.args = [binary(), "serve", "--port", "0", *args]
        if config:
            self.args += ["--config", str(config)]
        else:
            self.args.append(model)

    def __enter__(self):
        env = {**os.environ, "LOQUAT_LOG": "warn"}
        self.process = subprocess.Popen(self.args, stderr=subprocess.PIPE, text=True, env=env)
        self.url = self._address()
        self._wait_until_ready()
        return self

    def __exit__(self, *exception):
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        assert status == 0, f"the server exited with status {status}"

    def _address(self):
        """Reads the address from stderr; the rest of stderr is copied to stdout."""
        for line in self.process.stderr:
            print(line, end="", flush=True)
            if found := re.search(r"https?://[0-9.:]+", line):
                copy_output(self.process.stderr)
                return found[0]
        raise RuntimeError(f"the server exited with status {self.process.wait()} before it listened")

    def _wait_until_ready(self):
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            try:
                if self.get("/health/ready"):
                    return
            except urllib.error.HTTPError:
                time.sleep(0.05)
        raise TimeoutError("the server listens but does not become ready")

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=30) as response:
            return json.load(response)

    def post(self, path, body, headers=()):
        request = urllib.request.Request(
            self.url + path,
            data=json.dumps(body).encode(),
            headers={"content-type": "application/json", **dict(headers)},
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            return json.load(response)

    def cancelled(self):
        """The number of requests cancelled so far."""
        return sum(model["totals"]["cancelled"] for model in self.get("/stats")["models"])

    def wait_for_cancellation(self, before):
        """Waits for another cancellation; a request that runs to its end is none."""
        deadline = time.monotonic() + CANCEL_SECONDS
        while self.cancelled() == before:
            assert time.monotonic() < deadline, "the request was not cancelled"
            time.sleep(0.02)

    def wait_until_idle(self):
        """Fails if a request of the test still runs or waits."""
        deadline = time.monotonic() + IDLE_SECONDS
        while True:
            busy = [model for model in self.get("/stats")["models"] if is_busy(model)]
            if not busy:
                return
            assert time.monotonic() < deadline, f"still busy: {busy}"
            time.sleep(0.02)


class ScriptedServer(Server):
    """Serves one model that calls tools and gives these replies, one per turn."""

    def __init__(self, folder, replies, model="scripted", context=32_768):
        script = {"vocabulary": vocabulary(), "context": context, "replies": replies}
        source, config = folder / "script.json", folder / "loquat.toml"
        source.write_text(json.dumps(script), encoding="utf-8")
        config.write_text(
            f"""
            [server]
            port = 0

            [[models]]
            name = "{model}"
            source = "{source}"
            preload = true
            """,
            encoding="utf-8",
        )
        self.model = model
        self.args = [example("scripted"), str(config)]

    def totals(self):
        """The number of requests by how they ended."""
        (model,) = self.get("/stats")["models"]
        return model["totals"]


@functools.cache
def vocabulary():
    """The path of the model whose tokenizer a scripted one uses."""
    listed = subprocess.run([binary(), "models", "--json"], stdout=subprocess.PIPE, check=True)
    (path,) = (model["path"] for model in json.loads(listed.stdout) if model["name"] == MODEL)
    return path


def tool_call(name, /, **arguments):
    """The reply of a scripted model that calls a tool."""
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{call}\n</tool_call>"


def is_busy(model):
    return model["running"] or model["waiting"] or model["kv_reserved_tokens"]


def copy_output(stream):
    """Copies the stream, so that the process never blocks on a full pipe."""
    import threading

    def copy():
        for line in stream:
            print(line, end="", flush=True)

    threading.Thread(target=copy, daemon=True).start()
