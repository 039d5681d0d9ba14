"""What several modules begin with: processes that have one simulated space open, or callers behind a held flush.
A module that needs another ``space`` makes its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import spool
from tests.spool.held import Gathering
from tests.spool.meanwhile import Processes, Watched


@pytest.fixture
def processes() -> Processes:
    return Processes()


@pytest.fixture
def space(processes: Processes) -> spool.Space:
    return processes.space()


@pytest.fixture
def other(processes: Processes, space: spool.Space) -> spool.Space:
    return processes.space()


@pytest.fixture
def watched(processes: Processes, space: spool.Space) -> Watched:
    """A process to which things happen."""
    return processes.open()


@pytest.fixture
def gathering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gathering]:
    found = Gathering(tmp_path / "space", monkeypatch)
    for queue in ("orders", "replies"):
        found.space.create_queue(queue)
    yield found
    found.disk.go_on.set()
    found.space.close()
