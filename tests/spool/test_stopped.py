"""After a failed flush the space has stopped for everybody, at every call and at every step of one; a closed space says
that it is closed."""

from collections.abc import Callable
from itertools import islice

import pytest

import spool
from spool import decide, layout
from spool.errors import CommitUnknown, NotOpen, SpaceStopped
from spool.transaction import Transaction
from spool.xid import Xid
from tests.spool.meanwhile import Meanwhile, Processes

XID = Xid(7, b"one", b"")


@pytest.fixture
def processes() -> Processes:
    return Processes()


@pytest.fixture
def space(processes: Processes) -> spool.Space:
    return processes.space()


@pytest.fixture
def watched(processes: Processes, space: spool.Space) -> tuple[spool.Space, Meanwhile]:
    """A process to which things happen."""
    return processes.open()


def list_of(found: Callable[[spool.Space], object]) -> Callable[[spool.Space], object]:
    return lambda space: list(found(space))  # type: ignore[call-overload]


CALLS = {
    "create_queue": lambda space: space.create_queue("more"),
    "queues": lambda space: space.queues(),
    "put": lambda space: space.put("orders", "one"),
    "get": lambda space: space.get("orders"),
    "transaction": lambda space: space.transaction(),
    "browse": list_of(lambda space: space.browse("orders")),
    "show": lambda space: space.show("0" * 32),
    "stats": lambda space: space.stats(),
    "stats of a queue": lambda space: space.stats("orders"),
    "check": lambda space: space.check(),
    "quarantined": lambda space: space.quarantined(),
}
BY_CALL = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@BY_CALL
def test_a_space_that_has_stopped_says_so(
    processes: Processes, space: spool.Space, call: Callable[[spool.Space], object]
) -> None:
    processes.space()._store.stop()
    with pytest.raises(SpaceStopped):
        call(space)
    with pytest.raises(SpaceStopped):
        processes.space()


@BY_CALL
def test_a_space_that_is_closed_says_so(space: spool.Space, call: Callable[[spool.Space], object]) -> None:
    space.close()
    with pytest.raises(NotOpen):
        call(space)


def test_a_transaction_of_a_space_that_has_stopped_says_so(processes: Processes, space: spool.Space) -> None:
    space.put("orders", "one")
    transaction = space.transaction()
    processes.space()._store.stop()
    for call in (lambda: transaction.put("orders", "two"), lambda: transaction.get("orders"), transaction.commit):
        with pytest.raises(SpaceStopped):
            call()


def test_nothing_is_known_of_branches_in_a_space_that_has_stopped(processes: Processes, space: spool.Space) -> None:
    processes.space()._store.stop()
    with pytest.raises(SpaceStopped):
        decide.is_prepared(space._store, XID)


def test_who_browses_stops_with_the_space(processes: Processes, space: spool.Space) -> None:
    space.put_many("orders", ["one", "two"])
    found = space.browse("orders")
    assert [message.body for message in islice(found, 1)] == ["one"]
    processes.space()._store.stop()
    with pytest.raises(SpaceStopped):
        next(found)


def test_a_commit_gets_no_number_in_a_space_that_has_stopped_meanwhile(
    space: spool.Space, watched: tuple[spool.Space, Meanwhile]
) -> None:
    writer, disk = watched
    disk.before("write_at", space._store.stop)
    with pytest.raises(SpaceStopped):
        writer.put("orders", "one")
    assert not disk.waits_for("write_at")
    assert disk.names(layout.COMMITTED) == []


def test_a_commit_is_not_published_in_a_space_that_has_stopped_meanwhile(
    space: spool.Space, watched: tuple[spool.Space, Meanwhile]
) -> None:
    writer, disk = watched
    disk.before("make_durable", space._store.stop, layout.COMMITTED)
    with pytest.raises(CommitUnknown):
        writer.put("orders", "one")
    assert space._store.counters.read().published == 0


def test_a_dead_writer_s_commit_is_not_published_in_a_space_that_has_stopped_meanwhile(
    processes: Processes, space: spool.Space, watched: tuple[spool.Space, Meanwhile]
) -> None:
    doomed, its_disk = processes.open()
    its_disk.dies_before("make_durable", lambda: doomed.put("orders", "one"), layout.COMMITTED)
    finisher, disk = watched
    disk.before("rename", space._store.stop, layout.ACTIVE)
    with pytest.raises((SpaceStopped, CommitUnknown)):
        finisher.put("orders", "two")
    assert not disk.waits_for("rename")
    assert space._store.counters.read().published == 0


def test_a_branch_does_not_vote_in_a_space_that_has_stopped(processes: Processes, space: spool.Space) -> None:
    branch = Transaction(space._store, space._undertaker, xid=XID, timeout=None)
    branch.put("orders", "one")
    processes.space()._store.stop()
    with pytest.raises(SpaceStopped):
        branch.prepare()
