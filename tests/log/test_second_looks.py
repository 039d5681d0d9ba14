"""Every query of a process sees the earlier changes of other processes."""

from io import BytesIO
from typing import Any
from unittest import mock

import pytest

import spool
from spool.admin import stats
from spool.admin.findings import Kind
from spool.admin.reads import peek
from spool.admin.schedules import put_due
from spool.coordination.counters import CounterPage
from spool.coordination.locks import xid_byte
from spool.errors import BadMessageId
from spool.log import visibility
from spool.log.adoption import UnknownBranch, voted_contents
from spool.model import layout
from spool.model.position import Position
from spool.policies import capacity
from spool.store.edits import notice_edits
from spool.store.settings_reader import read_settings_text, write_settings
from spool.store.store import Store
from spool.workers import claimed
from spool.workers.outcome import Rejected, Replied
from tests import door
from tests.meanwhile import XID, Processes, Watched, commit, prepare, rollback
from tests.shown import bodies


def take_and_reclaim(space: spool.Space) -> None:
    """The file of the first message is removed, and another message becomes the head of the queue."""
    space.get("orders")
    space.put("orders", "newest")
    assert door.reclaim(space)


def test_every_query_sees_the_message_of_another_process(space: spool.Space, other: spool.Space) -> None:
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


def test_a_holder_of_claims_and_arrivals_sees_messages_of_others(space: spool.Space, other: spool.Space) -> None:
    with other.claims() as claims, other.arrivals(["orders"]) as arrivals:
        space.put("orders", "one", correlation_id="key")
        assert bodies(other) == ["one"]
        space.put("orders", "late", delay=100)
        assert arrivals.next_due() is not None
        space.put("orders", "two", correlation_id="key")
        found = other.find("orders", correlation_id="key")
        assert found is not None
        assert found.body == "two"
        with space.transaction() as transaction:
            taken = transaction.get("orders", correlation_id="key")
            assert other.state(taken) == "claimed"
        assert other.state(taken) == "gone"
        space.put("orders", "three")
        assert [message.body for message in claims.take("orders", 5)] == ["two", "three"]


def test_the_state_of_a_message_changes_with_the_branches_of_others(space: spool.Space, other: spool.Space) -> None:
    message = other.show(space.put("orders", "one"))
    assert other.state(message) == "ready"
    prepare(space, take=True)
    assert other.state(message) == "in doubt"
    rollback(space)
    assert other.state(message) == "ready"


def test_a_failed_claim_moves_to_the_error_queue_of_current_settings(space: spool.Space, other: spool.Space) -> None:
    space.create_queue("errors")
    space.put_many("orders", ["one", "two"])
    with other.claims() as claims:
        one, two = claims.take("orders", 2)
        space.change_queue("orders", error_queue="errors", retries=0)
        claims.fail(one, "failed").result()
        claims.reject([two], "refused").result()
    assert bodies(space, "errors") == ["one", "two"]


def test_changes_by_others_while_a_message_expires_count(processes: Processes, space: spool.Space, watched: Watched):
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


def test_every_query_hides_a_message_that_a_branch_of_another_process_holds(space: spool.Space, other: spool.Space):
    space.put("orders", "one")
    assert bodies(other) == ["one"]
    prepare(space, take=True)
    assert bodies(other) == []
    rollback(space)
    assert bodies(other) == ["one"]
    prepare(space, take=True)
    assert other.stats()["orders"].in_doubt == 2, "the messages that it takes and that it adds"
    rollback(space)
    assert other.stats()["orders"].in_doubt == 0
    prepare(space, take=True)
    with pytest.raises(spool.Empty):
        other.get("orders")
    rollback(space)
    assert other.get("orders").body == "one"


def test_what_a_monitor_shows_includes_the_changes_of_others(space: spool.Space, other: spool.Space) -> None:
    space.put("orders", "late", delay=1_000)
    assert other.engine.first_due("orders") is not None
    space.put("orders", "one")
    assert sum(tasks.ready for tasks in other.engine.waiting_tasks("orders", 9)[0].values()) == 1
    space.create_schedule("s", "orders", "tick", cron="@yearly")
    assert list(other.schedules()) == ["s"]
    space.put("orders", "two")
    with space.transaction() as transaction:
        assert len(transaction.get_many("orders", 2)) == 2
        assert [entry.state for entry in other.engine.held_messages(9, 9)] == ["claimed", "claimed"]
        transaction.rollback()
    prepare(space, take=True)
    assert [entry.state for entry in other.engine.held_messages(9, 9)] == ["in doubt"]
    commit(space)
    assert other.engine.describe_all() == []
    prepare(space)
    assert [branch.xid for branch in other.engine.describe_all()] == [str(XID)]
    with door.store(space).shared.xids.holding(xid_byte(XID), door.deadline(space), "a branch that still votes"):
        assert other.engine.describe_all() == []


