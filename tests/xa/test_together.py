"""Branches that are decided at the same time: one commit and one flush for all, and no branch waits for another's."""

from collections.abc import Callable

import pytest

import xa
from spool.model import layout
from spool.transactions.two_phase import UnknownBranch, commit_prepared
from tests.held import PATIENT_SECONDS, Caller, Gathering, HeldDisk
from tests.xa.branches import voted, xid


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
    rm, engine = xa.ResourceManager(gathering.space), gathering.space._core
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

    def commit_other() -> None:
        voted(rm, xid(b"other"))
        rm.commit(xid(b"other"))

    other = Caller(commit_other)

    def let_it_end() -> None:
        other.start()
        other.join(PATIENT_SECONDS)

    beside_a_vote(monkeypatch, let_it_end, flushed=False)
    voted(rm, xid(b"slow"))
    assert not other.is_alive()
    assert other.error is None
    assert rm.recover() == [xid(b"slow")]


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
