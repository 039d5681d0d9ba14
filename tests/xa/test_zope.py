"""Queue spaces in the transactions of zope's package ``transaction``."""

import errno
import gc
import itertools
import logging
import os
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest

import spool
from spool.disk.disk import Disk, FlushFailed
from spool.engine import CoordinatedTransaction, Engine
from spool.log.sequence import settle_all
from spool.model.xid import Xid
from spool.store.store import Store
from tests.at_once import AT_ONCE
from tests.children import exit_code, exit_code_of, start

pytest.importorskip("transaction")

import transaction
from transaction.interfaces import (
    DoomedTransaction,
    IDataManagerSavepoint,
    InvalidSavepointRollbackError,
    IRetryDataManager,
    ISavepointDataManager,
    ISynchronizer,
    TransactionFailedError,
    TransientError,
)
from zope.interface.verify import verifyClass, verifyObject

import xa.zope
from xa.zope import join


@pytest.fixture
def space(tmp_path: Path) -> Iterator[spool.Space]:
    with spool.create(tmp_path / "space", defaults=AT_ONCE) as space:
        space.create_queue("in")
        space.create_queue("out")
        space.put_many("in", ["1", "2", "3"])
        yield space


@pytest.fixture(autouse=True)
def _no_transaction(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test begins and ends outside of a transaction, and a repeated commit follows soon."""
    monkeypatch.setattr(xa.zope.repetition, "_FIRST_PAUSE_SECONDS", 0.001)
    transaction.abort()
    yield
    transaction.abort()


def bodies(space: spool.Space, queue: str) -> list[Any]:
    return [message.body for message in space.browse(queue)]


def attempts(space: spool.Space) -> dict[str, int]:
    return {message.body: message.attempts for message in space.browse("in")}


def work(space: spool.Space) -> None:
    """Move one message from ``in`` to ``out``."""
    space.put("out", space.get("in").body)


def check_committed(space: spool.Space) -> None:
    """Check that ``work`` was committed, and that the space holds nothing for the transaction any more."""
    assert bodies(space, "out") == ["1"]
    assert attempts(space) == {"2": 0, "3": 0}
    check_ended(space)


def check_rolled_back(space: spool.Space, failed: int = 1) -> None:
    """Check that ``work`` was rolled back. ``failed``: the number of attempts that were counted."""
    assert bodies(space, "out") == []
    assert attempts(space) == {"1": failed, "2": 0, "3": 0}
    check_ended(space)


def undecided(space: spool.Space) -> list[Xid]:
    names = os.listdir(os.path.join(space.path, "prepared"))
    xids = [Xid.parse(name.removesuffix(".msgpack")) for name in names]
    return [xid for xid in xids if space.engine.is_prepared(xid)]


def check_ended(space: spool.Space) -> None:
    assert undecided(space) == []
    assert [space.stats(queue).in_doubt for queue in ("in", "out")] == [0, 0]
    assert space.engine.joined() is None
    assert space.put("in", "alone") in {message.id for message in space.browse("in")}, "a put outside is a commit"
    assert space.get("in", message_id=next(m.id for m in space.browse("in") if m.body == "alone")).body == "alone"


def finish_unfinished() -> None:
    """Wait until no thread repeats a commit."""
    for thread in threading.enumerate():
        if isinstance(thread, xa.zope.repetition.UnfinishedCommit):
            thread.join(60)
            assert not thread.is_alive()


class Mistake(Exception):
    """An application's own."""


class Other:
    """Another data manager: it acts in one step, and records its steps. ``key``: its sort key."""

    def __init__(self, key: str = "a", step: str = "", act: Callable[[], object] = lambda: None) -> None:
        self.key = key
        self.step = step
        self.act = act
        self.steps: list[str] = []
        self.transaction_manager = transaction.manager

    def sortKey(self) -> str:
        return self.key

    def __getattr__(self, name: str) -> Callable[[object], None]:
        if name not in ("abort", "tpc_begin", "commit", "tpc_vote", "tpc_finish", "tpc_abort"):
            raise AttributeError(name)

        def step(_: object) -> None:
            self.steps.append(name)
            if name == self.step:
                self.act()

        return step


def fail() -> None:
    raise Mistake


# -- the protocol, step by step ---------------------------------------------------------------------------------------


def test_x03_the_data_manager_has_the_methods_of_zopes_interfaces(space: spool.Space) -> None:
    found = join(space)
    for interface in (ISavepointDataManager, IRetryDataManager, ISynchronizer):
        assert verifyClass(interface, xa.zope.DataManager)
        assert verifyObject(interface, found)
    assert found.transaction_manager is transaction.manager
    assert verifyObject(IDataManagerSavepoint, found.savepoint())


@pytest.mark.parametrize("savepoints", [0, 2])
@pytest.mark.parametrize(
    "steps",
    [
        "tpc_begin commit tpc_vote tpc_finish",
        "tpc_begin commit tpc_vote tpc_finish abort",  # after a hook
        "tpc_begin commit tpc_vote tpc_finish tpc_abort tpc_abort",
        "abort tpc_abort",
        "tpc_abort",
        "tpc_abort tpc_abort abort",
        "tpc_begin abort tpc_abort",
        "tpc_begin tpc_abort",
        "tpc_begin commit abort tpc_abort",
        "tpc_begin commit tpc_abort abort",
        "tpc_begin commit tpc_vote tpc_abort",
        "tpc_begin commit tpc_vote abort tpc_abort",
        "tpc_begin commit tpc_vote tpc_abort tpc_abort abort",
    ],
)
def test_x03_each_order_of_steps_commits_all_work_or_rolls_it_back(
    space: spool.Space, steps: str, savepoints: int
) -> None:
    """``abort`` and ``tpc_abort`` are harmless at any time."""
    found, txn = join(space), transaction.get()
    work(space)
    for _ in range(savepoints):
        found.savepoint()
        space.put("out", "more")
    for step in steps.split():
        getattr(found, step)(txn)
    if "tpc_finish" in steps:
        assert bodies(space, "out") == ["1", *["more"] * savepoints]
        assert attempts(space) == {"2": 0, "3": 0}
        check_ended(space)
    else:
        check_rolled_back(space)


def test_x03_a_vote_is_durable_and_undecided_until_the_finish(space: spool.Space) -> None:
    found, txn = join(space), transaction.get()
    work(space)
    found.tpc_begin(txn)
    found.commit(txn)
    with spool.open(space.path) as other:
        assert other.stats("in").in_doubt == 0
        found.tpc_vote(txn)
        assert other.stats("in").in_doubt == 1
        assert bodies(other, "out") == []
        assert other.engine.resolve_orphans() == [], "the coordinator of the branch lives"
        found.tpc_finish(txn)
        assert bodies(other, "out") == ["1"]
    check_committed(space)


def test_x03_a_part_that_has_ended_refuses_a_vote_and_savepoints(space: spool.Space) -> None:
    found, txn = join(space), transaction.get()
    savepoint = found.savepoint()
    found.tpc_abort(txn)
    for call in (lambda: found.tpc_vote(txn), found.savepoint, savepoint.rollback):
        with pytest.raises(spool.ProtocolError, match="has ended"):
            call()
    found.tpc_finish(txn)
    assert repr(found) == f"<zope data manager of {space.path}, ended>"


def test_x03_a_part_without_work_votes_and_finishes_without_a_flush(space: spool.Space) -> None:
    before = space._store.files.disk.flushes
    join(space)
    transaction.savepoint()
    transaction.commit()
    assert space._store.files.disk.flushes == before
    check_ended(space)


# -- through the transaction manager ----------------------------------------------------------------------------------


def test_x03_a_commit_makes_all_puts_and_gets_happen(space: spool.Space) -> None:
    with transaction.manager:
        join(space)
        work(space)
        with spool.open(space.path) as other:
            assert bodies(other, "out") == []
    check_committed(space)


@pytest.mark.parametrize("end", ["abort", "begin"])
def test_x03_an_abort_undoes_puts_and_gets_and_counts_an_attempt(space: spool.Space, end: str) -> None:
    join(space)
    work(space)
    getattr(transaction, end)()
    check_rolled_back(space)
    join(space)
    work(space)
    transaction.commit()
    check_committed(space)


def test_x03_a_doomed_transaction_takes_work_and_never_commits(space: spool.Space) -> None:
    transaction.doom()
    join(space)
    work(space)
    with pytest.raises(DoomedTransaction):
        transaction.commit()
    assert bodies(space, "out") == []
    transaction.abort()
    check_rolled_back(space)


def test_x03_a_repeated_attempt_gets_the_message_again(space: spool.Space) -> None:
    seen = []
    for attempt in transaction.manager.attempts(3):
        with attempt:
            join(space)
            message = space.get("in")
            space.put("out", message.body)
            seen.append((message.body, message.attempts))
            if len(seen) < 3:
                raise TransientError
    assert seen == [("1", 0), ("1", 1), ("1", 2)]
    check_committed(space)


def test_x03_a_lock_of_another_process_lets_an_attempt_be_repeated(space: spool.Space) -> None:
    tries = itertools.count()
    for attempt in transaction.manager.attempts():
        with attempt:
            join(space)
            work(space)
            if next(tries) == 0:
                raise spool.TransactionTimeout
    check_committed(space)
    with pytest.raises(spool.Full), transaction.manager:
        found = join(space)
        assert not found.should_retry(spool.Full("no room"))
        raise spool.Full("no room")


def test_x03_an_explicit_manager_of_the_program_is_used(space: spool.Space) -> None:
    manager = transaction.TransactionManager(explicit=True)
    with pytest.raises(transaction.interfaces.NoTransaction):
        join(space, manager)
    with manager:
        assert join(space, manager).transaction_manager is manager
        work(space)
        assert not transaction.get()._resources
    check_committed(space)


def test_x03_hooks_after_the_commit_see_its_effects_and_are_outside(space: spool.Space) -> None:
    seen: list[Any] = []

    def look(done: bool = True) -> None:
        seen.append((done, bodies(space, "out"), space.engine.joined()))
        space.put("out", "by the hook")

    for end in (transaction.commit, transaction.abort):
        join(space)
        work(space)
        transaction.get().addAfterCommitHook(look)
        transaction.get().addAfterAbortHook(look)
        end()
    assert seen == [(True, ["1"], None), (True, ["1", "by the hook"], None)]
    assert bodies(space, "out") == ["1", "by the hook", "by the hook"]


# -- joining ----------------------------------------------------------------------------------------------------------


def test_x03_a_second_join_in_a_transaction_returns_the_same_data_manager(space: spool.Space) -> None:
    found = join(space)
    assert join(space) is found
    transaction.commit()
    assert join(space) is not found


def test_x03_two_spaces_are_in_one_transaction(space: spool.Space, tmp_path: Path) -> None:
    with spool.create(tmp_path / "another", defaults=AT_ONCE) as another:
        another.create_queue("out")
        for end in (transaction.abort, transaction.commit):
            keys = [join(one).sortKey() for one in (space, another)]
            assert keys[0] > keys[1], "the order is the order of the paths"
            another.put("out", space.get("in").body)
            end()
        assert bodies(another, "out") == ["1"]
        assert attempts(space) == {"2": 0, "3": 0}


def test_x03_the_sort_key_does_not_change_and_is_unique(space: spool.Space) -> None:
    found = join(space)
    key = found.sortKey()
    assert key.startswith(f"xaspool:{space.path}\0")
    assert key < "~sqlalchemy:1"
    transaction.savepoint()
    transaction.commit()
    assert found.sortKey() == key
    assert join(space).sortKey() != key


def test_x03_a_caller_in_another_transaction_of_the_space_is_refused(space: spool.Space) -> None:
    with space.transaction() as own:
        with pytest.raises(spool.ProtocolError, match="another transaction"):
            join(space)
        own.put("out", "own")
    manager = transaction.TransactionManager()
    join(space, manager)
    with pytest.raises(spool.ProtocolError, match="another transaction"):
        join(space)
    space.put("out", "first")
    manager.commit()
    assert not transaction.get()._resources
    found = join(space)
    with space.transaction():
        with pytest.raises(spool.ProtocolError, match="another transaction"):
            found.savepoint()
    space.put("out", "second")
    transaction.commit()
    assert bodies(space, "out") == ["own", "first", "second"]


def test_x03_a_failed_transaction_is_not_joined(space: spool.Space, recwarn: pytest.WarningsRecorder) -> None:
    transaction.get().join(Other(step="tpc_vote", act=fail))
    with pytest.raises(Mistake):
        transaction.commit()
    with pytest.raises(TransactionFailedError):
        join(space)
    check_ended(space)
    transaction.abort()
    transaction.get().join(Other(step="commit", act=lambda: join(space)))
    with pytest.raises(ValueError, match="expected txn status"):
        transaction.commit()
    transaction.abort()
    check_ended(space)
    gc.collect()
    left = [one for one in recwarn.list if "has left the branch" in str(one.message)]
    assert left == [], "no branch was left for the housekeeper"


def test_x03_each_thread_has_its_own_transaction(space: spool.Space) -> None:
    meet = threading.Barrier(2)
    ends = {"a": transaction.commit, "b": transaction.abort}

    def act(name: str) -> None:
        join(space)
        space.put("out", name + space.get("in").body[:0])
        meet.wait(60)
        ends[name]()

    threads = [threading.Thread(target=act, args=(name,)) for name in ends]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bodies(space, "out") == ["a"]
    assert sorted(attempts(space).values()) == [0, 1]
    check_ended(space)


def test_x03_a_further_thread_joins_the_transaction_of_a_manager(space: spool.Space) -> None:
    manager = transaction.TransactionManager()
    found = join(space, manager)
    space.put("out", "one thread")
    errors: list[Exception] = []

    def act(before: bool) -> None:
        if before:
            space.put("out", "alone")
        assert join(space, manager) is found
        space.put("out", "another thread")
        found.savepoint()
        space.put("out", "after the savepoint")

    thread = threading.Thread(target=act, args=(True,))
    thread.start()
    thread.join()
    try:
        space.put("out", "late")
    except spool.ProtocolError as error:
        errors.append(error)
    assert "savepoint" in str(errors), "the branch of this thread takes no more work"
    join(space, manager)
    space.put("out", "at the end")
    manager.commit()
    assert bodies(space, "out") == ["alone", "one thread", "another thread", "after the savepoint", "at the end"]


def test_x03_a_context_that_was_copied_does_not_commit_alone(space: spool.Space) -> None:
    join(space)
    copied = copy_context()
    space.put("out", "in the transaction")
    transaction.commit()
    with pytest.raises(spool.ProtocolError):
        copied.run(space.put, "out", "late")
    assert bodies(space, "out") == ["in the transaction"]


# -- savepoints -------------------------------------------------------------------------------------------------------


def test_x03_a_rollback_to_a_savepoint_undoes_only_later_work(space: spool.Space) -> None:
    join(space)
    work(space)
    savepoint = transaction.savepoint()
    assert space.get("in").body == "2"
    space.put("out", "undone")
    savepoint.rollback()
    savepoint.rollback()
    with spool.open(space.path) as other:
        assert attempts(other) == {"1": 0, "2": 1, "3": 0}, "an attempt is counted"
    assert space.get("in").body == "2", "the message is free again"
    space.put("out", "again")
    transaction.commit()
    assert bodies(space, "out") == ["1", "again"]
    assert attempts(space) == {"3": 0}
    check_ended(space)


def test_x03_a_rollback_to_the_first_of_three_savepoints(space: spool.Space) -> None:
    join(space)
    savepoints = []
    for body in ("a", "b", "c", "d"):
        space.put("out", body)
        savepoints.append(transaction.savepoint())
    savepoints[0].rollback()
    with pytest.raises(InvalidSavepointRollbackError):
        savepoints[2].rollback()
    space.put("out", "e")
    transaction.commit()
    assert bodies(space, "out") == ["a", "e"]
    check_ended(space)


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_x03_nested_savepoints(space: spool.Space, end: str) -> None:
    join(space)
    outer = transaction.savepoint()
    for keep_inner in (False, True):
        space.put("out", "outer")
        inner = transaction.savepoint()
        space.get("in")
        if not keep_inner:
            inner.rollback()
            outer.rollback()
    getattr(transaction, end)()
    if end == "commit":
        assert bodies(space, "out") == ["outer"]
        assert attempts(space) == {"2": 0, "3": 0}
    else:
        check_rolled_back(space, failed=2)
    check_ended(space)


def test_x03_savepoints_without_work_begin_no_branch(space: spool.Space) -> None:
    found = join(space)
    first = transaction.savepoint()
    second = transaction.savepoint()
    assert len(found._parts) == 1
    work(space)
    second.rollback()
    first.rollback()
    work(space)
    transaction.savepoint()
    transaction.savepoint()
    transaction.commit()
    check_committed(space)


def test_x03_all_branches_are_one_commit(space: spool.Space) -> None:
    join(space)
    for place in range(5):
        space.put("out", str(place))
        transaction.savepoint()
    before = settle_all(space._store, space._store.deadline()).issued
    transaction.commit()
    assert settle_all(space._store, space._store.deadline()).issued == before + 1
    assert bodies(space, "out") == list("01234")


def test_x03_an_optimistic_savepoint_beside_a_party_without_savepoints(space: spool.Space) -> None:
    join(space)
    transaction.get().join(Other())
    work(space)
    with pytest.raises(TypeError, match="Savepoints unsupported"):
        transaction.savepoint()
    transaction.abort()
    check_rolled_back(space)
    join(space)
    transaction.get().join(Other())
    work(space)
    savepoint = transaction.savepoint(optimistic=True)
    transaction.commit()
    assert not savepoint.valid
    check_committed(space)
    join(space)
    transaction.get().join(Other())
    savepoint = transaction.savepoint(optimistic=True)
    with pytest.raises(TypeError, match="Savepoints unsupported"):
        savepoint.rollback()
    with pytest.raises(TransactionFailedError):
        transaction.commit()
    transaction.abort()
    check_ended(space)


def test_x03_a_rollback_to_a_savepoint_before_the_join_ends_the_part(space: spool.Space) -> None:
    """A put that follows never commits alone: it raises an error, until ``join`` or the end of the transaction."""
    for end in (transaction.commit, transaction.abort):
        savepoint = transaction.savepoint()
        join(space)
        work(space)
        savepoint.rollback()
        with pytest.raises(spool.TransactionRolledBack):
            space.put("out", "late")
        end()
        assert bodies(space, "out") == []
        check_ended(space)
    savepoint = transaction.savepoint()
    first = join(space)
    savepoint.rollback()
    assert join(space) is not first
    work(space)
    transaction.commit()
    assert bodies(space, "out") == ["1"]
    assert not transaction.manager.registeredSynchs()


def test_x03_a_group_taken_before_a_savepoint_blocks_its_later_messages(space: spool.Space) -> None:
    """A limit that ``join`` names. Without a savepoint, the transaction gets the next message of the group."""
    space.create_queue("grouped")
    space.put_many("grouped", ["g1", "g2"], group="g")
    space.put("grouped", "of no group")
    join(space)
    assert [space.get("grouped").body for _ in range(2)] == ["g1", "g2"]
    transaction.abort()
    join(space)
    assert space.get("grouped").body == "g1"
    transaction.savepoint()
    assert space.get("grouped").body == "of no group"
    with pytest.raises(spool.Empty):
        space.get("grouped")
    transaction.commit()
    assert space.get("grouped").body == "g2"
    check_ended(space)


def test_x03_a_deduplication_key_put_again_after_a_savepoint_is_in_use(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit that ``join`` names. A rollback to the savepoint releases the key."""
    deadline = Store.deadline
    monkeypatch.setattr(Store, "deadline", lambda self, seconds=0.01: deadline(self, seconds))
    join(space)
    savepoint = transaction.savepoint()
    space.put("out", "a", deduplication_key="key")
    space.put("out", "the same", deduplication_key="key")
    later = transaction.savepoint()
    with pytest.raises(spool.MessageInUse):
        space.put("out", "b", deduplication_key="key")
    later.rollback()
    savepoint.rollback()
    space.put("out", "c", deduplication_key="key")
    transaction.commit()
    space.put("out", "d", deduplication_key="key")
    assert bodies(space, "out") == ["c"]


def test_x03_a_failure_of_a_branch_fails_the_savepoint_and_the_vote(space: spool.Space) -> None:
    for act in (transaction.savepoint, transaction.commit):
        found = join(space)
        work(space)
        found._parts[-1].transaction.refuse("a get was cancelled")
        with pytest.raises(spool.TransactionRolledBack, match="cancelled"):
            space.put("out", "late")
        with pytest.raises((spool.TransactionRolledBack, spool.ProtocolError)):
            act()
        transaction.abort()
        assert bodies(space, "out") == []
        check_ended(space)


# -- other parties fail -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["a", "~"], ids=["before us", "after us"])
@pytest.mark.parametrize("step", ["tpc_begin", "commit", "tpc_vote"])
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


def test_x03_a_message_whose_transactions_always_fail_after_our_vote_reaches_its_last_attempt(
    space: spool.Space,
) -> None:
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


def commit_with(act: Callable[[], object], space: spool.Space, branches: int = 1) -> None:
    """Commit ``work`` in some branches; ``act`` happens after all votes."""
    join(space)
    work(space)
    for _ in range(branches - 1):
        transaction.savepoint()
        space.put("out", "more")
    transaction.get().join(Other("~", "tpc_vote", act))
    transaction.commit()


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

    def broken(self: Disk, handle: int, directory: str, **how: bool) -> None:
        raise FlushFailed(errno.EIO, "the disk does not answer")

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
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def broken(self: Engine, xid: object, *, vote_known: bool) -> int:
        raise spool.DiskFailure(errno.EIO, "the disk does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(Engine, "commit_together", broken)
        patched.setattr(xa.zope.repetition.UnfinishedCommit, "start", refuse)
        commit_with(lambda: None, space)
    assert "no thread can repeat the commit" in caplog.text


def test_x03_a_rollback_that_fails_after_the_vote_raises_nothing(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The coordinator has ended, so the next process that meets the branch rolls it back."""

    def broken(self: Engine, xid: Xid, reason: str) -> None:
        raise spool.DiskFailure(errno.EIO, "the disk does not answer")

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


def test_x03_ctrl_c_in_the_vote_rolls_back(space: spool.Space, monkeypatch: pytest.MonkeyPatch) -> None:
    join(space)
    work(space)
    transaction.savepoint()
    space.put("out", "more")
    with monkeypatch.context() as patched:
        patched.setattr(CoordinatedTransaction, "prepare", interrupting(CoordinatedTransaction.prepare))
        with pytest.raises(KeyboardInterrupt):
            transaction.commit()
    check_rolled_back(space)


def test_x03_ctrl_c_in_the_abort_comes_after_the_rollback(space: spool.Space, monkeypatch: pytest.MonkeyPatch) -> None:
    join(space)
    work(space)
    transaction.savepoint()
    space.put("out", "more")
    with monkeypatch.context() as patched:
        patched.setattr(CoordinatedTransaction, "rollback", interrupting(CoordinatedTransaction.rollback))
        with pytest.raises(KeyboardInterrupt):
            transaction.abort()
    check_rolled_back(space)


# -- closed spaces, forks, dropped transactions, kills ----------------------------------------------------------------


def test_x03_a_space_that_is_closed_before_the_commit_fails_the_vote(space: spool.Space) -> None:
    join(space)
    work(space)
    space.close()
    with pytest.raises(spool.NotOpen, match="the space is closed"):
        transaction.commit()
    transaction.abort()
    with spool.open(space.path) as again:
        check_rolled_back(again)
    with pytest.raises(spool.NotOpen):
        join(space)
    assert not transaction.get()._resources


def test_x03_an_abort_of_a_closed_space_raises_nothing(space: spool.Space, caplog: pytest.LogCaptureFixture) -> None:
    join(space)
    transaction.savepoint()
    work(space)
    space.close()
    transaction.abort()
    assert "is rolled back later" not in caplog.text
    with spool.open(space.path) as again:
        check_rolled_back(again)


def test_x03_a_forked_child_neither_commits_nor_rolls_back(space: spool.Space) -> None:
    found, txn = join(space), transaction.get()
    work(space)

    def act() -> None:
        with pytest.raises(spool.NotOpen, match="fork"):
            found.tpc_vote(txn)
        transaction.abort()

    assert exit_code_of(act) == 0
    found.tpc_begin(txn)
    found.tpc_vote(txn)

    def abort() -> None:
        found.tpc_abort(txn)

    assert exit_code_of(abort) == 0
    found.tpc_finish(txn)
    check_committed(space)


def test_x03_a_forked_child_does_not_keep_the_lock_of_its_parent(space: spool.Space) -> None:
    """Otherwise the messages of a killed parent would be held as long as its child lives."""
    (reads, writes), (is_there, tells) = os.pipe(), os.pipe()
    space.close()

    def child() -> None:
        """Live on after the parent."""
        os.write(tells, b"x")
        os.read(reads, 1)

    def parent() -> None:
        with spool.open(space.path) as own:
            found = join(own)
            work(own)
            found.tpc_vote(transaction.get())
            start(child)
            os.read(is_there, 1)
            os.kill(os.getpid(), signal.SIGKILL)

    assert exit_code(start(parent)) == -signal.SIGKILL
    try:
        with spool.open(space.path) as again:
            check_rolled_back(again, failed=0)
    finally:
        os.write(writes, b"x")
        for handle in (reads, writes, is_there, tells):
            os.close(handle)


def test_x03_a_transaction_that_the_program_drops_is_rolled_back(space: spool.Space) -> None:
    def drop(voted: bool) -> None:
        manager = transaction.TransactionManager()
        found = join(space, manager)
        work(space)
        found.savepoint()
        space.put("out", "more")
        if voted:
            found.tpc_vote(manager.get())

    for voted in (True, False):
        with pytest.warns(ResourceWarning, match="left the branch") if not voted else pytest.MonkeyPatch.context():
            drop(voted)
            gc.collect()
        space.engine.join(None)
        space._housekeeper._undo_dropped()
        space.engine.resolve_orphans()
        check_rolled_back(space, failed=0 if voted else 1)


@pytest.mark.parametrize("meanwhile", ["opened", "closed"])
@pytest.mark.parametrize("branches", [1, 3])
def test_x03_a_kill_after_the_vote_leaves_nothing_in_doubt(space: spool.Space, meanwhile: str, branches: int) -> None:
    """``meanwhile``: whether this process has the space open as the other one dies."""
    if meanwhile == "closed":
        space.close()

    def die() -> None:
        with spool.open(space.path) as own:
            commit_with(lambda: os.kill(os.getpid(), signal.SIGKILL), own, branches)

    assert exit_code_of(die) == -signal.SIGKILL
    if meanwhile == "opened":
        found = [space.get("in", timeout=60).body for _ in range(3)]
        assert sorted(found) == ["1", "2", "3"], "a get that finds no other message finds this one again"
        assert bodies(space, "out") == []
        assert space.stats("in").in_doubt == 0
    else:
        with spool.open(space.path) as again:
            assert again.recovery.in_doubt == []
            check_rolled_back(again, failed=0)


def test_x03_a_kill_before_the_vote_counts_an_attempt(space: spool.Space) -> None:
    space.close()

    def die() -> None:
        with spool.open(space.path) as own:
            join(own)
            work(own)
            os.kill(os.getpid(), signal.SIGKILL)

    assert exit_code_of(die) == -signal.SIGKILL
    with spool.open(space.path) as again:
        check_rolled_back(again)


def test_x03_only_a_space_is_joined() -> None:
    with pytest.raises(spool.InvalidArgument, match="an open space, not str"):
        join("orders")  # type: ignore[arg-type]


# -- zope.sqlalchemy --------------------------------------------------------------------------------------------------


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Any]:
    """A session of SQLAlchemy on a database with an empty table; zope.sqlalchemy joins it to each transaction."""
    zope_sqlalchemy = pytest.importorskip("zope.sqlalchemy")
    import sqlalchemy
    from sqlalchemy.orm import scoped_session, sessionmaker

    with sqlite3.connect(tmp_path / "database") as database:
        database.execute("create table bookings (text unique)")
    database.close()
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/database")
    session = scoped_session(sessionmaker(engine))
    zope_sqlalchemy.register(session)
    yield session
    transaction.abort()
    session.remove()
    engine.dispose()


def book(space: spool.Space, session: Any, text: str | None = None) -> None:
    """Take a message, insert its text as a row, and put a receipt."""
    import sqlalchemy
    from zope.sqlalchemy import mark_changed

    join(space)
    body = space.get("in").body
    session.execute(sqlalchemy.text("insert into bookings values (:text)"), {"text": text or body})
    mark_changed(session())
    space.put("out", body)


def rows(tmp_path: Path) -> list[str]:
    database = sqlite3.connect(tmp_path / "database")
    try:
        return [text for (text,) in database.execute("select text from bookings order by 1")]
    finally:
        database.close()


def test_x03_a_row_of_zope_sqlalchemy_and_a_message_are_one_transaction(
    space: spool.Space, session: Any, tmp_path: Path
) -> None:
    book(space, session)
    transaction.abort()
    assert rows(tmp_path) == []
    check_rolled_back(space)
    book(space, session)
    transaction.commit()
    assert rows(tmp_path) == ["1"]
    check_committed(space)


def test_x03_a_commit_that_the_database_refuses_rolls_the_message_back(
    space: spool.Space, session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """zope.sqlalchemy commits in its vote, after our vote."""
    book(space, session)
    assert space.stats("in").in_doubt == 0

    def refuse() -> None:
        assert space.stats("in").in_doubt == 1, "our vote is durable before the database commits"
        raise sqlite3.OperationalError("the database is busy")

    from sqlalchemy import event

    event.listen(session().get_bind(), "commit", lambda _: refuse())
    with pytest.raises(sqlite3.OperationalError):
        transaction.commit()
    transaction.abort()
    assert rows(tmp_path) == []
    check_rolled_back(space)


def test_x03_our_refused_vote_keeps_the_row_out_of_the_database(
    space: spool.Space, session: Any, tmp_path: Path
) -> None:
    book(space, session)
    space.engine.joined().set_rollback_only("the program wants it")  # type: ignore[union-attr]
    with pytest.raises(spool.TransactionRolledBack, match="the program wants it"):
        transaction.commit()
    transaction.abort()
    assert rows(tmp_path) == []
    check_rolled_back(space)


def test_x03_savepoints_with_a_database(space: spool.Space, session: Any, tmp_path: Path) -> None:
    """SQLite has no savepoints for zope.sqlalchemy, so a savepoint is optimistic."""
    book(space, session)
    with pytest.raises(TypeError, match="Savepoints unsupported"):
        transaction.savepoint()
    transaction.abort()
    check_rolled_back(space)
    book(space, session)
    transaction.savepoint(optimistic=True)
    book(space, session)
    transaction.commit()
    assert rows(tmp_path) == ["1", "2"]
    assert bodies(space, "out") == ["1", "2"]
    check_ended(space)