def test_a_message_reclaimed_while_it_is_shown_is_gone_and_not_damaged(space: spool.Space, watched: Watched) -> None:
    reader, disk = watched
    wanted = space.put("orders", "one")
    assert bodies(reader) == ["one"]
    door.store(reader).files.cache.forget(1)
    disk.before("open", lambda: take_and_reclaim(space), layout.committed(1))
    with pytest.raises(BadMessageId):
        reader.show(wanted)
    assert peek(door.store(reader), Position(1, 0)) is None


def test_a_process_does_not_read_back_its_own_commits(processes: Processes, space: spool.Space) -> None:
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
    space.create_queue("fourth")
    assert "fourth" in other.engine.config().queues
    space.create_queue("fifth")
    assert list(other.engine.backlog(["fifth"]).items(0, 9)) == []
    space.create_queue("sixth")
    assert "sixth" in other.metrics().queues
    space.delete_queue("third")
    assert other.ensure_queue("third", retries=1).retries == 1


def test_a_queue_s_new_settings_are_seen_by_the_next_put(space: spool.Space, other: spool.Space) -> None:
    """An edit by hand raises no version; the creation of a queue does."""
    text = read_settings_text(door.disk(other))
    other.put("orders", "one")
    assert door.store(other).settings.known.config.max_body_bytes > 10
    write_settings(door.disk(space), f"max_body_bytes = 10\n{text}")
    space.create_queue("more")
    with pytest.raises(spool.SpoolError, match="max_body_bytes"):
        other.put("orders", "x" * 11)


def test_edited_settings_are_known_to_the_process_that_notices_the_edit(space: spool.Space, other: spool.Space) -> None:
    text = read_settings_text(door.disk(other))
    write_settings(door.disk(space), f"max_body_bytes = 10\n{text}")
    notice_edits(door.store(other))
    assert door.store(other).settings.known.config.max_body_bytes == 10


def test_an_attempt_by_http_ends_by_current_settings(space: spool.Space, other: spool.Space) -> None:
    text = read_settings_text(door.disk(space))
    space.put_many("orders", ["one", "two"])
    with other.claims() as claims:
        one, two = claims.take("orders", 2)
        write_settings(door.disk(space), f"max_body_bytes = 10\n{text}")
        space.create_queue("errors")
        attempt = other.engine.claimed_attempt(claims, one)
        attempt.commit(Replied(b"x" * 11), "reject", [], b"0" * 16).result()
        assert "limit of 10 bytes" in attempt.conclusion.reason
        space.change_queue("orders", error_queue="errors")
        other.engine.claimed_attempt(claims, two).commit(Rejected("no"), "reject", [], b"0" * 16).result()
    assert bodies(space, "errors") == ["two"]


