"""What operators do while the server is used: damage and restore files, unload, cancel, reload."""

import os
import time

from .server import CHAT, OPERATOR_KEY, PLAIN, STEADY

REST = (0.1, 0.8)


class Operator:
    """Acts on the server's files and its admin API."""

    def __init__(self, server, client, record):
        self.server = server
        self.client = client
        self.record = record

    def act(self, rng):
        action = rng.choice(ACTIONS)
        action(self, rng)
        self.record.count(f"operator: {action.__name__.replace('_', ' ')}", "done")
        time.sleep(rng.uniform(*REST))

    def cancel_all(self):
        self.request("DELETE", "/admin/v1/requests", None, {200})

    def restore(self):
        """Makes the weights whole again."""
        self.server.weights.write_bytes(self.server.whole_weights)

    def request(self, method, path, body, allowed):
        answer = self.client.request(method, path, body, key=OPERATOR_KEY)
        self.record.expect(f"admin: {method} {path.split('/')[-1]}", answer, allowed)


def truncate_weights(operator, rng):
    os.truncate(operator.server.weights, rng.choice([0, 10, 10_000, 200_000]))
    time.sleep(rng.random())
    operator.restore()


def overwrite_weights(operator, rng):
    """Writes other bytes of the same length into the file."""
    whole = operator.server.whole_weights
    operator.server.weights.write_bytes(rng.choice([bytes(len(whole)), rng.randbytes(len(whole)), whole]))
    time.sleep(rng.random())
    operator.restore()


def delete_weights(operator, rng):
    operator.server.weights.unlink()
    time.sleep(rng.random())
    operator.restore()


def replace_weights(operator, rng):
    """Renames another file over the weights, whole or not."""
    new = operator.server.weights.with_suffix(".new")
    whole = operator.server.whole_weights
    new.write_bytes(rng.choice([whole, whole, whole[:5000]]))
    new.rename(operator.server.weights)
    time.sleep(rng.random())
    new.write_bytes(whole)
    new.rename(operator.server.weights)


def unload_by_keep_alive(operator, rng):
    body = {"model": rng.choice([CHAT, PLAIN, STEADY]), "keep_alive": 0}
    operator.request("POST", "/api/generate", body, {200})


def load_and_unload(operator, rng):
    """Loading fails while the weights are damaged; unloading, while requests run."""
    model = rng.choice([CHAT, PLAIN, STEADY])
    operator.request("POST", f"/admin/v1/models/{model}/unload", {}, {200, 409})
    operator.request("POST", f"/admin/v1/models/{model}/load", {}, {200, 500} if model == PLAIN else {200})


def cancel_all(operator, rng):
    operator.cancel_all()


def clear_caches(operator, rng):
    operator.request("POST", "/admin/v1/cache/clear", {}, {200})


def reload_configuration(operator, rng):
    """By SIGHUP, with another reply limit, or with a file that is invalid for a moment."""
    if rng.random() < 0.3:
        operator.server.config.write_text("[[models]]\nname = 5\n", encoding="utf-8")
        operator.server.reload()
        time.sleep(0.2)
    operator.server.configure(reply_limit=rng.choice([48, 64]))
    operator.server.reload()


LISTS = [
    ("/metrics", 200),
    ("/stats", 200),
    ("/admin/v1/requests", 200),
    ("/admin/v1/models", 200),
    ("/v1/models", 200),
    ("/slots", 400),
    ("/props", 400),
]


def list_everything(operator, rng):
    """llama.cpp's paths describe a single model."""
    path, status = rng.choice(LISTS)
    operator.request("GET", path, None, {status})


def read_some_log(operator, rng):
    """The log's reader wakes up for a moment. The server writes on; the pipe is full most of the time."""
    operator.server.read_log()


ACTIONS = [
    truncate_weights,
    truncate_weights,
    overwrite_weights,
    delete_weights,
    replace_weights,
    unload_by_keep_alive,
    load_and_unload,
    cancel_all,
    clear_caches,
    reload_configuration,
    list_everything,
    list_everything,
    read_some_log,
]
