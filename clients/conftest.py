"""Fixtures of every test: a real server with a real model, and a check that it is idle afterwards."""

import pytest
from serving import Server


@pytest.fixture(scope="session")
def server():
    """SmolLM2, without keys."""
    with Server() as running:
        yield running


@pytest.fixture(autouse=True)
def at_rest(request):
    """After each test the server must be idle."""
    yield
    if "server" in request.fixturenames:
        request.getfixturevalue("server").wait_until_idle()
