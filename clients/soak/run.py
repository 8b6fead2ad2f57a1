"""Starts the server and its clients, waits, and judges what is left."""

import contextlib
import random
import re
import subprocess
import threading
import time
from dataclasses import dataclass, field

from .broken import broken
from .health import MAX_HEALTH_SECONDS, HealthProbe
from .hostile import costly, hostile
from .operators import Operator
from .ordinary import long_stream, ordinary, reference_answers
from .record import Record
from .server import HOSTILE, MEMORY_LIMIT, OPERATOR_KEY, PRELOADED, SoakServer
from .wire import Client

# Threads by what they send.
CLIENTS = {ordinary: 10, long_stream: 1, broken: 8, hostile: 3, costly: 1}
# The longest request that the soak sends takes some seconds; only a hang takes longer.
END_SECONDS = 300
END_PERIOD = 0.5
IDLE_SECONDS = 120
# The server returns freed memory a second after its last request.
TRIM_SECONDS = 2
# Resident memory after the soak, beside a tenth more than before it: what the allocator and the
# server's own tables keep.
KEPT_BYTES = 16_000_000
# It returns more when idle threads end. Only a leak takes longer.
RETURN_SECONDS = 30


@dataclass
class Report:
    """The result of a soak; `problems` is empty if it passed."""

    record: Record
    lines: list = field(default_factory=list)

    @property
    def problems(self):
        return self.record.problems

    def __str__(self):
        problems = [f"PROBLEM: {problem}" for problem in self.problems]
        return "\n".join([self.record.table(), "", *self.lines, *problems])


def soak(folder, seconds, seed=1, max_health_seconds=MAX_HEALTH_SECONDS):
    """Runs everything at once for some seconds."""
    record = Record()
    report = Report(record)
    with SoakServer(folder) as server:
        client = Client(server.address)
        wait_until(lambda: client.get("/health/ready").status == 200, "ready", IDLE_SECONDS)
        before = reference_answers(client)
        idle = server.memory()["VmRSS"]
        report.lines.append(f"seed {seed}, {seconds} s; {mb(idle)} resident at the start")
        with HealthProbe(server.address, max_health_seconds) as probe:
            mix(server, client, record, seconds, seed)
        judge(server, client, probe, before, report)
        if server.process.poll() is None:
            judge_memory(server, client, idle, report)
            judge_end(server, report)
    return report


def mix(server, client, record, seconds, seed):
    """All clients and the operator, each with its own random numbers."""
    operator = Operator(server, client, record)
    actions = [action for action, count in CLIENTS.items() for _ in range(count)]
    actions = [lambda rng, action=action: action(client, record, rng) for action in actions]
    end = time.monotonic() + seconds

    def repeat(at, action):
        rng = random.Random(f"{seed}/{at}")
        while time.monotonic() < end and server.process.poll() is None:
            try:
                action(rng)
            except Exception as error:  # every failure of a client is a finding
                record.problem(f"a client of thread {at} failed: {error!r}")

    threads = [
        threading.Thread(target=repeat, args=(at, action), daemon=True)
        for at, action in enumerate([operator.act, *actions])
    ]
    for thread in threads:
        thread.start()
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.process.wait(timeout=seconds)
    hanging = end_all(threads, operator)
    if hanging:
        record.problem(f"{hanging} clients wait for an answer {END_SECONDS} s after the end")
    server.configure()
    operator.restore()


def end_all(threads, operator):
    """Waits for the last answers, and cancels what takes long; returns how many threads still wait."""
    deadline = time.monotonic() + END_SECONDS
    while any(thread.is_alive() for thread in threads) and time.monotonic() < deadline:
        if operator.server.process.poll() is None:
            operator.cancel_all()
        time.sleep(END_PERIOD)
    return sum(thread.is_alive() for thread in threads)


def judge(server, client, probe, before, report):
    """What must hold after the soak."""
    record = report.record
    if (status := server.process.poll()) is not None:
        server.read_rest_of_log()
        record.problem(f"the server ended with {status}: {server.log[-2000:].decode(errors='replace')}")
        return
    judge_health(probe, report)
    wait_until_idle(client, record)
    judge_metrics(client, report)
    wait_until(lambda: reference_answers(client) == before, "", IDLE_SECONDS, required=False)
    if (after := reference_answers(client)) != before:
        record.problem(f"answers changed from {before} to {after}")


def judge_health(probe, report):
    if not probe.seconds:
        report.record.problem("/health failed")
        return
    report.lines.append(f"/health: {probe.summary()}")
    if probe.seconds[-1] > probe.max_seconds:
        report.record.problem(f"/health took {probe.seconds[-1]:.1f} s")


