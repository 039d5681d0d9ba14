"""Housekeeping beside live processes: it leaves their files, counts the attempts of dead processes once, and only one
process reclaims at a time."""

from collections.abc import Callable
from typing import Any

import pytest

import spool
from spool.errors import TransactionTimeout
from spool.maintenance.disk_space import rooms
from spool.model import layout
from spool.policies import attempt_journal
from spool.policies.attempt_journal import clean_up_after_dead
from spool.transactions.two_phase import finish_moves
from tests import door
from tests.meanwhile import XID, Processes, Watched, commit, elsewhere, prepare
from tests.shown import bodies
from tests.spaces import fail_one

# -- cleaning up ------------------------------------------------------------------------------------------------------


def _put(space: spool.Space) -> None:
    space.put("orders", "one")


def _commit_a_branch(space: spool.Space) -> None:
    prepare(space)
    commit(space)


def _adopt_a_branch(space: spool.Space) -> None:
    prepare(space)
    adopting = door.branch(space)
    adopting.put("orders", "two")
    adopting.commit(adopt=[XID])


def _roll_back_a_get(space: spool.Space) -> None:
    space.put("orders", "one")
    fail_one(space, "orders")


@pytest.mark.parametrize("step", [_put, prepare, _commit_a_branch, _adopt_a_branch, _roll_back_a_get])
def test_a_clean_up_leaves_the_files_of_live_processes(
    space: spool.Space, watched: Watched, step: Callable[[spool.Space], object]
) -> None:
    """Another process cleans up just before each file gets its permanent name."""
    living, disk = watched
    seen: list[set[str]] = []

    def clean() -> None:
        seen.append(set(door.disk(space).names(layout.ACTIVE)))
        clean_up_after_dead(door.store(space), door.deadline(space))
        assert set(door.disk(space).names(layout.ACTIVE)) == seen[-1]
        disk.before("rename_new", clean, "active/")

    disk.before("rename_new", clean, "active/")
    step(living)
    assert seen
    assert all(seen)


def test_a_clean_up_leaves_a_branch_in_progress(space: spool.Space, other: spool.Space) -> None:
    with space.transaction() as transaction:
        transaction.put_many("orders", [bytes(1 << 20)] * 20)
        clean_up_after_dead(door.store(other), door.deadline(other))
    assert space.stats("orders").ready == 20


# -- the attempts of the dead
# --------------------------------------------------------------------------------------------


def test_a_death_after_the_commit_counts_no_try(space: spool.Space, watched: Watched) -> None:
    space.put("orders", "one")
    consumer, disk = watched
    transaction = consumer.transaction()
    transaction.get("orders")
    disk.dies_before("make_durable", transaction.commit, "committed")
    clean_up_after_dead(door.store(space), door.deadline(space))
    assert bodies(space) == []
    assert door.counters(space).published == 2, "nothing else was written"


def test_a_death_is_counted_for_messages_that_only_the_dead_had_seen(space: spool.Space, watched: Watched) -> None:
    doomed, disk = watched
    wanted = doomed.put("orders", "one")
    doomed.transaction().get("orders")
    disk.die()
    door.housekeep(space)
    assert space.show(wanted).attempts == 1


def test_a_death_is_counted_once_though_two_find_the_note(processes: Processes, space: spool.Space, watched: Watched):
    """While one process counts, another leaves the journal to it."""
    counting, disk = watched
    doomed, its_disk = processes.open()
    wanted = doomed.put("orders", "one")
    doomed.transaction().get("orders")
    its_disk.die()
    disk.before("rename_new", lambda: clean_up_after_dead(door.store(space), door.deadline(space, 0.05)), "active/")
    clean_up_after_dead(door.store(counting), door.deadline(counting))
    assert space.show(wanted).attempts == 1


def test_no_attempt_is_counted_for_a_live_process(processes: Processes, space: spool.Space, other: spool.Space) -> None:
    """No process waits for the death of the live process either."""
    wanted = space.put("orders", "one")
    space.transaction().get("orders")
    begun = processes.machine.clock.time
    clean_up_after_dead(door.store(other), door.deadline(other))
    assert processes.machine.clock.time == begun
    assert other.show(wanted).attempts == 0


def test_a_process_that_takes_a_dead_ones_message_counts_attempt_first(space: spool.Space, watched: Watched) -> None:
    doomed, disk = watched
    doomed.put("orders", "one")
    doomed.transaction().get("orders")
    disk.die()
    assert space.get("orders").attempts == 1


def test_a_dead_one_s_message_waits_for_its_next_try(space: spool.Space, watched: Watched) -> None:
    """The get that finds the message counts the dead process's attempt after its first look."""
    doomed, disk = watched
    space.change_queue("orders", retry_delay=60)
    doomed.put("orders", "one")
    doomed.transaction().get("orders")
    disk.die()
    with pytest.raises(spool.Empty):
        space.get("orders")
    assert space.stats("orders").delayed == 1


