"""What every test has: a real server with a real model, and whether it came back to rest."""

import pytest
from serving import Server


@pytest.fixture(scope="session")
def server():
    """SmolLM2, for everybody who reaches the port."""
    with Server() as running:
        yield running


@pytest.fixture(autouse=True)
def at_rest(request):
    """After each test the server holds nothing for it."""
    yield
    if "server" in request.fixturenames:
        request.getfixturevalue("server").wait_until_idle()
