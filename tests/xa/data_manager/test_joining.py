"""Callers, threads and several spaces join transactions of zope's package ``transaction``."""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import transaction
from transaction.interfaces import TransactionFailedError

import spool
from tests.at_once import AT_ONCE
from tests.branches import Mistake
from tests.shown import bodies
from tests.xa.data_manager.outcomes import attempts, check_ended
from tests.xa.data_manager.parties import Other, fail
from xa.zope import join


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
    with space.transaction(), pytest.raises(spool.ProtocolError, match="another transaction"):
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

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(act, ends))
    assert bodies(space, "out") == ["a"]
    assert sorted(attempts(space).values()) == [0, 1]
    check_ended(space)


def test_x03_a_further_thread_joins_the_transaction_of_a_manager(space: spool.Space) -> None:
    manager = transaction.TransactionManager()
    found = join(space, manager)
    space.put("out", "one thread")

    def act() -> None:
        space.put("out", "alone")
        assert join(space, manager) is found
        space.put("out", "another thread")
        found.savepoint()
        space.put("out", "after the savepoint")

    with ThreadPoolExecutor(1) as pool:
        pool.submit(act).result()
    with pytest.raises(spool.ProtocolError, match="savepoint"):  # the branch of this thread takes no more work
        space.put("out", "late")
    join(space, manager)
    space.put("out", "at the end")
    manager.commit()
    assert bodies(space, "out") == ["alone", "one thread", "another thread", "after the savepoint", "at the end"]


def test_x03_only_a_space_is_joined() -> None:
    with pytest.raises(spool.InvalidArgument, match="an open space, not str"):
        join("orders")  # type: ignore[arg-type]
