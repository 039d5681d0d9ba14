"""``xa.dbapi``: the two-phase commit methods of PEP 249, on spaces and, for comparison, on psycopg with PostgreSQL."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pytest

import spool
import xa
from spool.disk.disk import Disk
from tests.at_once import AT_ONCE
from tests.children import exit_code, exit_code_of, start
from tests.forwarder.kills.destinations import postgresql
from xa import dbapi


class Mistake(Exception):
    """An application's own."""


# -- the promises of psycopg, kept by both ----------------------------------------------------------------------------


class Party(Protocol):
    """A space or a database that takes part in a two-phase commit."""

    errors: Any

    def connect(self) -> Any: ...

    def work(self, connection: Any) -> None:
        """Write one record."""

    def records(self) -> int:
        """Return how many records another program sees."""


class Spool:
    errors: Any = dbapi

    def __init__(self, path: Path) -> None:
        self.path = path
        with spool.create(path, defaults=AT_ONCE) as space:
            space.create_queue("out")
            space.create_queue("in")
            space.put_many("in", [b"1", b"2", b"3"])

    def connect(self) -> dbapi.Connection:
        return dbapi.connect(self.path)

    def work(self, connection: Any) -> None:
        connection.space.put("out", b"record")

    def records(self) -> int:
        with spool.open(self.path) as space:
            return space.stats("out").ready


class PostgreSQL:
    def __init__(self, where: str) -> None:
        import psycopg

        self.errors = psycopg
        self.connect = partial(psycopg.connect, where)
        with closing(self.connect()) as database:
            for xid in database.tpc_recover():
                database.tpc_rollback(xid)
            database.execute("drop table if exists records")
            database.execute("create table records (text text)")
            database.commit()

    def work(self, connection: Any) -> None:
        connection.execute("insert into records values ('record')")

    def records(self) -> int:
        with closing(self.connect()) as database:
            return int(database.execute("select count(*) from records").fetchone()[0])


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgresql() as where:
        yield where


@pytest.fixture(params=["spool", "PostgreSQL"])
def party(request: pytest.FixtureRequest, memory: Path) -> Party:
    if request.param == "spool":
        return Spool(memory / "space")
    pytest.importorskip("psycopg")
    return PostgreSQL(request.getfixturevalue("server"))


@pytest.fixture
def connection(party: Party) -> Iterator[Any]:
    with closing(party.connect()) as found:
        yield found


def begin(party: Party, connection: Any, gtrid: str = "gtrid") -> Any:
    """Write one record in a new two-phase transaction; returns its xid."""
    xid = connection.xid(1, gtrid, "bqual")
    connection.tpc_begin(xid)
    party.work(connection)
    return xid


def test_x03_a_prepared_transaction_is_invisible_until_its_commit(party: Party, connection: Any) -> None:
    begin(party, connection)
    assert (len(connection.tpc_recover()), party.records()) == (0, 0)
    connection.tpc_prepare()
    with closing(party.connect()) as other:
        assert len(other.tpc_recover()) == 1
    assert party.records() == 0
    connection.tpc_commit()
    assert (len(connection.tpc_recover()), party.records()) == (0, 1)


def test_x03_a_commit_without_a_vote_takes_one_phase(party: Party, connection: Any) -> None:
    begin(party, connection)
    connection.tpc_commit()
    assert (len(connection.tpc_recover()), party.records()) == (0, 1)


@pytest.mark.parametrize("prepared", [False, True])
def test_x03_a_rollback_before_or_after_the_vote_leaves_nothing(party: Party, connection: Any, prepared: bool) -> None:
    begin(party, connection)
    if prepared:
        connection.tpc_prepare()
    connection.tpc_rollback()
    assert (len(connection.tpc_recover()), party.records()) == (0, 0)
    begin(party, connection, "next")
    connection.tpc_commit()
    assert party.records() == 1


@pytest.mark.parametrize("recovered", [False, True])
@pytest.mark.parametrize("decision", ["tpc_commit", "tpc_rollback"])
def test_x03_another_connection_decides_a_prepared_transaction_by_its_xid(
    party: Party, connection: Any, decision: str, recovered: bool
) -> None:
    begin(party, connection)
    connection.tpc_prepare()
    connection.close()
    with closing(party.connect()) as other:
        xid = other.tpc_recover()[0] if recovered else other.xid(1, "gtrid", "bqual")
        getattr(other, decision)(xid)
        assert other.tpc_recover() == []
    assert party.records() == (decision == "tpc_commit")