def test_the_whole_records_of_a_damaged_journal_count(processes: Processes, space: spool.Space, watched: Watched):
    """A claim journal is never flushed."""
    doomed, disk = watched
    first, second = doomed.put("orders", "one"), doomed.put("orders", "two")
    transaction = doomed.transaction()
    transaction.get("orders")
    transaction.get("orders")
    disk.die()
    (name,) = (name for name in processes.disk().names(layout.ACTIVE) if name.endswith(layout.JOURNAL_SUFFIX))
    processes.disk().damage(f"{layout.ACTIVE}/{name}")
    clean_up_after_dead(door.store(space), door.deadline(space))
    assert (space.show(first).attempts, space.show(second).attempts) == (1, 0)


def test_two_processes_with_a_journal_are_two_owners(space: spool.Space, watched: Watched) -> None:
    """One process waits while the other locks the bytes of its number."""
    first, disk = watched
    space.put_many("orders", ["one", "two"])

    def come_too_early() -> None:
        with pytest.raises(TransactionTimeout):
            space.transaction().get("orders")

    disk.before("open", come_too_early, layout.claim_file(0))
    first.transaction().get("orders")
    assert not disk.waits_for("open")
    space.transaction().get("orders")
    assert {door.store(first).shared.claims.owner, door.store(space).shared.claims.owner} == {1, 2}


def test_threads_that_write_their_first_claim_journals_at_once_are_one_owner(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the process would take its first number for a dead process's, and wait for its own transaction."""
    space.put_many("orders", ["one", "two", "three"])
    number_locked, first, second = attempt_journal.number_locked, space.transaction(), space.transaction()

    def after_another(*arguments: Any) -> Any:
        monkeypatch.setattr(attempt_journal, "number_locked", number_locked)
        with elsewhere():
            first.get("orders")  # as another thread does meanwhile
        return number_locked(*arguments)

    monkeypatch.setattr(attempt_journal, "number_locked", after_another)
    second.get("orders")
    assert door.store(space).shared.claims.owner == door.counters(space).owner == 1
    with space.transaction() as third:
        assert third.get("orders").body == "three"
    for transaction in (first, second):
        transaction.rollback()


# -- reclaim ----------------------------------------------------------------------------------------------------------


def test_a_reclaiming_process_knows_the_gets_of_others_and_forgets_no_count(space: spool.Space, other: spool.Space):
    """The files that hold messages go before those that removed them: several batches, each with its counts."""
    space.put("orders", "one")
    with other.transaction() as transaction:
        transaction.put("orders", transaction.get("orders").body)
    other.get("orders")
    other.put("orders", "newest")
    assert door.reclaim(space) >= 3
    assert (other.stats("orders").enqueued, other.stats("orders").dequeued) == (3, 2)


def test_a_commit_remains_while_its_process_moves_the_adopted_branches(space: spool.Space, watched: Watched) -> None:
    committing, disk = watched
    prepare(committing)
    there: list[str] = []

    def take_and_reclaim() -> None:
        assert space.get("orders").body == "new"
        space.put("orders", "later")
        door.reclaim(space)
        there.extend(door.disk(space).names(layout.COMMITTED))

    disk.before("rename_new", take_and_reclaim, layout.PREPARED)
    commit(committing)
    assert layout.committed(1).rpartition("/")[2] in there


def test_no_branch_is_moved_while_another_process_reclaims(space: spool.Space, other: spool.Space) -> None:
    prepare(space)
    with door.unmoved_branches():
        commit(space)
    with door.disk(other).exclusively(layout.RECLAIM_LOCK):
        assert finish_moves(door.store(space)) == []
    assert finish_moves(door.store(space)) == [XID]


def test_a_commit_without_room_tries_again_while_another_reclaims(space: spool.Space, other: spool.Space) -> None:
    with door.disk(other).exclusively(layout.RECLAIM_LOCK):
        assert len(list(rooms(door.store(space)))) > 2
    assert len(list(rooms(door.store(space)))) == 2, "nobody else can make room"


def test_reclaim_is_done_by_one_at_a_time(space: spool.Space, watched: Watched) -> None:
    first, disk = watched
    first.put("orders", "one")
    first.get("orders")
    first.put("orders", "newest")
    counts = []

    def come_too() -> None:
        counts.append(door.reclaim(space))
        assert space.check() == [], "nor is there anything to find"

    disk.before("rename", come_too, layout.COMMITTED)
    assert door.reclaim(first) >= 2
    assert counts == [0]


@pytest.mark.parametrize("ordered", [True, False])
def test_after_a_failed_flush_no_file_is_removed_where_renames_are_not_ordered(ordered: bool) -> None:
    """A removed message may still exist on the disk, and would come back after the file of its removal is gone."""
    processes = Processes(ordered=ordered)
    space, disk = processes.open()
    space.put("orders", "one")
    space.get("orders")
    space.put("orders", "newest")
    door.store(space).stop()
    disk.die()
    assert bool(door.reclaim(processes.space())) is ordered
