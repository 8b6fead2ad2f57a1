"""Fixtures: a real server with a real model, and a check that it is idle after each test."""

import contextlib

import pytest
from serving import ScriptedServer, Server


@pytest.fixture(scope="session")
def server():
    """SmolLM2, without keys."""
    with Server() as running:
        yield running


@pytest.fixture
def scripted(tmp_path_factory):
    """Starts servers with scripted replies. Each must be idle at the end."""
    with contextlib.ExitStack() as stack:

        def start(*replies):
            folder = tmp_path_factory.mktemp("scripted")
            server = stack.enter_context(ScriptedServer(folder, replies))
            stack.callback(server.wait_until_idle)
            return server

        yield start


@pytest.fixture(autouse=True)
def idle_after_test(request):
    """After each test the server must be idle."""
    yield
    if "server" in request.fixturenames:
        request.getfixturevalue("server").wait_until_idle()
