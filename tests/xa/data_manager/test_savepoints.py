"""A rollback to a savepoint of zope's package ``transaction`` undoes only the later work in a queue space."""

import pytest
import transaction
from transaction.interfaces import InvalidSavepointRollbackError, TransactionFailedError

import spool
from spool.log.sequence import settle_all
from spool.store.store import Store
from tests import door
from tests.shown import bodies
from tests.xa.data_manager.outcomes import attempts, check_committed, check_ended, check_rolled_back, work
from tests.xa.data_manager.parties import Other
from xa.zope import join


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
    before = settle_all(door.store(space), door.deadline(space)).issued
    transaction.commit()
    assert settle_all(door.store(space), door.deadline(space)).issued == before + 1
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
    monkeypatch.setattr(Store, "deadline", lambda self, *_: deadline(self, 0.01))
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
