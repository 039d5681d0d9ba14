"""The resource manager: X/Open's calls, states and codes, on a real space."""

from pathlib import Path

import pytest

import spool
import xa
from spool.disk.disk import Disk
from tests.branches import code_of, voted, xid
from tests.full import no_room
from tests.meanwhile import Processes
from tests.spaces import space_with

space = space_with("in", "out", messages={"in": [b"1", b"2", b"3"]})


@pytest.fixture
def rm(space: spool.Space) -> xa.ResourceManager:
    return xa.ResourceManager(space)


def work(rm: xa.ResourceManager, one: xa.Xid) -> bytes:
    """Take one message and put one, in the branch."""
    rm.start(one, xa.TMNOFLAGS)
    body: bytes = rm.space.get("in").body
    rm.space.put("out", body + b"!")
    rm.end(one, xa.TMSUCCESS)
    return body


def test_two_phase_commit_makes_all_of_it_happen(rm: xa.ResourceManager) -> None:
    assert work(rm, xid()) == b"1"
    assert rm.prepare(xid()) == xa.XA_OK
    assert rm.space.stats("in").in_doubt == 1
    assert rm.space.stats("out").ready == 0, "a prepared put is invisible"
    assert rm.commit(xid()) == xa.XA_OK
    assert rm.space.get("out").body == b"1!"
    assert rm.space.get("in").body == b"2"


def test_rollback_before_and_after_the_vote_leaves_nothing_but_a_counted_try(rm: xa.ResourceManager) -> None:
    for prepared in (False, True):
        work(rm, xid())
        if prepared:
            rm.prepare(xid())
        assert rm.rollback(xid()) == xa.XA_OK
        assert rm.space.stats("out").ready == 0
    assert [m.attempts for m in rm.space.browse("in")] == [2, 0, 0]


def test_e03_in_doubt_branches_stay_held_over_any_number_of_restarts(rm: xa.ResourceManager, tmp_path: Path) -> None:
    work(rm, xid())
    rm.prepare(xid())
    rm.space.close()
    for _ in range(3):
        with spool.open(tmp_path / "space") as space:
            assert space.recovery.in_doubt == [str(xid())]
            assert space.stats("in").in_doubt == 1
            assert [m.body for m in space.browse("in")] == [b"2", b"3"]
            assert list(space.browse("out")) == []
    with spool.open(tmp_path / "space") as space:
        again = xa.ResourceManager(space)
        assert again.recover() == [xid()]
        again.commit(xid())
        assert again.recover() == []
        assert [m.body for m in space.browse("out")] == [b"1!"]


@pytest.mark.parametrize("decided", [True, False])
def test_an_xid_that_another_process_uses_up_meanwhile_is_refused(decided: bool) -> None:
    processes = Processes()
    first, (other, disk) = xa.ResourceManager(processes.space()), processes.open()

    def use_up() -> None:
        voted(first, xid(), "orders")
        if decided:
            first.commit(xid())

    disk.before("lock", use_up)
    assert code_of(xa.ResourceManager(other).start, xid()) == xa.XAER_DUPID
    assert not disk.waits_for("lock")
    if not decided:
        first.commit(xid())
    assert [message.body for message in other.browse("orders")] == [xid().gtrid]


def test_a_caller_in_a_transaction_of_its_own_is_outside(rm: xa.ResourceManager) -> None:
    with rm.space.transaction():
        assert code_of(rm.start, xid()) == xa.XAER_OUTSIDE


@pytest.mark.parametrize("commit", [True, False])
def test_an_administrators_decision_is_remembered_until_forget(rm: xa.ResourceManager, commit: bool) -> None:
    work(rm, xid())
    rm.prepare(xid())
    rm.decide_heuristically(xid(), commit=commit)
    path = rm.space.path
    rm.space.close()
    with spool.open(path) as space:
        again = xa.ResourceManager(space)
        assert again.recover() == [xid()], "its transaction manager learns the decision, and calls forget"
        assert code_of(again.start, xid()) == xa.XAER_DUPID
        with pytest.raises(xa.XAError):
            again.decide_heuristically(xid(), commit=not commit)
        code = xa.XA_HEURCOM if commit else xa.XA_HEURRB
        assert code_of(again.commit, xid()) == code
        assert code_of(again.rollback, xid()) == code
        assert space.stats("out").ready == (1 if commit else 0)
        assert again.forget(xid()) == xa.XA_OK
        assert again.recover() == []
        assert code_of(again.forget, xid()) == xa.XAER_NOTA
        assert code_of(again.commit, xid()) == xa.XAER_NOTA


@pytest.mark.parametrize(
    "bad", [xa.Xid(-1, b"g", b""), xa.Xid(1, b"", b""), xa.Xid(1, b"g" * 65, b""), xa.Xid(1, b"g", b"b" * 65)]
)
def test_xids_outside_xopens_limits_are_invalid(rm: xa.ResourceManager, bad: xa.Xid) -> None:
    for call in (rm.start, rm.end, rm.prepare, rm.commit, rm.rollback, rm.forget):
        assert code_of(call, bad) == xa.XAER_INVAL


def test_a_commit_that_cannot_finish_is_retry_and_never_rmerr(rm: xa.ResourceManager, monkeypatch: pytest.MonkeyPatch):
    work(rm, xid())
    rm.prepare(xid())
    work(rm, xid(b"one phase"))
    monkeypatch.setattr(Disk, "write_at", no_room)
    assert code_of(rm.commit, xid()) == xa.XA_RETRY
    assert code_of(rm.commit, xid(b"one phase"), xa.TMONEPHASE) == xa.XA_RBROLLBACK, "X/Open allows no XA_RETRY here"
    monkeypatch.undo()
    assert rm.commit(xid()) == xa.XA_OK
    assert code_of(rm.commit, xid(b"one phase")) == xa.XAER_NOTA
    assert rm.space.get("out").body == b"1!"


@pytest.mark.parametrize("format_id", [0x58500001, 0x58500002])
def test_a_format_id_of_the_space_itself_is_refused(rm: xa.ResourceManager, format_id: int) -> None:
    """A prepared branch with such an xid would be rolled back when its process ends."""
    assert code_of(rm.start, xa.Xid(format_id, b"1", b"")) == xa.XAER_INVAL
    assert code_of(rm.prepare, xa.Xid(format_id, b"1", b"")) == xa.XAER_NOTA
