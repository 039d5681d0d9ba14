"""A space whose clock a test can move, and short functions for the calls of the tests."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import spool
from tests import door
from tests.at_once import AT_ONCE
from tests.clocks import MovedClock, timed


@pytest.fixture
def space(path: Path, clock: MovedClock) -> Iterator[spool.Space]:
    with spool.create(timed(path, clock), defaults=AT_ONCE) as found:
        yield found


Reopen = Callable[[], spool.Space]


@pytest.fixture
def again(path: Path, clock: MovedClock) -> Iterator[Reopen]:
    """Open the space once more; the new opener sees the same files as another process does."""
    opened: list[spool.Space] = []

    def open_again() -> spool.Space:
        opened.append(spool.open(timed(path, clock)))
        return opened[-1]

    yield open_again
    for one in opened:
        one.close()


def edited(space: spool.Space, line: str) -> None:
    """Add a line for the queue that was created last to ``space.toml``, as an edit by hand does."""
    file = Path(space.path, "space.toml")
    file.write_text(f"{file.read_text()}{line}\n")
    door.housekeep(space)


def drained(space: spool.Space, queue: str, **how: Any) -> list[Any]:
    """Take all messages that can be taken, and return their bodies in order."""
    found = []
    while True:
        try:
            found.append(space.get(queue, **how).body)
        except spool.Empty:
            return found


def seen(space: spool.Space, queue: str, **how: Any) -> list[Any]:
    """Return the bodies of the queue without taking the messages."""
    return [message.body for message in space.browse(queue, **how)]
