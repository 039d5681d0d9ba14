"""Branches that are decided at the same time: one commit and one flush for all, and no branch waits for another's."""

import errno
from collections.abc import Callable

import pytest

import xa
from spool.disk.disk import FlushFailed
from spool.log.adoption import UnknownBranch
from spool.model import layout
from spool.runtime.async_exceptions import mark_delivered
from spool.transactions.two_phase import commit_prepared
from tests import door
from tests.branches import begun, voted, xid
from tests.held import PATIENT_SECONDS, Caller, Gathering, HeldDisk


def beside_a_vote(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object], *, flushed: bool) -> None:
    """Let something happen once beside the flush of a vote: behind it if ``flushed``, else before it."""
    durable, acts = HeldDisk.make_durable, [act]

    def flush(disk: HeldDisk, handle: int, directory: str, **how: bool) -> None:
        if flushed:
            durable(disk, handle, directory, **how)
        if directory == layout.PREPARED and acts:
            acts.pop()()
        if not flushed:
            durable(disk, handle, directory, **how)

    monkeypatch.setattr(HeldDisk, "make_durable", flush)


def test_decisions_during_a_flush_share_the_next_one(gathering: Gathering) -> None:
    """With puts as well, each branch with its own messages."""
    rm = xa.ResourceManager(gathering.space)
    for name in (b"one", b"two", b"three"):
        voted(rm, xid(name))
    before = door.counters(gathering.space).published
    with gathering.held():
        callers = [gathering.join(lambda name=name: rm.commit(xid(name))) for name in (b"one", b"two", b"three")]
        callers.append(gathering.join(lambda: gathering.space.put("replies", b"a put")))
    assert [caller.error for caller in callers] == [None] * 4
    assert door.counters(gathering.space).published == before + 2, "the held one, and one for all four"
    bodies = {message.id: message.body for message in gathering.space.browse("replies")}
    assert sorted(bodies.values()) == [b"a put", b"one", b"three", b"two"]
    assert bodies[callers[-1].result] == b"a put"
    assert gathering.space.check() == []


def test_a_branch_that_was_decided_meanwhile_keeps_no_other_from_its_commit(gathering: Gathering) -> None:
    rm, engine = xa.ResourceManager(gathering.space), door.core(gathering.space)
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


def test_votes_that_come_during_a_flush_are_flushed_together(gathering: Gathering) -> None:
    """All files have their names in ``prepared/`` before the first flush, and one of them is refused alone."""
    rm, flushed = xa.ResourceManager(gathering.space), list[list[str]]()
    for name in (b"one", b"two", b"three"):
        begun(rm, xid(name), name)
    gathering.disk.create(layout.prepared(xid(b"two")))
    with gathering.held():
        callers = [gathering.join(lambda name=name: rm.prepare(xid(name))) for name in (b"one", b"two", b"three")]
        put = gathering.join(lambda: gathering.space.put("replies", b"a put"))
        gathering.disk.on_vote = lambda: flushed.append(gathering.disk.names(layout.PREPARED))
    assert [type(caller.error) for caller in callers] == [type(None), xa.XAError, type(None)]
    assert put.error is None
    assert [len(names) for names in flushed] == [3, 3], "two votes, and the name that was there"
    gathering.disk.unlink(layout.prepared(xid(b"two")))
    for name in (b"one", b"three"):
        rm.commit(xid(name))
    assert sorted(message.body for message in gathering.space.browse("replies")) == [b"a put", b"one", b"three"]
    assert gathering.space.check() == []


def test_after_a_failed_flush_no_other_vote_of_the_group_is_flushed(gathering: Gathering) -> None:
    """All are withdrawn: the next flush may find no name to write, and then it reports no error."""
    rm, flushes = xa.ResourceManager(gathering.space), list[str]()
    for name in (b"one", b"two"):
        begun(rm, xid(name), name)

    def fail() -> None:
        flushes.append("flush")
        raise FlushFailed(errno.EIO, "the disk is broken")

    with gathering.held():
        callers = [gathering.join(lambda name=name: rm.prepare(xid(name))) for name in (b"one", b"two")]
        gathering.disk.on_vote = fail
    assert flushes == ["flush"]
    assert [getattr(caller.error, "code", None) for caller in callers] == [xa.XA_RBROLLBACK] * 2
    assert gathering.disk.names(layout.PREPARED) == []


def test_a_leader_that_is_interrupted_leaves_each_vote_to_its_thread(gathering: Gathering) -> None:
    rm = xa.ResourceManager(gathering.space)
    for name in (b"one", b"two"):
        begun(rm, xid(name), name)

    def interrupt() -> None:
        gathering.disk.on_vote = lambda: None
        error = KeyboardInterrupt()
        mark_delivered(error)
        raise error

    with gathering.held():
        interrupted, voter = [gathering.join(lambda name=name: rm.prepare(xid(name))) for name in (b"one", b"two")]
        gathering.disk.on_vote = interrupt
    assert isinstance(interrupted.error, KeyboardInterrupt)
    assert (voter.error, voter.result) == (None, xa.XA_OK)
    rm.commit(xid(b"two"))
    assert [message.body for message in gathering.space.browse("replies")] == [b"two"]


def test_calls_about_one_branch_come_one_after_the_other(gathering: Gathering, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rollback during the vote's flush waits for the vote, and is about a prepared branch."""
    rm = xa.ResourceManager(gathering.space)
    late = Caller(lambda: rm.rollback(xid(b"one")))

    def see_it_wait() -> None:
        late.start()
        late.join(0.05)
        assert late.is_alive()

    beside_a_vote(monkeypatch, see_it_wait, flushed=True)
    voted(rm, xid(b"one"))
    late.join(PATIENT_SECONDS)
    assert (late.error, late.result) == (None, xa.XA_OK)
    assert rm.recover() == []
    assert list(gathering.space.browse("replies")) == []