def test_x03_the_text_of_an_xid_serves_as_the_xid(party: Party, connection: Any) -> None:
    text = str(connection.xid(1, "gtrid", "bqual"))
    connection.tpc_begin(text)
    party.work(connection)
    connection.tpc_prepare()
    connection.close()
    with closing(party.connect()) as other:
        [found] = other.tpc_recover()
        assert tuple(found) == (1, "gtrid", "bqual")
        assert str(found) == text
        other.tpc_commit(text)
    assert party.records() == 1


def test_x03_calls_that_do_not_fit_the_transaction_raise_programming_error_and_change_nothing(
    party: Party, connection: Any
) -> None:
    def refused(*calls: Callable[[], object]) -> None:
        for call in calls:
            with pytest.raises(party.errors.ProgrammingError):
                call()

    refused(connection.tpc_prepare, connection.tpc_commit, connection.tpc_rollback)
    connection.commit()
    connection.rollback()
    xid = begin(party, connection)
    within = (
        connection.commit,
        connection.rollback,
        partial(connection.tpc_begin, connection.xid(1, "second", "")),
        partial(connection.tpc_commit, xid),
        partial(connection.tpc_rollback, xid),
    )
    refused(*within)
    party.work(connection)
    connection.tpc_prepare()
    within_prepared = [call for call in within if getattr(call, "func", None) != connection.tpc_begin]
    refused(*within_prepared, connection.tpc_prepare)  # (psycopg does not refuse tpc_begin here)
    connection.tpc_commit()
    assert party.records() == 2
    refused(connection.tpc_prepare, connection.tpc_commit, connection.tpc_rollback)


@pytest.mark.parametrize("decision", ["tpc_commit", "tpc_rollback"])
def test_x03_an_xid_that_no_prepared_transaction_has_is_refused(party: Party, connection: Any, decision: str) -> None:
    with pytest.raises(party.errors.ProgrammingError):
        getattr(connection, decision)(connection.xid(1, "unknown", ""))


def test_x03_an_xid_in_use_is_refused(party: Party, connection: Any) -> None:
    begin(party, connection)
    connection.tpc_prepare()
    with closing(party.connect()) as other, pytest.raises(party.errors.ProgrammingError):
        begin(party, other)
        other.tpc_prepare()
    connection.tpc_commit()
    assert party.records() == 1


@pytest.mark.parametrize(
    "parts", [(0, "g", ""), (42, "gtrid", "bqual"), (2147483647, "x" * 64, "y" * 64), (1, " ~", "a b/c.d_e")]
)
def test_x03_an_xid_is_recovered_as_it_was(party: Party, connection: Any, parts: tuple[int, str, str]) -> None:
    xid = connection.xid(*parts)
    format_id, gtrid, bqual = xid
    assert (format_id, gtrid, bqual) == (xid.format_id, xid.gtrid, xid.bqual) == (xid[0], xid[1], xid[2]) == parts
    assert len(xid) == 3
    connection.tpc_begin(xid)
    party.work(connection)
    connection.tpc_prepare()
    with closing(party.connect()) as other:
        [found] = other.tpc_recover()
    assert tuple(found) == parts
    connection.tpc_rollback()


@pytest.mark.parametrize("parts", [(-1, "g", "b"), (2**31, "g", "b"), (1, "g" * 65, "b"), (1, "g", "b" * 65)], ids=repr)
def test_x03_an_xid_outside_the_limits_of_pep_249_is_refused(connection: Any, parts: tuple[int, str, str]) -> None:
    with pytest.raises(ValueError):
        connection.xid(*parts)


def test_x03_a_recovered_xid_tells_when_and_by_whom_the_transaction_was_prepared(party: Party, connection: Any) -> None:
    xid = begin(party, connection)
    assert (xid.prepared, xid.owner, xid.database) == (None, None, None)
    connection.tpc_prepare()
    with closing(party.connect()) as other:
        [found] = other.tpc_recover()
    assert abs(found.prepared - datetime.now(UTC)) < timedelta(minutes=1)
    assert isinstance(found.owner, str)
    assert isinstance(found.database, str)
    connection.tpc_rollback()


