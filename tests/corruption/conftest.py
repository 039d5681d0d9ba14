"""Counts the inputs of readers."""

from collections.abc import Callable

import pytest


@pytest.fixture
def tried(record_property: Callable[[str, object], None]) -> dict[str, int]:
    """Count the inputs that a test gives to its reader; none may take more than 64 MiB of memory."""
    counts = {"refused": 0, "accepted": 0}
    record_property("hostile inputs read", counts)
    return counts