def test_an_attempt_by_http_puts_nothing_into_a_queue_that_is_deleted_meanwhile(
    space: spool.Space, other: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    def delete_first(*args: Any, **options: Any) -> Any:
        space.delete_queue("answers")
        return submit(*args, **options)

    submit = claimed.submit
    monkeypatch.setattr(claimed, "submit", delete_first)
    space.create_queue("answers")
    space.put("orders", "one", reply_queue="answers")
    with other.claims() as claims:
        attempt = other.engine.claimed_attempt(claims, claims.take("orders")[0])
        attempt.commit(Replied(b"yes"), "reject", [], b"0" * 16).result()
        assert attempt.conclusion.effect == "retried"
    assert space.check() == []


def test_a_failed_message_moves_to_the_error_queue_of_current_settings(space: spool.Space, other: spool.Space) -> None:
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


def test_a_queue_made_or_deleted_while_one_opens_or_checks_is_not_lost(processes: Processes, space: spool.Space):
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
            with spool.open(disk) as late:
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


# -- calls of an administrator ----------------------------------------------------------------------------------------


def test_a_purge_sees_the_messages_and_votes_of_others(space: spool.Space, other: spool.Space) -> None:
    space.put_many("orders", ["one", "two"])
    prepare(space, take=True)
    assert other.purge("orders", dry_run=True) == 1
    assert other.purge("orders") == 1


def test_a_queue_is_deleted_despite_earlier_branches_of_others(space: spool.Space, other: spool.Space) -> None:
    space.create_queue("more")
    prepare(other)
    rollback(other)
    space.delete_queue("more")
    assert "more" not in other.queues()


def test_a_queue_is_deleted_while_another_process_votes(space: spool.Space, watched: Watched) -> None:
    deleting, disk = watched
    for place in range(5):
        space.create_queue("more")
        disk.before("lock", lambda: prepare(space), spare=place)
        deleting.delete_queue("more")
        assert not disk.waits_for("lock")
        rollback(space)


def test_an_export_has_the_dropped_files_of_a_new_queue_of_another_process(space: spool.Space, other: spool.Space):
    other.queues()
    space.create_queue("more")
    disk = door.disk(space)
    disk.close(disk.create(f"{layout.DROP}/more/dropped"))
    report = other.export(BytesIO())
    assert list(report.dropped) == [f"{layout.DROP}/more/dropped"]


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
    assert other.engine.describe(XID).puts == {"orders": 1}
    commit(space)
    with pytest.raises(UnknownBranch) as unknown:
        other.engine.describe(XID)
    assert unknown.value.committed_by == processes.newest()


def test_a_branch_that_is_not_there_any_more_is_said_to_be_committed(
    processes: Processes, space: spool.Space, other: spool.Space
) -> None:
    prepare(space)
    commit(space)
    with pytest.raises(UnknownBranch) as unknown:
        voted_contents(door.store(other), XID)
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


def test_no_branch_votes_for_a_queue_that_is_deleted_while_it_votes(space: spool.Space, watched: Watched) -> None:
    watched[1].before("lock", lambda: space.delete_queue("orders"), spare=1)  # (after the branch, before the list)
    with pytest.raises(spool.QueueNotFound, match="deleted meanwhile"):
        prepare(watched[0])
    assert space.engine.describe_all() == []


def test_a_schedule_of_another_process_is_put(processes: Processes, space: spool.Space, other: spool.Space) -> None:
    space.create_schedule("s", "orders", "tick", cron="* * * * *")
    processes.machine.clock.sleep(61)
    assert put_due(door.core(other)) > processes.machine.clock.now(), "the process knows what it has just put"
    assert bodies(space) == ["tick"]


def test_messages_and_votes_of_others_reach_a_mark(space: spool.Space, other: spool.Space) -> None:
    space.create_queue("full", capacity_high="2 messages", capacity_command="page")
    assert other.queues()
    space.put("full", "one")
    prepare(space, queue="full")
    with mock.patch.object(capacity, "run_command") as run:
        capacity.check_marks(door.store(other))
    assert run.call_count == 1


# -- check ------------------------------------------------------------------------------------------------------------


def test_check_sees_a_message_that_another_process_has_just_put(
    processes: Processes, space: spool.Space, other: spool.Space
) -> None:
    space.put("orders", "one")
    name = layout.committed(door.counters(space).published)
    processes.disk().damage(name)
    assert [(finding.kind, finding.name) for finding in other.check()] == [(Kind.DAMAGED, name)]


def test_check_knows_queues_that_another_process_made(space: spool.Space, other: spool.Space) -> None:
    other.create_queue("more")
    other.put("more", "one")
    assert space.check() == []


def test_check_finds_no_fault_with_files_that_are_reclaimed_meanwhile(space: spool.Space, watched: Watched) -> None:
    checker, disk = watched
    space.put("orders", "one")
    assert bodies(checker) == ["one"]
    disk.before("open", lambda: take_and_reclaim(space), layout.committed(1))
    assert checker.check() == []
    assert bodies(checker) == ["newest"]


def test_check_does_not_miss_a_file_that_is_reclaimed_meanwhile(space: spool.Space, watched: Watched) -> None:
    checker, disk = watched
    space.put("orders", "one")
    disk.before("exclusively", lambda: take_and_reclaim(space), layout.RECLAIM_LOCK)
    assert checker.check() == []
    assert not disk.waits_for("exclusively")


def test_no_process_reclaims_while_a_check_counts_files(space: spool.Space, watched: Watched) -> None:
    checker, disk = watched
    space.put("orders", "one")
    counts: list[int] = []

    def come_too() -> None:
        space.get("orders")
        space.put("orders", "newest")
        counts.append(door.reclaim(space))

    disk.before("names", come_too, layout.COMMITTED, spare=2)
    assert checker.check() == []
    assert counts == [0]


def test_q02_a_late_thread_does_not_sort_by_older_options(space: spool.Space, monkeypatch: pytest.MonkeyPatch) -> None:
    space.put("orders", "low", priority=1)
    space.put("orders", "high", priority=99)
    older = door.store(space).settings.known
    space.change_queue("orders", order=("priority", "fifo"))
    space.stats("orders")
    visibility._follow_settings(door.store(space).view, older)  # as by a thread that was stopped before its lock
    assert door.store(space).view.settings is door.store(space).settings.known
    assert [message.body for message in space.browse("orders")] == ["high", "low"]
