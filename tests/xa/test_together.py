"""Branches that are decided at the same time: one commit and one flush for all, and no branch waits for another's."""

import pytest

import xa
from spool.model import layout
from spool.transactions.two_phase import UnknownBranch, commit_prepared
from tests.held import PATIENT_SECONDS, Caller, Gathering, HeldDisk


def xid(name: bytes) -> xa.Xid:
    return xa.Xid(7, name, b"branch")


def voted(rm: xa.ResourceManager, one: xa.Xid, queue: str = "replies") -> None:
    """A branch with one put, which has voted."""
    rm.start(one)
    rm.space.put(queue, one.gtrid)
    rm.end(one)
    assert rm.prepare(one) == xa.XA_OK


def test_what_is_decided_during_a_flush_shares_the_next_one(gathering: Gathering) -> None:
    """With puts as well, each branch with its own messages."""
    rm = xa.ResourceManager(gathering.space)
    for name in (b"one", b"two", b"three"):
        voted(rm, xid(name))
    before = gathering.space._store.shared.counters.read().published
    with gathering.held():
        callers = [gathering.join(lambda name=name: rm.commit(xid(name))) for name in (b"one", b"two", b"three")]
        callers.append(gathering.join(lambda: gathering.space.put("replies", b"a put")))
    assert [caller.error for caller in callers] == [None] * 4
    assert gathering.space._store.shared.counters.read().published == before + 2, "the held one, and one for all four"
    bodies = {message.id: message.body for message in gathering.space.browse("replies")}
    assert sorted(bodies.values()) == [b"a put", b"one", b"three", b"two"]
    assert bodies[callers[-1].result] == b"a put"
    assert gathering.space.check() == []


def test_a_branch_that_was_decided_meanwhile_keeps_no_other_from_its_commit(gathering: Gathering) -> None:
    rm, engine = xa.ResourceManager(gathering.space), gathering.space.engine
    for name in (b"one", b"two"):
        voted(rm, xid(name))
    with gathering.held():
        first = gathering.join(lambda: rm.commit(xid(b"one")))
        again = gathering.join(lambda: commit_prepared(engine, xid(b"one"), vote_known=True))
        rolled_back = gathering.join(lambda: rm.commit(xid(b"two")))
        gathering.disk.unlink(layout.prepared(xid(b"two")))
    assert first.error is None
    assert isinstance(again.error, UnknownBranch)
    assert getattr(rolled_back.error, "code", None) == xa.XAER_NOTA
    assert [message.body for message in gathering.space.browse("replies")] == [b"one"]


def test_no_branch_waits_for_another_ones_vote(gathering: Gathering, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one is flushed, another of the same resource manager begins, votes and is committed."""
    rm = xa.ResourceManager(gathering.space)
    others: list[Caller] = []
    durable = HeldDisk.make_durable

    def commit_other() -> None:
        voted(rm, xid(b"other"))
        rm.commit(xid(b"other"))

    def flush(disk: HeldDisk, handle: int, directory: str, **how: bool) -> None:
        if directory == "prepared" and not others:
            others.append(Caller(commit_other))
            others[0].start()
            others[0].join(PATIENT_SECONDS)
        durable(disk, handle, directory, **how)

    monkeypatch.setattr(HeldDisk, "make_durable", flush)
    voted(rm, xid(b"slow"))
    assert not others[0].is_alive()
    assert others[0].error is None
    assert rm.recover() == [xid(b"slow")]


def test_calls_about_one_branch_come_one_after_the_other(gathering: Gathering, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rollback during the vote's flush waits for the vote, and is about a prepared branch."""
    rm = xa.ResourceManager(gathering.space)
    late: list[Caller] = []
    durable = HeldDisk.make_durable

    def flush(disk: HeldDisk, handle: int, directory: str, **how: bool) -> None:
        durable(disk, handle, directory, **how)
        if directory == "prepared":
            late.append(Caller(lambda: rm.rollback(xid(b"one"))))
            late[0].start()
            late[0].join(0.05)
            assert late[0].is_alive()

    monkeypatch.setattr(HeldDisk, "make_durable", flush)
    voted(rm, xid(b"one"))
    late[0].join(PATIENT_SECONDS)
    assert (late[0].error, late[0].result) == (None, xa.XA_OK)
    assert rm.recover() == []
    assert list(gathering.space.browse("replies")) == []