def test_x03_a_connection_that_is_closed_rolls_back_unless_it_is_prepared(party: Party) -> None:
    for prepared in (False, True):
        with closing(party.connect()) as connection:
            xid = begin(party, connection, f"prepared {prepared}")
            if prepared:
                connection.tpc_prepare()
    with closing(party.connect()) as other:
        assert [tuple(one) for one in other.tpc_recover()] == [tuple(xid)]
        other.tpc_commit(xid)
    assert party.records() == 1


def test_x03_a_closed_connection_refuses_every_call(party: Party, connection: Any) -> None:
    xid = connection.xid(1, "gtrid", "bqual")
    assert not connection.closed
    for _ in range(2):
        connection.close()
        assert connection.closed
    for call in (
        connection.commit,
        connection.rollback,
        partial(connection.tpc_begin, xid),
        partial(connection.tpc_commit, xid),
        partial(connection.tpc_rollback, xid),
        connection.tpc_recover,
    ):
        with pytest.raises((party.errors.OperationalError, party.errors.ProgrammingError)):
            call()


def test_x03_an_exception_that_leaves_the_block_of_a_connection_rolls_back(party: Party) -> None:
    with pytest.raises(Mistake), party.connect() as connection:
        begin(party, connection)
        raise Mistake
    assert connection.closed
    assert party.records() == 0


@pytest.mark.parametrize("prepared", [False, True])
def test_x03_a_block_that_ends_within_a_transaction_raises_programming_error(party: Party, prepared: bool) -> None:
    with pytest.raises(party.errors.ProgrammingError), party.connect() as connection:
        xid = begin(party, connection)
        if prepared:
            connection.tpc_prepare()
    connection.close()
    with party.connect() as other:
        assert [tuple(one) for one in other.tpc_recover()] == [tuple(xid)][:prepared]
        if prepared:
            other.tpc_rollback(xid)
    assert other.closed
    assert party.records() == 0


def test_x03_the_exceptions_of_pep_249_are_names_of_the_module_and_of_connections(
    party: Party, connection: Any
) -> None:
    bases = {"InterfaceError": "Error", "DatabaseError": "Error", "Error": "Exception", "Warning": "Exception"} | {
        f"{kind}Error": "DatabaseError"
        for kind in ("Data", "Operational", "Integrity", "Internal", "Programming", "NotSupported")
    }
    for name, base in bases.items():
        found = getattr(party.errors, name)
        assert getattr(connection, name) is found
        assert found.__bases__ == (getattr(party.errors, base, Exception),)
    assert party.errors.apilevel == "2.0"
    assert isinstance(party.errors.threadsafety, int)
    assert isinstance(party.errors.paramstyle, str)


# -- a coordinator that knows only PEP 249 ----------------------------------------------------------------------------


def together(parties: Mapping[Any, Any], work: Callable[[Party, Any], None]) -> None:
    """Do the work on each party in one transaction: all of it or nothing."""
    gtrid = uuid.uuid4().hex
    begun: list[Any] = []
    try:
        for number, (party, connection) in enumerate(parties.items()):
            connection.tpc_begin(connection.xid(1, gtrid, str(number)))
            begun.append(connection)
            work(party, connection)
        for connection in begun:
            connection.tpc_prepare()
    except BaseException:
        for connection in begun:
            connection.tpc_rollback()
        raise
    for connection in begun:
        connection.tpc_commit()


def test_x03_a_coordinator_of_pep_249_commits_both_parties_or_none(party: Party, tmp_path: Path) -> None:
    other = Spool(tmp_path / "other")
    parties: list[Party] = [other, party]
    with other.connect() as first, party.connect() as second:
        connections = {other: first, party: second}
        together(connections, lambda one, connection: one.work(connection))
        assert [one.records() for one in parties] == [1, 1]

        def fail_in_second(one: Party, connection: Any) -> None:
            one.work(connection)
            if one is party:
                raise Mistake

        with pytest.raises(Mistake):
            together(connections, fail_in_second)
        assert [one.records() for one in parties] == [1, 1]
        together(connections, lambda one, connection: one.work(connection))
        assert [one.records() for one in parties] == [2, 2]
        assert first.tpc_recover() == second.tpc_recover() == []


