"""Several processes have one space open, each with its own index and its own locks; here they are in one process."""

from collections.abc import Callable

import pytest

import spool
from spool.coordination.locks import xid_byte
from spool.maintenance.reclaim import reclaim
from spool.model import layout
from spool.model.layout import FreeName
from spool.runtime.clock import WaitExpired
from spool.transactions import two_phase
from tests import door
from tests.meanwhile import XID, commit, prepare
from tests.shown import bodies
from tests.spaces import opened_again, space_with

space = space_with("orders")
other = opened_again()


# -- order ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("held", [1, 2, 3])
def test_a_consumer_skips_the_messages_that_another_holds(space: spool.Space, other: spool.Space, held: int) -> None:
    space.put_many("orders", range(6))
    with space.transaction() as transaction:
        transaction.get_many("orders", held)
        assert other.get_many("orders", 2)[0].body == held


def test_messages_that_are_held_inside_a_commit_are_skipped_and_come_back_to_their_place(
    space: spool.Space, other: spool.Space
) -> None:
    ids = space.put_many("orders", range(6))
    with space.transaction() as transaction:
        for place in (1, 2, 4):
            transaction.get("orders", message_id=ids[place])
        assert [message.body for message in other.get_many("orders", 2)] == [0, 3]
        transaction.rollback()
    assert bodies(space) == bodies(other) == [1, 2, 4, 5]
    assert [message.body for message in other.get_many("orders", 10)] == [1, 2, 4, 5]


def test_a_rolled_back_message_is_delivered_before_those_that_were_put_after_it(space: spool.Space) -> None:
    space.put_many("orders", range(4))
    for _ in range(2):
        with space.transaction() as transaction:
            transaction.get_many("orders", 2)
            transaction.rollback()
    assert bodies(space) == [0, 1, 2, 3]
    with spool.open(space.path) as rebuilt:
        assert bodies(rebuilt) == [0, 1, 2, 3]


# -- housekeeping -----------------------------------------------------------------------------------------------------


def test_check_finds_nothing_wrong_with_a_reclaim_that_was_killed_half_way(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(space)
    store = door.store(space)
    number = commit(space)
    space.get("orders")
    space.put("orders", "newest")

    give = store.files.recycler.give

    def die_before_the_head(name: str, room: int) -> FreeName | None:
        if name == layout.committed(number):
            raise KeyboardInterrupt
        return give(name, room)

    monkeypatch.setattr(store.files.recycler, "give", die_before_the_head)
    with pytest.raises(KeyboardInterrupt):
        reclaim(store)
    monkeypatch.undo()
    assert store.files.disk.exists(layout.committed(number))
    assert not store.files.disk.exists(layout.committed(number, 1))
    assert space.check() == []
    space.close()
    with spool.open(space.path) as again:
        assert (again.recovery.damaged, again.check()) == ([], [])


def test_check_names_a_lost_branch_of_a_commit_that_no_process_reclaims(space: spool.Space) -> None:
    prepare(space)
    store = door.store(space)
    number = commit(space)
    store.files.disk.unlink(layout.committed(number, 1))
    assert [finding.name for finding in space.check()] == [layout.committed(number, 1)]
    space.close()
    with spool.open(space.path) as again:
        assert [finding.name for finding in again.recovery.damaged] == [layout.committed(number, 1)]


# -- in doubt ---------------------------------------------------------------------------------------------------------


def test_a_committed_branch_is_never_copied_back_into_doubt(
    space: spool.Space, other: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(space)
    monkeypatch.setattr("spool.log.write.move_adopted", lambda *_: None)  # the committer is slow
    commit(space)
    before = door.disk(space).identity(layout.prepared(XID))
    two_phase.make_durable(door.store(other), XID, door.deadline(other))
    assert door.disk(space).identity(layout.prepared(XID)) == before


def test_a_branch_that_another_process_reads_is_in_doubt_all_the_same(
    space: spool.Space, other: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(space)
    door.store(space).shared.xids.lock(xid_byte(XID), door.deadline(space), "as if space were making it durable")
    wait = door.clock(other).wait

    def let_go_and_wait(woken: Callable[[float], bool], seconds: float) -> bool:
        if door.store(space).shared.xids.is_held_here(xid_byte(XID)):
            door.store(space).shared.xids.unlock(xid_byte(XID))
        return wait(woken, seconds)

    monkeypatch.setattr(door.clock(other), "wait", let_go_and_wait)
    assert other.engine.in_doubt() == [XID]


def test_a_branch_whose_owner_does_not_finish_its_vote_is_left_out(space: spool.Space, other: spool.Space) -> None:
    prepare(space)
    door.store(space).shared.xids.lock(xid_byte(XID), door.deadline(space), "as if its flush took long")
    assert two_phase.in_doubt(door.store(other), door.deadline(other, 0.1)) == []
    with pytest.raises(WaitExpired):
        two_phase.make_durable(door.store(other), XID, door.deadline(other, 0.1))
    door.store(space).shared.xids.unlock(xid_byte(XID))
