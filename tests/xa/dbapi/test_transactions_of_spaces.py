"""The two-phase commit methods on a space: votes, decisions, xids, refused calls, full disks and interrupts."""

import signal
import time
from contextlib import closing
from functools import partial
from typing import Any

import pytest

import spool
import xa
from spool.disk.disk import Disk
from tests.full import no_room
from tests.xa.dbapi.parties import Spool, attempts, begin
from xa import dbapi


def test_x03_puts_and_gets_outside_of_a_transaction_commit_at_once(queues: Spool, conn: dbapi.Connection) -> None:
    assert conn.space.get("in").body == b"1"
    queues.work(conn)
    assert queues.records() == 1
    conn.rollback()
    conn.commit()
    assert queues.records() == 1
    assert attempts(conn.space) == [(b"2", 0), (b"3", 0)]


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


def test_x03_a_branch_that_is_decided_during_a_recovery_is_left_out(
    queues: Spool, conn: dbapi.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    xid = begin(queues, conn)
    conn.tpc_prepare()
    found = [xa.Xid(1, b"decided", b""), xa.Xid.parse(str(xid))]
    monkeypatch.setattr(xa.ResourceManager, "recover", lambda self: found)
    assert conn.tpc_recover() == [xid]
    conn.tpc_rollback()


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
