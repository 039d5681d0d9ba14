"""A directory in memory, where thousands of small files cost little: nothing here cuts the power."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def memory() -> Iterator[Path]:
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="xaspool-", dir=where) as directory:
        yield Path(directory)
