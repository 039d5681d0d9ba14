"""A space for the tests of an application: empty, fast, and removed at the end.

With pytest, the line pytest_plugins = ["spool.testing"] in a conftest adds the fixture ``spool_space``. Without pytest,
``temporary_space`` is a context manager.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Unpack

from spool.model.options import QueueOptions, SpaceOptions
from spool.opening import create
from spool.space import Space

try:
    import pytest
except ImportError:  # the tests use another framework
    pytest = None  # type: ignore[assignment]

# Tests need no durability against power cuts. A test should not wait for the next attempt at a message.
_DEFAULTS: QueueOptions = {"durability": "none", "retry_delay": 0.0}


@contextmanager
def temporary_space(**options: Unpack[SpaceOptions]) -> Iterator[Space]:
    """Create a space in a new directory, which is removed at the end; yields the open space.

    The queues of the space do not flush, and failed messages are available again at once, unless options say otherwise.

    Args:
        options: see ``spool.SpaceOptions``.
    """
    merged: SpaceOptions = {**options, "defaults": {**_DEFAULTS, **options.get("defaults", {})}}
    with TemporaryDirectory(prefix="spool-test-") as directory, create(directory, **merged) as space:
        yield space


if pytest is not None:

    @pytest.fixture
    def spool_space() -> Iterator[Space]:
        """An open space, empty at the start of each test; ``spool_space.path`` is its directory."""
        with temporary_space() as space:
            yield space
