"""Two real PostgreSQL servers, with two-phase commit and with the default settings, and a shop that uses one."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from unittest import mock

import pytest

from tests.postgresql import Server, server
from tests.xa.manager.desk import KINDS, TERMINATE, Desk
from tests.xa.manager.shop import Shop
from xa.manager import manager as manager_module


@pytest.fixture(scope="session")
def with_two_phases() -> Iterator[Server]:
    with server(two_phase=True) as found:
        yield found


@pytest.fixture(scope="session")
def by_default() -> Iterator[Server]:
    """A server with ``max_prepared_transactions = 0``."""
    with server(two_phase=False) as found:
        yield found


@pytest.fixture(params=["last resource", "two phases"])
def shop(request: pytest.FixtureRequest, memory: Path) -> Iterator[Shop]:
    """A shop whose database takes part in either way; see ``last_resource`` and ``two_phases``."""
    two_phase = request.param == "two phases"
    with Shop(memory, request.getfixturevalue("with_two_phases" if two_phase else "by_default"), two_phase) as found:
        yield found


@pytest.fixture(autouse=True)
def _free_servers(by_default: Server, with_two_phases: Server) -> Iterator[None]:
    """End what a test has left on the servers, because a table in use cannot be dropped."""
    yield
    for place in (by_default, with_two_phases):
        with closing(place.connect(autocommit=True)) as database:
            database.execute(TERMINATE)
            for xid in database.tpc_recover():
                database.tpc_rollback(xid)


@pytest.fixture
def impatient() -> Iterator[None]:
    """Let managers close at once, although transactions are open."""
    with mock.patch.object(manager_module, "_CLOSE_SECONDS", 0):
        yield


@pytest.fixture(params=KINDS)
def desk(request: pytest.FixtureRequest, memory: Path, by_default: Server) -> Iterator[Desk]:
    found = Desk(memory, KINDS[request.param], by_default)
    with found.space:
        yield found
