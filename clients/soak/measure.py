"""Single costs: four bodies of 30 MB at once, and the first request to a model whose template never ends."""

import time
from concurrent.futures import ThreadPoolExecutor

from .health import HealthProbe
from .hostile import AT_ONCE, large_bodies
from .ordinary import user
from .run import IDLE_SECONDS, mb, wait_until
from .server import HOSTILE, SoakServer
from .wire import Client


def measured(folder, work):
    """Runs `work` on an idle server; returns what it says about itself and what it cost."""
    with SoakServer(folder) as server:
        client = Client(server.address)
        wait_until(lambda: client.get("/health/ready").status == 200, "ready", IDLE_SECONDS)
        before = server.memory()["VmRSS"]
        with HealthProbe(server.address) as probe:
            begun = time.monotonic()
            result = work(client)
            seconds = time.monotonic() - begun
        peak = server.memory()["VmHWM"]
    memory = f"{mb(before)} resident before, {mb(peak)} at the peak"
    return f"{result}: {seconds:.2f} s, {memory}; /health: {probe.summary()}"


def four_bodies(client):
    path, body = large_bodies()["30 MB of words"]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(lambda _: client.post(path, body), range(AT_ONCE)))
    return f"{AT_ONCE} bodies of 30 MB to {path} give {[answer.status for answer in answers]}"


def template_without_end(client):
    body = {"model": HOSTILE, "messages": user("Hello")}
    first, second = (client.post("/v1/chat/completions", body) for _ in range(2))
    return (
        f"a template that never ends gives {first.status} after {first.seconds:.2f} s with loading, "
        f"{second.status} after {second.seconds:.2f} s then"
    )


MEASUREMENTS = {"bodies": four_bodies, "template": template_without_end}