def test_x03_a_coordinator_can_roll_back_all_parties_after_a_refused_vote(memory: Path) -> None:
    """The rollback of the party whose vote failed succeeds, too."""
    parties = {Spool(memory / name): limit for name, limit in (("first", None), ("second", 0.01), ("third", None))}
    with ExitStack() as stack:
        connections = {
            party: stack.enter_context(dbapi.connect(party.path, timeout=limit)) for party, limit in parties.items()
        }

        def work_too_long(party: Party, connection: Any) -> None:
            party.work(connection)
            time.sleep(0.02)

        with pytest.raises(dbapi.TransactionRollback):
            together(connections, work_too_long)
        assert [party.records() for party in parties] == [0, 0, 0]
        assert [connection.tpc_recover() for connection in connections.values()] == [[], [], []]


# -- spaces only ------------------------------------------------------------------------------------------------------


@pytest.fixture
def queues(memory: Path) -> Spool:
    return Spool(memory / "space")


@pytest.fixture
def conn(queues: Spool) -> Iterator[dbapi.Connection]:
    with closing(queues.connect()) as found:
        yield found


def no_room(self: Disk, handle: int, offset: int, data: bytes) -> None:
    raise OSError(28, "No space left on device")


def attempts(space: spool.Space) -> list[tuple[object, int]]:
    return [(message.body, message.attempts) for message in space.browse("in")]


def test_x03_puts_and_gets_outside_of_a_transaction_commit_at_once(queues: Spool, conn: dbapi.Connection) -> None:
    assert conn.space.get("in").body == b"1"
    queues.work(conn)
    assert queues.records() == 1
    conn.rollback()
    conn.commit()
    assert queues.records() == 1
    assert attempts(conn.space) == [(b"2", 0), (b"3", 0)]


def test_x03_a_rollback_returns_the_messages_that_the_transaction_took(conn: dbapi.Connection) -> None:
    for prepared in (False, True):
        conn.tpc_begin(conn.xid(1, f"prepared {prepared}", ""))
        assert conn.space.get("in").body == b"1"
        if prepared:
            conn.tpc_prepare()
        conn.tpc_rollback()
    assert attempts(conn.space) == [(b"1", 2), (b"2", 0), (b"3", 0)]


def test_x03_after_the_vote_puts_and_gets_are_refused_until_the_decision(queues: Spool, conn: dbapi.Connection) -> None:
    for decision in (conn.tpc_commit, conn.tpc_rollback):
        begin(queues, conn, decision.__name__)
        conn.tpc_prepare()
        for call in (partial(conn.space.put, "out", b"late"), partial(conn.space.get, "in")):
            with pytest.raises(spool.ProtocolError, match="prepared"):
                call()
        with pytest.raises(dbapi.ProgrammingError, match="call tpc_commit"):
            begin(queues, conn, "second")
        decision()
        conn.space.put("out", b"on its own")
    assert [message.body for message in conn.space.browse("out")] == [b"record", b"on its own", b"on its own"]


def test_x03_a_transaction_without_work_ends_when_it_votes(conn: dbapi.Connection) -> None:
    for number, decision in enumerate((conn.tpc_commit, conn.tpc_rollback)):
        xid = conn.xid(1, f"empty {number}", "")
        conn.tpc_begin(xid)
        conn.tpc_prepare()
        assert conn.tpc_recover() == []
        with pytest.raises(spool.ProtocolError):
            conn.space.put("out", b"late")
        decision()
        conn.space.put("out", b"on its own")
        with pytest.raises(dbapi.ProgrammingError):
            conn.tpc_commit(xid)


def test_x03_a_transaction_that_took_too_long_is_rolled_back(queues: Spool) -> None:
    with dbapi.connect(queues.path, timeout=0.01) as conn:
        begin(queues, conn, "in one phase")
        time.sleep(0.02)
        with pytest.raises(dbapi.TransactionRollback) as caught:
            conn.tpc_commit()
        assert caught.value.code == xa.XA_RBTIMEOUT
        assert isinstance(caught.value.__cause__, xa.XAError)
        begin(queues, conn, "in two phases")
        time.sleep(0.02)
        with pytest.raises(dbapi.TransactionRollback):
            conn.tpc_prepare()
        with pytest.raises(spool.TransactionRolledBack):
            queues.work(conn)
        with pytest.raises(dbapi.ProgrammingError, match=r"call tpc_rollback\(\)"):
            conn.tpc_commit()
        conn.tpc_rollback()
        queues.work(conn)
    assert queues.records() == 1


