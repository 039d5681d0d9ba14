"""The refusals of a connection to a space, its users, and the records that it leaves when closed, dropped or killed."""

import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

import spool
import xa
from spool.disk.disk import Disk
from tests.children import exit_code_of, let_die
from tests.full import no_room
from tests.xa.dbapi.parties import Spool, attempts, begin
from xa import dbapi


def test_x03_a_cursor_is_not_supported(conn: dbapi.Connection) -> None:
    with pytest.raises(dbapi.NotSupportedError, match="`space`"):
        conn.cursor()


def test_x03_a_directory_without_a_space_is_an_operational_error(tmp_path: Path) -> None:
    with pytest.raises(dbapi.OperationalError) as caught:
        dbapi.connect(tmp_path)
    assert isinstance(caught.value.__cause__, spool.NotASpace)


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

    child = let_die(prepare_and_die)
    with queues.connect() as conn:
        assert [message.body for message in conn.space.browse("in")] == [b"2", b"3"]
        [xid] = conn.tpc_recover()
        assert xid == (1, "gtrid", "bqual")
        assert xid.database == str(queues.path)
        assert xid.owner is not None
        assert str(child) in xid.owner
        getattr(conn, decision)(xid)
        assert len(list(conn.space.browse("in"))) == (2 if decision == "tpc_commit" else 3)
    assert queues.records() == (decision == "tpc_commit")


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
