"""Queue spaces commit and roll back in the transactions of zope's package ``transaction``, step by step."""

import itertools
from typing import Any

import pytest
import transaction
from transaction.interfaces import (
    DoomedTransaction,
    IDataManagerSavepoint,
    IRetryDataManager,
    ISavepointDataManager,
    ISynchronizer,
    TransientError,
)
from zope.interface.verify import verifyClass, verifyObject

import spool
import xa.zope
from tests import door
from tests.shown import bodies
from tests.xa.data_manager.outcomes import attempts, check_committed, check_ended, check_rolled_back, work
from xa.zope import join

# -- the protocol, step by step ---------------------------------------------------------------------------------------


def test_x03_the_data_manager_has_the_methods_of_zopes_interfaces(space: spool.Space) -> None:
    found = join(space)
    for interface in (ISavepointDataManager, IRetryDataManager, ISynchronizer):
        assert verifyClass(interface, xa.zope.DataManager)
        assert verifyObject(interface, found)
    assert found.transaction_manager is transaction.manager
    assert verifyObject(IDataManagerSavepoint, found.savepoint())


@pytest.mark.every(3)
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
def test_x03_each_order_of_steps_commits_all_work_or_rolls_it_back(space: spool.Space, steps: str, savepoints: int):
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
    before = door.disk(space).flushes
    join(space)
    transaction.savepoint()
    transaction.commit()
    assert door.disk(space).flushes == before
    check_ended(space)


# -- through the transaction manager ----------------------------------------------------------------------------------


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
