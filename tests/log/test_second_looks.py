"""What one process did a moment ago, another sees at every question."""

from unittest import mock

import pytest

import spool
from spool.admin import stats
from spool.admin.findings import Kind
from spool.coordination.counters import CounterPage
from spool.errors import BadMessageId
from spool.log import visibility
from spool.maintenance.reclaim import reclaim
from spool.model import layout
from spool.model.position import Position
from spool.policies import capacity
from spool.store.edits import notice_edits
from spool.store.settings import read_settings_text, write_settings
from spool.store.store import Store
from spool.transactions import resolution, two_phase
from spool.transactions.delivery import peek
from tests.meanwhile import XID, Processes, Watched, commit, prepare, rollback
from tests.shown import bodies
from tests.simdisk import ROOT


def take_and_reclaim(space: spool.Space) -> None:
    """The first message's file goes, and another's takes its place in the line."""
    space.get("orders")
    space.put("orders", "newest")
    assert reclaim(space._store)


def test_what_another_process_put_is_there_for_every_question(space: spool.Space, other: spool.Space) -> None:
    wanted = space.put("orders", "one")
    assert other.show(wanted).body == "one"
    space.put("orders", "two")
    assert bodies(other) == ["one", "two"]
    space.put("orders", "three")
    assert other.stats()["orders"].ready == 3
    space.put("orders", "four")
    with space.transaction() as transaction:
        transaction.get("orders")
        assert (other.stats()["orders"].ready, other.stats()["orders"].claimed) == (3, 1)
        transaction.rollback()
    assert [other.get("orders").body for _ in range(4)] == ["one", "two", "three", "four"]


def test_what_others_do_while_a_message_expires_counts(
    processes: Processes, space: spool.Space, watched: Watched
) -> None:
    counting, disk = watched
    space.put("orders", "short", time_to_live=1)
    processes.machine.clock.sleep(2)

    def come_too() -> None:
        space.put("orders", "long")
        prepare(space)

    disk.before("create", come_too, layout.ACTIVE)
    found = counting.stats("orders")
    assert not disk.waits_for("create")
    assert (found.ready, found.in_doubt, found.expired) == (1, 1, 1)