def test_x03_the_parts_of_an_xid_are_checked(conn: dbapi.Connection) -> None:
    for parts in [("1", "g", "b"), (1, b"g", "b"), (1, "g", b"b"), (1, "g", None), (None, "g", "b")]:
        with pytest.raises(TypeError):
            conn.xid(*parts)  # type: ignore[arg-type]
    for parts in [(1, "", "b"), (1, "g\n", "b"), (1, "g", "\x7f"), (1, "ü", "b")]:
        with pytest.raises(ValueError, match="printable ASCII"):
            conn.xid(*parts)


def test_x03_a_text_or_a_value_that_is_no_xid_is_refused(conn: dbapi.Connection) -> None:
    for call in (conn.tpc_begin, conn.tpc_commit, conn.tpc_rollback):
        for text in ("", "order 17", "1.Zw", "42_Z3RyaWQ=_YnF1YWw=", "1.Zx.Yg"):
            with pytest.raises(dbapi.ProgrammingError, match=r"format\.gtrid\.bqual|written form") as caught:
                call(text)
            assert caught.value.code == xa.XAER_INVAL
        for value in (7, (1, "g", "b"), xa.Xid(1, b"g", b"b")):
            with pytest.raises(TypeError, match=r"Connection\.xid"):
                call(value)  # type: ignore[arg-type]
    with pytest.raises(dbapi.ProgrammingError):
        conn.tpc_begin(dbapi.TwoPhaseXid(1, "snowman ☃", ""))
    conn.commit()  # no transaction was begun


@pytest.mark.parametrize("decision", ["tpc_commit", "tpc_rollback"])
def test_x03_binary_xids_of_other_transaction_managers_are_recovered_and_decided(
    queues: Spool, conn: dbapi.Connection, decision: str
) -> None:
    branch = xa.Xid(131077, bytes(range(64)), bytes(range(192, 256)))
    rm = xa.ResourceManager(conn.space)
    with rm.branch(branch):
        queues.work(conn)
    rm.prepare(branch)
    with queues.connect() as other:
        [found] = other.tpc_recover()
        assert (found.gtrid.encode("latin-1"), found.bqual.encode("latin-1")) == branch[1:]
        assert str(found) == str(branch)
        getattr(other, decision)(found)
    assert queues.records() == (decision == "tpc_commit")


def test_x03_xids_compare_as_tuples_and_tell_the_space(queues: Spool, conn: dbapi.Connection) -> None:
    xid = begin(queues, conn)
    conn.tpc_prepare()
    [found] = conn.tpc_recover()
    assert found == xid == (1, "gtrid", "bqual")
    assert {found: "decision"}[xid] == "decision"
    assert found.database == str(queues.path)
    assert found.owner is not None
    assert str(os.getpid()) in found.owner
    conn.tpc_commit()


def test_x03_a_used_xid_is_refused_before_any_work(queues: Spool, conn: dbapi.Connection) -> None:
    xid = begin(queues, conn)
    conn.tpc_prepare()
    conn.tpc_commit()
    with pytest.raises(dbapi.ProgrammingError) as caught:
        conn.tpc_begin(xid)
    assert caught.value.code == xa.XAER_DUPID
    queues.work(conn)
    assert queues.records() == 2


def test_x03_a_transaction_begins_outside_of_transactions_of_the_space(queues: Spool, conn: dbapi.Connection) -> None:
    with conn.space.transaction():
        with pytest.raises(dbapi.ProgrammingError) as caught:
            conn.tpc_begin(conn.xid(1, "g", "b"))
        assert caught.value.code == xa.XAER_OUTSIDE
    begin(queues, conn)
    with conn.space.transaction():
        for call in (conn.tpc_prepare, conn.tpc_commit):
            with pytest.raises(dbapi.ProgrammingError, match="outside of other transactions"):
                call()
    conn.tpc_commit()
    assert queues.records() == 1


def test_x03_a_cursor_is_not_supported(conn: dbapi.Connection) -> None:
    with pytest.raises(dbapi.NotSupportedError, match="`space`"):
        conn.cursor()


