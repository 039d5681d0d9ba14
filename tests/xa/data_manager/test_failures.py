"""A zope transaction of a queue space keeps its promises where another party, the disk or a vote fails."""

import errno
import itertools
import logging
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import transaction

import spool
import xa.zope
from spool.disk.disk import Disk, FlushFailed
from spool.engine import CoordinatedTransaction, Engine
from tests.branches import Mistake
from tests.shown import bodies
from tests.xa.data_manager.outcomes import attempts, check_committed, check_ended, check_rolled_back, undecided, work
from tests.xa.data_manager.parties import Other, commit_with, fail
from xa.zope import join


def finish_unfinished() -> None:
    """Wait until no thread repeats a commit."""
    for thread in threading.enumerate():
        if isinstance(thread, xa.zope.repetition.UnfinishedCommit):
            thread.join(60)
            assert not thread.is_alive()


# -- other parties fail -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("step", "key"), [("tpc_begin", "a"), ("commit", "~"), ("tpc_vote", "a"), ("tpc_vote", "~")])
def test_x03_a_failure_of_another_party_before_the_finish_rolls_back(space: spool.Space, key: str, step: str) -> None:
    join(space)
    other = Other(key, step, fail)
    transaction.get().join(other)
    work(space)
    with pytest.raises(Mistake):
        transaction.commit()
    assert space.engine.joined() is None, "even before the abort"
    assert other.steps[-1] == "tpc_abort"
    check_rolled_back(space)
    transaction.abort()
    check_rolled_back(space)


@pytest.mark.parametrize(("key", "committed"), [("a", False), ("~", True)], ids=["before us", "after us"])
def test_x03_a_failure_of_another_party_in_the_finish(space: spool.Space, key: str, committed: bool) -> None:
    """zope's ``transaction`` then aborts the parties that have not finished: this breaks the promise of that party."""
    join(space)
    transaction.get().join(Other(key, "tpc_finish", fail))
    work(space)
    with pytest.raises(Mistake):
        transaction.commit()
    if committed:
        check_committed(space)
    else:
        check_rolled_back(space)
    transaction.abort()


def test_x03_a_message_whose_transactions_always_fail_after_our_vote_reaches_its_last_attempt(space: spool.Space):
    space.create_queue("failed")
    space.create_queue("limited", retries=1, error_queue="failed")
    space.put("limited", "poison")
    for _ in range(2):
        join(space)
        transaction.get().join(Other("~", "tpc_vote", fail))
        space.get("limited")
        with pytest.raises(Mistake):
            transaction.commit()
        transaction.abort()
    assert bodies(space, "failed") == ["poison"]


def test_x03_a_vote_that_fails_fails_the_commit_and_undoes_earlier_votes(space: spool.Space) -> None:
    space.create_queue("small", max_messages=1)
    join(space)
    work(space)
    transaction.savepoint()
    space.put("small", "fits")
    other = Other("~")
    transaction.get().join(other)
    space.put("small", "of another program", transaction=None)
    with pytest.raises(spool.Full):
        transaction.commit()
    assert other.steps[-2:] == ["abort", "tpc_abort"]
    check_rolled_back(space)


def test_x03_a_limit_that_is_lowered_after_the_vote_does_not_undo_the_vote(space: spool.Space) -> None:
    join(space)
    transaction.get().join(Other("~", "tpc_vote", lambda: space.change_queue("out", max_messages=1)))
    for body in ("a", "b", "c"):
        space.put("out", body)
        transaction.savepoint(optimistic=True)
    transaction.commit()
    assert bodies(space, "out") == ["a", "b", "c"]
    check_ended(space)


# -- failures after the vote ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("branches", [1, 3])
def test_x03_a_full_disk_at_the_finish_delays_the_commit(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, branches: int
) -> None:
    """No error is raised, no promise is lost, and the commit follows once the disk has room."""
    refused = threading.Event()

    def full(self: Disk, handle: int, offset: int, data: bytes) -> None:
        if threading.current_thread().name == "xaspool zope":
            refused.set()
        raise OSError(errno.ENOSPC, "no space left on device")

    with caplog.at_level(logging.ERROR, "spool"):
        commit_with(lambda: monkeypatch.setattr(Disk, "write_at", full), space, branches)
    assert "a zope transaction is decided" in caplog.text
    assert refused.wait(60), "a thread repeats the commit"
    assert space.stats("in").in_doubt == 1, "the messages of the transaction remain held"
    assert space.engine.resolve_orphans() == []
    monkeypatch.undo()
    finish_unfinished()
    assert bodies(space, "out") == ["1", *["more"] * (branches - 1)]
    assert attempts(space) == {"2": 0, "3": 0}
    check_ended(space)


@pytest.mark.parametrize("branches", [1, 3])
def test_x03_a_space_that_is_closed_after_the_vote_is_opened_for_the_commit(
    space: spool.Space, branches: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "spool"):
        commit_with(space.close, space, branches)
    assert "a zope transaction is decided" in caplog.text
    finish_unfinished()
    with spool.open(space.path) as again:
        assert bodies(again, "out") == ["1", *["more"] * (branches - 1)]
        assert attempts(again) == {"2": 0, "3": 0}
        check_ended(again)