def test_a_branch_that_is_committed_while_messages_are_counted_counts(
    space: spool.Space, other: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    def commit_first(store: Store) -> CounterPage:
        commit(space)
        return list_prepared(store)

    prepare(space)
    list_prepared = stats.list_prepared
    monkeypatch.setattr(stats, "list_prepared", commit_first)
    found = other.stats("orders")
    assert (found.ready, found.in_doubt) == (1, 0)


def test_what_another_process_s_branch_holds_is_hidden_from_every_question(
    space: spool.Space, other: spool.Space
) -> None:
    space.put("orders", "one")
    assert bodies(other) == ["one"]
    prepare(space, take=True)
    assert bodies(other) == []
    rollback(space)
    assert bodies(other) == ["one"]
    prepare(space, take=True)
    assert other.stats()["orders"].in_doubt == 2, "what it takes and what it adds"
    rollback(space)
    assert other.stats()["orders"].in_doubt == 0
    prepare(space, take=True)
    with pytest.raises(spool.Empty):
        other.get("orders")
    rollback(space)
    assert other.get("orders").body == "one"


def test_a_message_that_is_reclaimed_while_it_is_shown_is_gone_and_not_damaged(
    space: spool.Space, watched: Watched
) -> None:
    reader, disk = watched
    wanted = space.put("orders", "one")
    assert bodies(reader) == ["one"]
    reader._store.files.cache.forget(1)
    disk.before("open", lambda: take_and_reclaim(space), layout.committed(1))
    with pytest.raises(BadMessageId):
        reader.show(wanted)
    assert peek(reader._store, Position(1, 0)) is None


def test_a_process_does_not_read_back_what_it_committed_itself(processes: Processes, space: spool.Space) -> None:
    space.put("orders", "one")
    read = [args for call, args in processes.machine.trace if call == "open" and args[0] == layout.committed(1)]
    assert space.stats("orders").ready == 1
    assert [args for call, args in processes.machine.trace if call == "open" and args[0] == layout.committed(1)] == read


def test_a_queue_that_another_process_made_is_there_at_once(space: spool.Space, other: spool.Space) -> None:
    space.create_queue("more")
    other.put("more", "one")
    assert space.get("more").body == "one"
    space.create_queue("third", retries=5)
    assert other.queues()["third"].retries == 5


def test_a_queue_s_new_settings_are_seen_by_the_next_put(space: spool.Space, other: spool.Space) -> None:
    """Settings are edited by people, who bump no version of their own; whoever creates a queue does."""
    text = read_settings_text(other._store.files.disk)
    other.put("orders", "one")
    assert other._store.settings.known.config.max_body_bytes > 10
    write_settings(space._store.files.disk, f"max_body_bytes = 10\n{text}")
    space.create_queue("more")
    with pytest.raises(spool.SpoolError, match="max_body_bytes"):
        other.put("orders", "x" * 11)


def test_what_somebody_edited_is_known_to_who_notices_it(space: spool.Space, other: spool.Space) -> None:
    text = read_settings_text(other._store.files.disk)
    write_settings(space._store.files.disk, f"max_body_bytes = 10\n{text}")
    notice_edits(other._store)
    assert other._store.settings.known.config.max_body_bytes == 10


def test_what_fails_goes_where_the_settings_say_by_then(space: spool.Space, other: spool.Space) -> None:
    space.create_queue("errors")
    space.create_queue("work", retries=0)
    for change in (space.change_queue, other.change_queue):
        space.put("work", "failed")
        with space.transaction() as transaction:
            transaction.get("work")
            change("work", error_queue="errors")
            transaction.set_rollback_only()
        assert space.get("errors").body == "failed"
        space.change_queue("work", error_queue=None)


def test_a_queue_made_or_deleted_while_one_opens_or_checks_is_not_lost(
    processes: Processes, space: spool.Space
) -> None:
    def make_and_use() -> None:
        space.create_queue("new")
        space.put("new", "one")

    def empty_and_delete() -> None:
        space.get("new")
        space.delete_queue("new")

    for place in range(9):
        for call in ("names", "read_at"):
            disk = processes.disk()
            disk.before(call, make_and_use, spare=place)
            with spool.open(ROOT, disk=disk, clock=processes.machine.clock) as late:
                assert late.recovery.damaged == [], (call, place)
                if disk.waits_for(call):
                    delattr(disk, call)
                    make_and_use()
                disk.before(call, empty_and_delete, spare=place)
                assert [one for one in late.check() if one.kind is Kind.DAMAGED] == [], (call, place)
                if disk.waits_for(call):
                    delattr(disk, call)
                    empty_and_delete()


def test_a_change_of_one_s_own_holds_at_once(space: spool.Space) -> None:
    id_ = space.put("orders", "one")
    space.create_queue("answers")
    assert space.show(id_).reply_queue is None
    space.change_queue("orders", reply_queue="answers")
    assert space.show(id_).reply_queue == "answers"


# -- what administrators do -------------------------------------------------------------------------------------------


def test_a_purge_looks_at_what_others_put_and_voted_for(space: spool.Space, other: spool.Space) -> None:
    space.put_many("orders", ["one", "two"])
    prepare(space, take=True)
    assert other.purge("orders", dry_run=True) == 1
    assert other.purge("orders") == 1


def test_a_queue_is_deleted_whatever_others_prepared_before(space: spool.Space, other: spool.Space) -> None:
    space.create_queue("more")
    prepare(other)
    rollback(other)
    space.delete_queue("more")
    assert "more" not in other.queues()


def test_a_redrive_knows_the_queues_that_there_are(space: spool.Space, other: spool.Space) -> None:
    space.create_queue("errors")
    space.create_queue("origin", error_queue="errors", retries=0)
    space.put("origin", "failed")
    with space.transaction() as transaction:
        transaction.get("origin")
        transaction.set_rollback_only()
    space.delete_queue("origin")
    assert other.redrive("errors") == 0
    space.create_queue("origin")
    assert other.redrive("errors") == 1
    assert bodies(space, "origin") == ["failed"]


def test_a_message_may_be_put_before_one_of_another_process(space: spool.Space, other: spool.Space) -> None:
    space.change_queue("orders", out_of_order=["before"])
    last = space.put("orders", "last")
    other.put("orders", "first", before=last)
    assert bodies(space) == ["first", "last"]


def test_a_branch_is_described_as_it_stands(processes: Processes, space: spool.Space, other: spool.Space) -> None:
    prepare(space)
    assert resolution.describe(other._store, XID).puts == {"orders": 1}
    commit(space)
    with pytest.raises(two_phase.UnknownBranch) as unknown:
        resolution.describe(other._store, XID)
    assert unknown.value.committed_by == processes.newest()


def test_a_branch_that_is_not_there_any_more_is_said_to_be_committed(
    processes: Processes, space: spool.Space, other: spool.Space
) -> None:
    prepare(space)
    commit(space)
    with pytest.raises(two_phase.UnknownBranch) as unknown:
        two_phase.voted_contents(other._store, XID)
    assert unknown.value.committed_by == processes.newest()


def test_a_put_is_refused_at_once_where_another_process_has_voted_for_the_last_place(
    space: spool.Space, other: spool.Space
) -> None:
    space.change_queue("orders", max_messages=1)
    assert other.queues()["orders"].max_messages == 1
    prepare(space)
    with other.transaction() as transaction:
        with pytest.raises(spool.Full):
            transaction.put("orders", "one")
        transaction.rollback()


def test_a_mark_is_reached_by_what_others_put_and_voted_for(space: spool.Space, other: spool.Space) -> None:
    space.create_queue("full", capacity_high="2 messages", capacity_command="page")
    assert other.queues()
    space.put("full", "one")
    prepare(space, queue="full")
    with mock.patch.object(capacity, "run_command") as run:
        capacity.check_marks(other._store)
    assert run.call_count == 1


# -- check ------------------------------------------------------------------------------------------------------------


def test_check_looks_at_what_another_process_put_a_moment_ago(
    processes: Processes, space: spool.Space, other: spool.Space
) -> None:
    space.put("orders", "one")
    name = layout.committed(space._store.shared.counters.read().published)
    processes.disk().damage(name)
    assert [(finding.kind, finding.name) for finding in other.check()] == [(Kind.DAMAGED, name)]


def test_check_knows_queues_that_another_process_made(space: spool.Space, other: spool.Space) -> None:
    other.create_queue("more")
    other.put("more", "one")
    assert space.check() == []


def test_check_finds_no_fault_with_what_is_reclaimed_while_it_looks(space: spool.Space, watched: Watched) -> None:
    checker, disk = watched
    space.put("orders", "one")
    assert bodies(checker) == ["one"]
    disk.before("open", lambda: take_and_reclaim(space), layout.committed(1))
    assert checker.check() == []
    assert bodies(checker) == ["newest"]


def test_check_finds_no_file_missing_that_is_reclaimed_while_it_looks(space: spool.Space, watched: Watched) -> None:
    checker, disk = watched
    space.put("orders", "one")
    disk.before("exclusively", lambda: take_and_reclaim(space), layout.RECLAIM_LOCK)
    assert checker.check() == []
    assert not disk.waits_for("exclusively")


def test_nobody_reclaims_while_a_check_counts_files(space: spool.Space, watched: Watched) -> None:
    checker, disk = watched
    space.put("orders", "one")
    counts: list[int] = []

    def come_too() -> None:
        space.get("orders")
        space.put("orders", "newest")
        counts.append(reclaim(space._store))

    disk.before("names", come_too, layout.COMMITTED, spare=2)
    assert checker.check() == []
    assert counts == [0]


def test_q02_a_thread_that_is_late_does_not_sort_by_older_options(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    space.put("orders", "low", priority=1)
    space.put("orders", "high", priority=99)
    older = space._store.settings.known
    space.change_queue("orders", order=("priority", "fifo"))
    space.stats("orders")
    visibility._follow_settings(space._store.view, older)  # as by a thread that was stopped before its lock
    assert space._store.view.settings is space._store.settings.known
    assert [message.body for message in space.browse("orders")] == ["high", "low"]