def test_x03_a_directory_without_a_space_is_an_operational_error(tmp_path: Path) -> None:
    with pytest.raises(dbapi.OperationalError) as caught:
        dbapi.connect(tmp_path)
    assert isinstance(caught.value.__cause__, spool.NotASpace)


def test_x03_errors_of_puts_and_gets_are_those_of_the_space(conn: dbapi.Connection) -> None:
    conn.tpc_begin(conn.xid(1, "g", "b"))
    with pytest.raises(spool.QueueNotFound):
        conn.space.put("nowhere", b"")
    with pytest.raises(spool.Empty):
        conn.space.get("out")
    conn.tpc_commit()


def test_x03_a_connection_leaves_a_space_open_that_its_program_opened(queues: Spool) -> None:
    with spool.open(queues.path) as space:
        for prepared in (False, True):
            with closing(dbapi.Connection(space)) as conn:
                xid = begin(queues, conn, f"prepared {prepared}")
                if prepared:
                    conn.tpc_prepare()
            space.put("out", b"on its own")
        assert queues.records() == 2
        with dbapi.Connection(space) as conn:
            conn.tpc_commit(xid)
    assert queues.records() == 3
    assert conn.closed
    with queues.connect() as conn:
        pass
    with pytest.raises(spool.NotOpen):
        conn.space.put("out", b"late")


