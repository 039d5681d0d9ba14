"""What readers are fed is counted, and their memory is watched."""

import tracemalloc
from collections.abc import Callable, Iterator

import pytest


@pytest.fixture
def tried(record_property: Callable[[str, object], None]) -> Iterator[dict[str, int]]:
    """Counts what a test fed to its reader, which may take 64 MiB of memory for each and no more."""
    counts = {"refused": 0, "accepted": 0}
    record_property("hostile inputs read", counts)
    tracemalloc.start()
    try:
        yield counts
    finally:
        tracemalloc.stop()
