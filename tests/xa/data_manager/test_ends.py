"""Closed spaces, forks, dropped transactions and kills leave no zope transaction of a queue space in doubt."""

import gc
import os

import pytest
import transaction

import spool
from tests import door
from tests.children import die, exit_code_of, let_die, start
from tests.shown import bodies
from tests.xa.data_manager.outcomes import check_committed, check_rolled_back, work
from tests.xa.data_manager.parties import commit_with
from xa.zope import join


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
            die()

    let_die(parent)
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
        door.housekeeper(space)._undo_dropped()
        space.engine.resolve_orphans()
        check_rolled_back(space, failed=0 if voted else 1)


@pytest.mark.every(2)
@pytest.mark.parametrize("meanwhile", ["opened", "closed"])
@pytest.mark.parametrize("branches", [1, 3])
def test_x03_a_kill_after_the_vote_leaves_nothing_in_doubt(space: spool.Space, meanwhile: str, branches: int) -> None:
    """``meanwhile``: whether this process has the space open as the other one dies."""
    if meanwhile == "closed":
        space.close()

    let_die(lambda: commit_with(die, spool.open(space.path), branches))
    if meanwhile == "opened":
        found = [space.get("in", timeout=60).body for _ in range(3)]
        assert sorted(found) == ["1", "2", "3"], "a get that finds no other message finds this one again"
        assert bodies(space, "out") == []
        assert space.stats("in").in_doubt == 0
    else:
        with spool.open(space.path) as again:
            assert again.recovery.in_doubt == []
            check_rolled_back(again, failed=0)