@pytest.mark.parametrize("full", [False, True])
def test_x03_a_connection_that_is_closed_returns_the_messages_that_it_took(
    queues: Spool, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    """Also if the disk is full, so that the failed attempt cannot be counted."""
    with spool.open(queues.path) as space:
        with monkeypatch.context() as patch, dbapi.Connection(space) as conn:
            conn.tpc_begin(conn.xid(1, "gtrid", ""))
            space.get("in")
            if full:
                patch.setattr(Disk, "write_at", no_room)
            conn.close()
        assert attempts(space) == [(b"1", int(not full)), (b"2", 0), (b"3", 0)]


def test_x03_a_failed_rollback_does_not_keep_a_connection_from_closing_its_space(
    queues: Spool, conn: dbapi.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: xa.ResourceManager, xid: xa.Xid) -> int:
        raise xa.XAError(xa.XAER_RMFAIL, "a failure")

    begin(queues, conn)
    monkeypatch.setattr(xa.ResourceManager, "rollback", failing)
    conn.close()
    assert conn.space.engine.closed
    assert queues.records() == 0


def test_x03_a_branch_that_is_decided_during_a_recovery_is_left_out(
    queues: Spool, conn: dbapi.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    xid = begin(queues, conn)
    conn.tpc_prepare()
    found = [xa.Xid(1, b"decided", b""), xa.Xid.parse(str(xid))]
    monkeypatch.setattr(xa.ResourceManager, "recover", lambda self: found)
    assert conn.tpc_recover() == [xid]
    conn.tpc_rollback()


def test_x03_a_connection_whose_space_was_closed_is_closed(queues: Spool, conn: dbapi.Connection) -> None:
    begin(queues, conn)
    conn.space.close()
    assert conn.closed
    with pytest.raises(dbapi.OperationalError, match="the connection is closed"):
        conn.tpc_commit()
    conn.close()
    assert queues.records() == 0


def test_x03_two_connections_to_one_space_take_turns_in_a_thread(queues: Spool) -> None:
    with spool.open(queues.path) as space, dbapi.Connection(space) as first, dbapi.Connection(space) as second:
        begin(queues, first, "first")
        with pytest.raises(dbapi.ProgrammingError) as caught:
            begin(queues, second, "second")
        assert caught.value.code == xa.XAER_PROTO
        first.tpc_prepare()
        begin(queues, second, "second")
        second.tpc_prepare()
        first.tpc_commit()
        second.tpc_commit()
        space.put("out", b"on its own")
    assert queues.records() == 3


def test_x03_tasks_with_connections_to_one_space_have_separate_transactions(queues: Spool) -> None:
    async def work(space: spool.Space, gtrid: str) -> None:
        with dbapi.Connection(space) as conn:
            begin(queues, conn, gtrid)
            await asyncio.sleep(0)
            queues.work(conn)
            conn.tpc_prepare()
            await asyncio.sleep(0)
            conn.tpc_commit() if gtrid == "first" else conn.tpc_rollback()

    async def work_side_by_side(space: spool.Space) -> None:
        await asyncio.gather(work(space, "first"), work(space, "second"))

    with spool.open(queues.path) as space:
        asyncio.run(work_side_by_side(space))
    assert queues.records() == 2


def test_x03_a_thread_whose_puts_are_not_part_of_the_transaction_cannot_commit_it(
    queues: Spool, conn: dbapi.Connection
) -> None:
    begin(queues, conn)
    seen: list[BaseException] = []

    def call_all() -> None:
        for call in (conn.tpc_prepare, conn.tpc_commit):
            try:
                call()
            except dbapi.ProgrammingError as error:
                seen.append(error)

    other = threading.Thread(target=call_all)
    other.start()
    other.join()
    assert ["thread or task" in str(error) for error in seen] == [True, True]
    assert queues.records() == 0
    conn.tpc_commit()
    assert queues.records() == 1


def test_x03_any_thread_may_roll_a_transaction_back(queues: Spool, conn: dbapi.Connection) -> None:
    begin(queues, conn)
    other = threading.Thread(target=conn.tpc_rollback)
    other.start()
    other.join()
    with pytest.raises(spool.TransactionRolledBack):
        queues.work(conn)
    begin(queues, conn, "next")
    conn.tpc_commit()
    assert queues.records() == 1


def test_x03_a_dropped_connection_releases_the_messages_that_it_took(queues: Spool) -> None:
    with spool.open(queues.path) as space:
        connections = [dbapi.Connection(space)]
        begin(queues, connections[0])
        space.get("in")
        with pytest.warns(ResourceWarning, match="has left the branch"):
            connections.clear()
        space.put("out", b"on its own")
        space._store.dropped.popleft()()
        assert [message.body for message in space.browse("out")] == [b"on its own"]
        assert attempts(space) == [(b"1", 1), (b"2", 0), (b"3", 0)]


@pytest.mark.slow
def test_x03_a_dropped_connection_that_opened_its_space_releases_the_messages_that_it_took(queues: Spool) -> None:
    """The program does nothing more with the space: its housekeeper rolls the transaction back within seconds."""
    program = f"""
import sys, warnings
from xa import dbapi
warnings.simplefilter("ignore")
conn = dbapi.connect({str(queues.path)!r})
conn.tpc_begin(conn.xid(1, "gtrid", ""))
conn.space.get("in")
del conn
print("dropped", flush=True)
sys.stdin.read()
"""
    command, pipe = [sys.executable, "-c", program], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as child, spool.open(queues.path) as space:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == b"dropped\n"
        found = [space.get("in", timeout=60) for _ in range(3)]
        child.stdin.close()
    assert sorted((message.body, message.attempts) for message in found) == [(b"1", 1), (b"2", 0), (b"3", 0)]


@pytest.mark.parametrize("decision", ["tpc_commit", "tpc_rollback"])
def test_x03_a_prepared_transaction_survives_its_process(queues: Spool, decision: str) -> None:
    def prepare_and_die() -> None:
        conn = queues.connect()
        begin(queues, conn)
        conn.space.get("in")
        conn.tpc_prepare()
        os.kill(os.getpid(), signal.SIGKILL)

    child = start(prepare_and_die)
    assert exit_code(child) == -signal.SIGKILL
    with queues.connect() as conn:
        assert [message.body for message in conn.space.browse("in")] == [b"2", b"3"]
        [xid] = conn.tpc_recover()
        assert xid == (1, "gtrid", "bqual")
        assert xid.owner is not None
        assert str(child) in xid.owner
        getattr(conn, decision)(xid)
        assert len(list(conn.space.browse("in"))) == (2 if decision == "tpc_commit" else 3)
    assert queues.records() == (decision == "tpc_commit")


def test_x03_a_transaction_without_a_vote_dies_with_its_process(queues: Spool) -> None:
    def work_and_die() -> None:
        conn = queues.connect()
        begin(queues, conn)
        conn.space.get("in")
        os.kill(os.getpid(), signal.SIGKILL)

    assert exit_code(start(work_and_die)) == -signal.SIGKILL
    with queues.connect() as conn:
        assert conn.tpc_recover() == []
        assert len(list(conn.space.browse("in"))) == 3
    assert queues.records() == 0


def test_x03_another_process_decides_a_transaction_only_after_the_vote(queues: Spool, conn: dbapi.Connection) -> None:
    xid = begin(queues, conn)

    def meet_it() -> None:
        with queues.connect() as other:
            assert other.tpc_recover() == []
            for call in (other.tpc_begin, other.tpc_commit, other.tpc_rollback):
                with pytest.raises(dbapi.ProgrammingError):
                    call(xid)

    def commit_it() -> None:
        with queues.connect() as other:
            other.tpc_commit(xid)

    assert exit_code_of(meet_it) == 0
    conn.tpc_prepare()
    assert exit_code_of(commit_it) == 0
    with pytest.raises(dbapi.ProgrammingError) as caught:
        conn.tpc_rollback()
    assert caught.value.code == xa.XAER_NOTA
    queues.work(conn)  # the transaction has ended
    assert queues.records() == 2


@pytest.mark.parametrize("of_this_connection", [False, True])
@pytest.mark.parametrize("decided", ["committed", "rolled back"])
def test_x03_the_decision_of_an_administrator_is_forgotten_or_contradicted(
    queues: Spool, conn: dbapi.Connection, decided: str, of_this_connection: bool
) -> None:
    committed = decided == "committed"

    def decide(xid: dbapi.TwoPhaseXid, *, commit: bool) -> None:
        decision = conn.tpc_commit if commit else conn.tpc_rollback
        decision() if of_this_connection else decision(xid)

    def prepared(gtrid: str) -> dbapi.TwoPhaseXid:
        with closing(queues.connect()) as other:
            one = conn if of_this_connection else other
            xid: dbapi.TwoPhaseXid = begin(queues, one, gtrid)
            one.tpc_prepare()
        rm.decide_heuristically(xa.Xid.parse(str(xid)), commit=committed)
        return xid

    with spool.open(queues.path) as space:
        rm = xa.ResourceManager(space)
        xid = prepared("the same decision")
        decide(xid, commit=committed)
        assert space.engine.decisions() == {}
        xid = prepared("the opposite decision")
        with pytest.raises(dbapi.IntegrityError, match=rf"{decided} .*transaction forget {xid}") as caught:
            decide(xid, commit=not committed)
        assert caught.value.code == (xa.XA_HEURCOM if committed else xa.XA_HEURRB)
        assert space.engine.decisions() == {str(xid): decided}
        conn.commit()  # the transaction has ended
        assert queues.records() == 2 * committed


def test_x03_a_commit_that_the_disk_refuses_can_be_repeated(
    queues: Spool, conn: dbapi.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(queues, conn)
    conn.tpc_prepare()

    with monkeypatch.context() as patch:
        patch.setattr(Disk, "write_at", no_room)
        with pytest.raises(dbapi.OperationalError) as caught:
            conn.tpc_commit()
        assert caught.value.code == xa.XA_RETRY
    conn.tpc_commit()
    begin(queues, conn, "in one phase")
    with monkeypatch.context() as patch:
        patch.setattr(Disk, "write_at", no_room)
        with pytest.raises(dbapi.TransactionRollback):
            conn.tpc_commit()
    conn.commit()  # the transaction has ended
    assert queues.records() == 1


@pytest.mark.parametrize(
    ("call", "verb"), [("tpc_begin", "start"), ("tpc_prepare", "prepare"), ("tpc_commit", "commit")]
)
def test_x03_an_interrupt_leaves_a_connection_that_can_be_rolled_back_or_has_committed(
    queues: Spool, conn: dbapi.Connection, monkeypatch: pytest.MonkeyPatch, call: str, verb: str
) -> None:
    """Ctrl-C arrives just after the resource manager has done the call."""
    genuine = getattr(xa.ResourceManager, verb)

    def interrupted(*arguments: Any) -> object:
        result = genuine(*arguments)
        signal.raise_signal(signal.SIGINT)
        return result

    monkeypatch.setattr(xa.ResourceManager, verb, interrupted)

    def work() -> None:
        begin(queues, conn)
        conn.tpc_prepare()
        conn.tpc_commit()

    with pytest.raises(KeyboardInterrupt):
        work()
    monkeypatch.undo()
    if call != "tpc_commit":
        conn.tpc_rollback()
    assert conn.tpc_recover() == []
    queues.work(conn)
    assert queues.records() == (2 if call == "tpc_commit" else 1)
