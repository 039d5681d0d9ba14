"""Fixtures for tests of ``spool.connect``: a space, its server in this process, and the space by HTTP."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import spool
from forwarder.web.server import WebServer
from forwarder.web.tokens import Tokens

WAIT = 60.0
"""Seconds after which a test that waits in vain fails; none waits as long."""
QUEUES: dict[str, dict[str, Any]] = {
    "errors": {},
    "replies": {},
    "failures": {},
    "other": {},
    "small": {"max_messages": 1},
    "once": {"deduplication_window": 600.0},
    "important": {"order": "priority,fifo"},
    "orders": {
        "error_queue": "errors",
        "reply_queue": "replies",
        "failure_queue": "failures",
        "retry_delay": 0.0,
        "retry_delay_max": None,
        "retries": 2,
    },
}


def made(path: Path) -> spool.Space:
    """Create a space with the queues."""
    space = spool.create(path)
    for name, options in QUEUES.items():
        space.create_queue(name, **options)
    return space


@contextmanager
def served(path: Path, *lines: str, port: int = 0, **given: Any) -> Iterator[str]:
    """Serve a space in this process; yields its address."""
    listening = socket.create_server(("127.0.0.1", port))
    server = WebServer([listening], {"shop": str(path)}, Tokens(lines), **given)
    try:
        yield f"http{'s' if given else ''}://127.0.0.1:{listening.getsockname()[1]}/shop"
    finally:
        assert server.close()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with made(tmp_path / "space"):
        return tmp_path / "space"


@pytest.fixture(params=["local", "remote"])
def space(request: pytest.FixtureRequest, directory: Path) -> Iterator[Any]:
    """The same space in the directory, and by HTTP."""
    with ExitStack() as opened:
        if request.param == "local":
            yield opened.enter_context(spool.open(directory))
        else:
            address = opened.enter_context(served(directory))
            yield opened.enter_context(spool.connect(address))
