"""HTTP by hand: exchanges that libraries would not make."""

import http.client
import json
import socket
import time
from dataclasses import dataclass

from .server import TENANT_KEY

# A request that takes longer than this hangs.
HANG_SECONDS = 90


@dataclass
class Answer:
    """A response read to its end. The status is `closed` if the server closed the connection, and
    `timeout` if it did not answer."""

    status: int | str
    body: bytes = b""
    seconds: float = 0.0

    def json(self):
        return json.loads(self.body)


def head(method, path, body=b"", headers=()):
    """The bytes of a request before its body."""
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", f"authorization: Bearer {TENANT_KEY}"]
    lines += ["content-type: application/json", f"content-length: {len(body)}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


class Client:
    """Sends requests, each on a connection of its own."""

    def __init__(self, address):
        self.address = address

    def connect(self):
        return socket.create_connection(self.address, timeout=HANG_SECONDS)

    def request(self, method, path, body=None, key=TENANT_KEY, headers=()):
        """Sends a JSON value, or bytes as they are, and reads the answer to its end."""
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        connection = http.client.HTTPConnection(*self.address, timeout=HANG_SECONDS)
        sent = {"authorization": f"Bearer {key}", "content-type": "application/json", **dict(headers)}
        begun = time.monotonic()
        try:
            answer = read_answer(connection, method, path, body, sent)
        except TimeoutError:
            answer = Answer("timeout", f"{method} {path} {(body or b'')[:200]}".encode())
        finally:
            connection.close()
        answer.seconds = time.monotonic() - begun
        return answer

    def post(self, path, body, **options):
        return self.request("POST", path, body, **options)

    def get(self, path, **options):
        return self.request("GET", path, **options)

    def exchange(self, data, half_close=False):
        """Sends bytes and reads one answer."""
        with self.connect() as connection:
            if not send(connection, data):
                return Answer("closed")
            if half_close:
                connection.shutdown(socket.SHUT_WR)
            return receive(connection)


def read_answer(connection, method, path, body, headers):
    try:
        connection.request(method, path, body, headers)
    except (BrokenPipeError, ConnectionResetError):
        # The server refuses a body before its end: the answer may be there.
        pass
    try:
        response = connection.getresponse()
        return Answer(response.status, response.read())
    except (ConnectionError, http.client.HTTPException):
        return Answer("closed")


def send(connection, data):
    """Whether the server accepted all of it."""
    try:
        connection.sendall(data)
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


def receive(connection):
    """Reads one answer."""
    response = http.client.HTTPResponse(connection)
    try:
        response.begin()
        return Answer(response.status, response.read())
    except (ConnectionError, http.client.HTTPException):
        return Answer("closed")
    finally:
        response.close()
