"""A space with queues, and a connection to it."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.xa.dbapi.parties import Spool
from xa import dbapi


@pytest.fixture
def queues(memory: Path) -> Spool:
    return Spool(memory / "space")


@pytest.fixture
def conn(queues: Spool) -> Iterator[dbapi.Connection]:
    with closing(queues.connect()) as found:
        yield found