def judge_metrics(client, report):
    """Everything that was accepted has ended, one way or another, and is counted once."""
    metrics = Metrics(client.get("/metrics", key=OPERATOR_KEY).body.decode())
    accepted = metrics.total("vllm:request_params_n_count")
    outcomes = {
        outcome: metrics.total("loquat_requests_total", outcome=outcome)
        for outcome in ["finished", "failed", "cancelled", "refused"]
    }
    ended = sum(outcomes.values()) - outcomes["refused"]
    choices = metrics.total("vllm:request_params_n_sum")
    reasons = metrics.total("vllm:request_success_total")
    report.lines.append(f"accepted {accepted:.0f} requests with {choices:.0f} choices: {outcomes}")
    if accepted != ended or choices != reasons:
        counts = f"{accepted} accepted, {ended} ended; {choices} choices, {reasons} ended"
        report.record.problem(counts)
    failures = metrics.total("loquat_http_responses_total", status="500")
    seen = report.record.with_status(500)
    if failures != seen:
        report.record.problem(f"{failures} responses have status 500, clients saw {seen}")


class Metrics:
    """Prometheus' text format."""

    SAMPLE = re.compile(r"^([\w:]+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
    LABEL = re.compile(r'(\w+)="([^"]*)"')

    def __init__(self, text):
        self.samples = [
            (name, dict(self.LABEL.findall(labels)), float(value))
            for name, labels, value in self.SAMPLE.findall(text)
        ]

    def total(self, name, **labels):
        """The sum over all samples with this name and these labels."""
        return sum(
            value
            for found, with_labels, value in self.samples
            if found == name and labels.items() <= with_labels.items()
        )


GAUGES = ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"]
GAUGES += ["loquat_requests_paused", "loquat_requests_in_flight"]


def wait_until_idle(client, record):
    """Nothing may run, wait or be reserved once all clients have left."""

    def busy():
        metrics = Metrics(client.get("/metrics", key=OPERATOR_KEY).body.decode())
        return {name: total for name in GAUGES if (total := metrics.total(name))}

    wait_until(lambda: not busy(), "", IDLE_SECONDS, required=False)
    if still := busy():
        record.problem(f"still busy: {still}")


def judge_memory(server, client, idle, report):
    """The peak is limited, and what the load allocated is returned."""
    client.post("/admin/v1/cache/clear", {}, key=OPERATOR_KEY)
    time.sleep(TRIM_SECONDS)
    memory = server.memory()
    peak, now, space = (memory[name] for name in ["VmHWM", "VmRSS", "VmPeak"])
    report.lines.append(
        f"memory: {mb(peak)} resident at the peak, {mb(now)} after the load, without cached "
        f"prefixes; {mb(space)} of address space at the peak, of {mb(MEMORY_LIMIT)} allowed"
    )
    if peak >= MEMORY_LIMIT:
        report.record.problem(f"{mb(peak)} were resident")
    # Models keep what their requests brought in: touched KV memory and up to 64 compiled grammars
    # each, of some megabytes if they are hostile. Loaded anew, they are what they were before.
    for name in [*PRELOADED, HOSTILE]:
        client.post(f"/admin/v1/models/{name}/unload", {}, key=OPERATOR_KEY)
    for name in PRELOADED:
        client.post(f"/admin/v1/models/{name}/load", {}, key=OPERATOR_KEY)
    reference_answers(client)
    most = idle * 1.1 + KEPT_BYTES
    wait_until(lambda: server.memory()["VmRSS"] <= most, "", RETURN_SECONDS, required=False)
    now = server.memory()["VmRSS"]
    report.lines.append(f"memory: {mb(now)} resident with models loaded anew, of {mb(most)} allowed")
    if now > most:
        report.record.problem(f"{mb(now)} stay resident, {mb(idle)} before the load")


def judge_end(server, report):
    """SIGTERM ends the process while its log is not read."""
    status, seconds = server.terminate()
    server.read_rest_of_log()
    report.lines.append(f"SIGTERM: exit code {status} after {seconds:.1f} s")
    if status != 0:
        report.record.problem(f"SIGTERM ended the process with {status} after {seconds:.1f} s")
    dropped = sum(map(int, re.findall(rb"lines were dropped.* lines=(\d+)", server.log)))
    report.lines.append(f"log: {len(server.log)} bytes read, {dropped} lines dropped")
    if panics := [line for line in server.log.splitlines() if b"panicked" in line]:
        report.record.problem(f"{len(panics)} panics: {panics[0].decode(errors='replace')}")


def mb(count):
    return f"{count / 1e6:.0f} MB"


def wait_until(holds, what, seconds, required=True):
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            if required:
                raise TimeoutError(f"the server is not {what} after {seconds} s")
            return
        time.sleep(0.05)