@pytest.mark.parametrize("decided", [False, True], ids=["before the number", "after the number"])
def test_x03_a_failed_flush_after_the_vote_delays_the_commit_until_the_space_is_opened_again(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch, quiet: None, decided: bool
) -> None:
    """The space stops. Whichever process opens it next must not roll the branches back."""
    refused = threading.Event()

    broken = mock.Mock(side_effect=FlushFailed(errno.EIO, "the disk does not answer"))

    def stop() -> None:
        monkeypatch.setattr(Disk, "make_durable", broken)
        if not decided:  # another thread's put stops the space
            with pytest.raises(spool.DiskFailure):
                space.put("out", "of another program", transaction=None)
            monkeypatch.setattr(Disk, "make_durable", make_durable)

    def attempt(self: xa.zope.repetition.UnfinishedCommit) -> bool:
        refused.set()
        return attempted(self)

    make_durable, attempted = Disk.make_durable, xa.zope.repetition.UnfinishedCommit._attempt
    monkeypatch.setattr(xa.zope.repetition.UnfinishedCommit, "_attempt", attempt)
    commit_with(stop, space)
    monkeypatch.setattr(Disk, "make_durable", make_durable)
    assert refused.wait(60)
    space.close()
    with spool.open(space.path) as again:
        finish_unfinished()
        assert [body for body in bodies(again, "out") if body != "of another program"] == ["1"]
        assert attempts(again) == {"2": 0, "3": 0}
        check_ended(again)


def test_x03_a_decision_of_an_administrator_against_the_votes_is_logged(
    space: spool.Space, caplog: pytest.LogCaptureFixture
) -> None:
    def decide() -> None:
        [xid] = undecided(space)
        space.engine.decide(xid, commit=False)

    with caplog.at_level(logging.ERROR, "spool"):
        commit_with(decide, space)
        finish_unfinished()
    assert "an administrator rolled back the branches" in caplog.text
    assert bodies(space, "out") == []
    assert "1" in bodies(space, "in")


def test_x03_a_space_that_was_removed_after_the_vote_ends_the_repetition(
    space: spool.Space, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def remove() -> None:
        space.close()
        os.rename(tmp_path / "space", tmp_path / "elsewhere")

    commit_with(remove, space)
    finish_unfinished()
    assert "are lost" in caplog.text


def test_x03_no_thread_for_the_repetition_raises_nothing(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refuse = mock.Mock(side_effect=RuntimeError("can't start new thread"))

    broken = mock.Mock(side_effect=spool.DiskFailure(errno.EIO, "the disk does not answer"))

    with monkeypatch.context() as patched:
        patched.setattr(Engine, "commit_together", broken)
        patched.setattr(xa.zope.repetition.UnfinishedCommit, "start", refuse)
        commit_with(lambda: None, space)
    assert "no thread can repeat the commit" in caplog.text


def test_x03_a_rollback_that_fails_after_the_vote_raises_nothing(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The coordinator has ended, so the next process that meets the branch rolls it back."""

    broken = mock.Mock(side_effect=spool.DiskFailure(errno.EIO, "the disk does not answer"))

    found = join(space)
    work(space)
    found.tpc_vote(transaction.get())
    with monkeypatch.context() as patched:
        patched.setattr(Engine, "roll_back_branch", broken)
        transaction.abort()
    assert "is rolled back later: the disk does not answer" in caplog.text
    assert space.stats("in").in_doubt == 1
    assert len(space.engine.resolve_orphans()) == 1
    check_rolled_back(space, failed=0)


def interrupting(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with a Ctrl-C before its first call. (A second Ctrl-C would tear the call.)"""
    first = itertools.count()

    def interrupted(*args: Any, **options: Any) -> Any:
        if next(first) == 0:
            signal.raise_signal(signal.SIGINT)
        return call(*args, **options)

    return interrupted


@pytest.mark.unled("Ctrl-C ends the wait for the leader; a thread of this process then repeats the commit")
def test_x03_ctrl_c_in_the_finish_comes_after_the_commit(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    join(space)
    work(space)
    monkeypatch.setattr(Engine, "commit_together", interrupting(Engine.commit_together))
    with pytest.raises(KeyboardInterrupt):
        transaction.commit()
    check_committed(space)
    assert "is decided, but" not in caplog.text
    assert not space.engine.closed


@pytest.mark.parametrize(("call", "end"), [("prepare", transaction.commit), ("rollback", transaction.abort)])
def test_x03_ctrl_c_in_the_vote_or_in_the_abort_rolls_back(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch, call: str, end: Callable[[], None]
) -> None:
    join(space)
    work(space)
    transaction.savepoint()
    space.put("out", "more")
    with monkeypatch.context() as patched:
        patched.setattr(CoordinatedTransaction, call, interrupting(getattr(CoordinatedTransaction, call)))
        with pytest.raises(KeyboardInterrupt):
            end()
    check_rolled_back(space)
