"""Clients that leave, stall, and do not speak HTTP."""

import json
import re
import socket
import time

from .ordinary import LETTER_A
from .server import CHAT, STEADY
from .wire import Answer, head, receive, send

ENDLESS = {"model": STEADY, "prompt": "Hello", "max_tokens": 50_000, "stream": True, "logit_bias": LETTER_A}
SHORT = json.dumps({"model": CHAT, "prompt": "Hello", "max_tokens": 8}).encode()
# More than the header timeout and the write timeout.
SLOW_SECONDS = 5.5
LEFT = Answer("left")


def posted(path, body):
    return head("POST", path, body) + body


def leaves_during_stream(client, record, rng):
    """Reads a little of an endless stream and closes the connection."""
    with client.connect() as connection:
        send(connection, posted("/v1/completions", json.dumps(ENDLESS).encode()))
        connection.recv(rng.choice([1, 100, 5000]))
    record.expect("leaves during a stream", LEFT, {"left"})


def leaves_before_answer(client, record, rng):
    """Closes the connection, by FIN or by RST, before the answer."""
    with client.connect() as connection:
        send(connection, posted("/v1/completions", SHORT))
        if rng.random() < 0.5:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        time.sleep(rng.random() * 0.05)
    record.expect("leaves before the answer", LEFT, {"left"})


def leaves_during_body(client, record, rng):
    """Announces a body and sends a part of it."""
    with client.connect() as connection:
        request = posted("/v1/completions", SHORT)
        send(connection, request[: -rng.randrange(1, len(SHORT))])
    record.expect("leaves during the body", LEFT, {"left"})


def never_reads(client, record, rng):
    """Asks for an endless stream and never reads it: the write timeout ends it."""
    with client.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        send(connection, posted("/v1/completions", json.dumps(ENDLESS).encode()))
        time.sleep(SLOW_SECONDS)
    record.expect("never reads", LEFT, {"left"})


def half_closes(client, record, rng):
    """Closes its sending side after the request, and reads the answer."""
    answer = client.exchange(posted("/v1/completions", SHORT), half_close=True)
    record.expect("half-closes", answer, {200, 409})


def sends_head_slowly(client, record, rng):
    """Sends one byte at a time: the header timeout ends it."""
    with client.connect() as connection:
        deadline = time.monotonic() + SLOW_SECONDS
        for byte in posted("/v1/completions", SHORT):
            if time.monotonic() > deadline or not send(connection, bytes([byte])):
                break
            time.sleep(0.1)
        answer = receive(connection)
    record.expect("sends its head slowly", answer, {408, "closed"})


def sends_body_slowly(client, record, rng):
    """Sends the body in pieces, within its timeout."""
    with client.connect() as connection:
        send(connection, head("POST", "/v1/completions", SHORT))
        for at in range(0, len(SHORT), 8):
            send(connection, SHORT[at : at + 8])
            time.sleep(0.1)
        answer = receive(connection)
    record.expect("sends its body slowly", answer, {200, 409})


def pipelines(client, record, rng):
    """Sends four requests at once and reads four answers, in order."""
    tokenize = json.dumps({"model": CHAT, "content": "Hello"}).encode()
    requests = [head("GET", "/health"), posted("/tokenize", tokenize), posted("/v1/completions", SHORT)]
    last = head("GET", "/nowhere", headers=["connection: close"])
    with client.connect() as connection:
        send(connection, b"".join([*requests, last]))
        received = read_to_end(connection)
    statuses = re.findall(rb"HTTP/1\.1 (\d+)", received)
    in_order = statuses in ([b"200", b"200", b"200", b"404"], [b"200", b"200", b"409", b"404"])
    record.expect("pipelines", Answer(200 if in_order else "disorder", received), {200})


def read_to_end(connection):
    received = b""
    try:
        while part := connection.recv(65536):
            received += part
    except ConnectionError:
        pass
    return received


GARBAGE = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 64,
    b"GET / HTTP/9.9\r\n\r\n",
    b"\r\n" * 1000 + b"\0" * 100,
    b"GET /\xff\xfe HTTP/1.1\r\nhost: x\r\n\r\n",
    b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: -5\r\n\r\n",
    b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
    b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 200_000 + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 20_000 + b"\r\n",
]


def sends_garbage(client, record, rng):
    """Bytes that are not HTTP, or HTTP with broken framing."""
    data = rng.choice(GARBAGE) if rng.random() < 0.7 else rng.randbytes(rng.randrange(1, 2000))
    # Random bytes may be the beginning of a request: the end of the sending side ends it.
    answer = client.exchange(data, half_close=True)
    record.expect("sends garbage", answer, {400, 401, 408, 431, 505, "closed"})


def names_two_hosts(client, record, rng):
    answer = client.exchange(head("POST", "/tokenize", headers=["host: evil.example"]))
    record.expect("two host headers", answer, {400})


def foreign_origin(client, record, rng):
    origin = rng.choice(["https://evil.example", "null", "http://localhost.evil.example", "file://"])
    body = {"model": CHAT, "content": "Hello"}
    answer = client.post("/tokenize", body, headers={"origin": origin})
    record.expect("foreign origin", answer, {403})


def wrong_key(client, record, rng):
    path = rng.choice(["/v1/models", "/metrics", "/admin/v1/requests"])
    answer = client.get(path, key=rng.choice(["nobody", ""]))
    record.expect("wrong key", answer, {401})


def wrong_path(client, record, rng):
    method, path, status = rng.choice(
        [
            ("GET", "/v1/" + "x" * 5000, 404),
            ("GET", "/%00/../etc/passwd", 404),
            ("DELETE", "/v1/completions", 405),
        ]
    )
    record.expect("wrong path or method", client.request(method, path), {status})


def tenant_acts_as_operator(client, record, rng):
    """Unloading, negative priorities and the admin API need a scope."""
    method, path, body = rng.choice(
        [
            ("POST", "/api/generate", {"model": CHAT, "keep_alive": 0}),
            ("POST", "/v1/completions", {"model": CHAT, "prompt": "x", "priority": -1}),
            ("DELETE", "/admin/v1/requests", None),
        ]
    )
    record.expect("tenant as operator", client.request(method, path, body), {403})


BROKEN = [
    leaves_during_stream,
    leaves_before_answer,
    leaves_during_body,
    never_reads,
    half_closes,
    sends_head_slowly,
    sends_body_slowly,
    pipelines,
    sends_garbage,
    names_two_hosts,
    foreign_origin,
    wrong_key,
    wrong_path,
    tenant_acts_as_operator,
]


def broken(client, record, rng):
    rng.choice(BROKEN)(client, record, rng)
