"""One `loquat serve` under a memory limit, whose log is seldom read."""

import fcntl
import hashlib
import json
import os
import re
import resource
import select
import shutil
import signal
import subprocess
import time

import serving

# Of address space: every mapping counts, also what is reserved and not touched. It is the limit that
# makes an allocation fail, and a failed allocation ends the process. Resident memory stays below it.
MEMORY_LIMIT = 6_000_000_000
SHUTDOWN_SECONDS = 10
# Only a hang takes longer than these.
EXIT_SECONDS = SHUTDOWN_SECONDS + 60
START_SECONDS = 300
# The smallest: it is full after some lines.
PIPE_BYTES = 4096

OPERATOR_KEY = "soak-operator"
TENANT_KEY = "soak-tenant"

CHAT, PLAIN, STEADY, HOSTILE = "chat", "plain", "steady", "hostile"
PRELOADED = [CHAT, PLAIN, STEADY]

# Ends no rendering: the budget of templates does.
HOSTILE_TEMPLATE = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{{ 'x'.join(['y'] * 9) }}"
    "{% endfor %}{% endfor %}"
)


def key_section(name, key, scopes):
    digest = hashlib.sha256(key.encode()).hexdigest()
    return f'[[keys]]\nname = "{name}"\nhash = "sha256:{digest}"\nscopes = {json.dumps(scopes)}\n'


class SoakServer:
    """The process, its files and its memory."""

    def __init__(self, folder):
        self.folder = folder
        self.config = folder / "loquat.toml"
        self.weights = folder / PLAIN / "model.safetensors"
        self.log = b""
        for name in [PLAIN, STEADY]:
            copy_model(folder / name)
        (folder / "hostile.jinja").write_text(HOSTILE_TEMPLATE, encoding="utf-8")
        self.whole_weights = self.weights.read_bytes()
        self.configure()

    def configure(self, reply_limit=64):
        """Writes the configuration; another reply limit is a change that a reload applies."""
        models = {
            CHAT: f'source = "{serving.MODEL}"\npreload = true\ncontext = 2048',
            PLAIN: f'source = "{self.folder / PLAIN}"\npreload = true',
            STEADY: f'source = "{self.folder / STEADY}"\npreload = true',
            HOSTILE: f'source = "{self.folder / STEADY}"\ntemplate = "{self.folder / "hostile.jinja"}"',
        }
        sections = [
            f'[server]\nport = 0\nshutdown_timeout = "{SHUTDOWN_SECONDS}s"\n',
            '[limits]\nheader_timeout = "4s"\nbody_timeout = "30s"\nwrite_timeout = "3s"\n'
            'idle_timeout = "5s"\n',
            key_section("operator", OPERATOR_KEY, ["inference", "metrics", "manage", "admin"]),
            key_section("tenant", TENANT_KEY, ["inference"]),
        ]
        for name, options in models.items():
            limits = f'memory = "512MiB"\nmax_tokens = {reply_limit}'
            sections.append(f'[[models]]\nname = "{name}"\n{options}\n{limits}\n')
        self.config.write_text("\n".join(sections), encoding="utf-8")

    def __enter__(self):
        command = [serving.binary(), "serve", "--config", str(self.config)]
        environment = {**os.environ, "LOQUAT_LOG": "debug"}
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, env=environment, preexec_fn=limit_memory
        )
        os.set_blocking(self.process.stderr.fileno(), False)
        fcntl.fcntl(self.process.stderr, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self.address = self._address()
        return self

    def __exit__(self, *exception):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stderr.close()

    def _address(self):
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            select.select([self.process.stderr], [], [], 0.1)
            self.read_log()
            if found := re.search(rb"http://([0-9.]+):(\d+)", self.log):
                return found[1].decode(), int(found[2])
        raise RuntimeError(f"the server does not listen: {self.log.decode()}")

    def read_log(self, limit=PIPE_BYTES):
        """Reads what the pipe holds now, at most `limit` bytes."""
        try:
            self.log += os.read(self.process.stderr.fileno(), limit)
        except BlockingIOError:
            pass

    def read_rest_of_log(self):
        """Reads to the end of the log, which the process has closed."""
        os.set_blocking(self.process.stderr.fileno(), True)
        self.log += self.process.stderr.read()

    def reload(self):
        self.process.send_signal(signal.SIGHUP)

    def memory(self):
        """Bytes by name: VmHWM is the peak of resident memory, VmRSS the resident memory now."""
        with open(f"/proc/{self.process.pid}/status", encoding="utf-8") as status:
            fields = (line.split() for line in status if line.startswith("Vm"))
            return {name.rstrip(":"): int(kib) << 10 for name, kib, _ in fields}

    def terminate(self):
        """Ends the process by SIGTERM, or kills it if it hangs; returns the exit status and the seconds it
        took."""
        begun = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
        return self.process.wait(), time.monotonic() - begun


def copy_model(folder):
    """A tiny model whose weights are read from the mapped file in every step, with room for replies that
    take minutes."""
    shutil.copytree(serving.ROOT / "crates/testkit/goldens/llama", folder)
    config = folder / "config.json"
    fields = json.loads(config.read_text(encoding="utf-8"))
    fields["max_position_embeddings"] = 200_000
    config.write_text(json.dumps(fields), encoding="utf-8")


def limit_memory():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
