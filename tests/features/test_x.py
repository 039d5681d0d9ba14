"""Behaviours that no peer has, by their ids: poison messages, expiry, deduplication, groups."""

import multiprocessing
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import spool
from spool.maintenance import tombstones
from spool.maintenance.compaction import Compactor
from spool.model.xid import Xid
from tests import door
from tests.clocks import MovedClock
from tests.compaction import small_compactions
from tests.features.conftest import Reopen, drained, edited, seen
from tests.spaces import fail_one

PATIENT_SECONDS = 60


# -- X06 --------------------------------------------------------------------------------------------------------------


def _die_of(path: str) -> None:
    with spool.open(path) as space, space.transaction() as tx:
        tx.get("q")
        os._exit(9)


def test_x06_a_message_that_kills_its_consumer_ends_in_the_error_queue(path: Path, space: spool.Space) -> None:
    space.create_queue("errors")
    space.create_queue("q", retries=2, error_queue="errors")
    space.put("q", "poison")
    spawn = multiprocessing.get_context("spawn")
    for attempt in range(3):
        assert seen(space, "errors") == []
        assert space.show(next(iter(space.browse("q"))).id).attempts <= attempt
        victim = spawn.Process(target=_die_of, args=(str(path),))
        victim.start()
        victim.join(PATIENT_SECONDS)
        assert victim.exitcode == 9
    assert drained(space, "q") == []
    message = space.get("errors")
    assert (message.body, message.origin_queue) == ("poison", "q")
    assert "died" in str(message.failure_reason)


# -- X07 --------------------------------------------------------------------------------------------------------------


def test_x07_a_message_past_its_time_is_never_delivered(space: spool.Space, clock: MovedClock, again: Reopen) -> None:
    space.create_queue("q")
    absolute = space.put("q", 1, expires_at=clock.now() + 100)
    space.put("q", 2, time_to_live=100, correlation_id="c")
    space.put("q", 3)
    assert space.show(absolute).expires_at == pytest.approx(clock.now() + 100, abs=5)
    other = again()
    clock.later += 101
    assert seen(other, "q") == [3]
    for wanted in ({"message_id": absolute}, {"correlation_id": "c"}):
        with pytest.raises(spool.Empty):
            space.get("q", **wanted)
    assert drained(other, "q") == [3]
    assert (space.stats("q").expired, space.stats("q").dequeued) == (2, 1)


@pytest.mark.parametrize(("on_expiry", "kept"), [("error", ["late"]), ("drop", [])])
def test_x07_an_expired_message_goes_to_the_error_queue_or_is_dropped_by_on_expiry(
    space: spool.Space, clock: MovedClock, on_expiry: str, kept: list[str]
) -> None:
    space.create_queue("errors")
    space.create_queue("q", error_queue="errors", on_expiry=on_expiry)
    space.put("q", "late", time_to_live=10)
    fail_one(space, "q")
    clock.later += 11
    assert space.stats("q").expired == 1
    assert [message.body for message in space.browse("errors")] == kept
    clock.later += 1000  # messages in an error queue never expire
    for message in space.browse("errors"):
        assert (message.expires_at, message.origin_queue) == (None, "q")
        assert message.failure_reason == "it was past its time"
        assert message.origin_attempts == 1


def test_x07_a_held_message_past_its_time_can_be_committed_and_not_given_back(space: spool.Space, clock: MovedClock):
    space.create_queue("q")
    for end in ("commit", "rollback"):
        space.put("q", end, time_to_live=10)
        tx = space.transaction()
        tx.get("q")
        clock.later += 11
        getattr(tx, end)()
        assert drained(space, "q") == []
    assert (space.stats("q").dequeued, space.stats("q").expired) == (1, 1)


def test_x07_compacted_messages_expire_too(space: spool.Space, clock: MovedClock) -> None:
    space.create_queue("q")
    for n in range(40):
        space.put("q", n, **({"time_to_live": 100} if n % 3 == 0 else {}))
    with small_compactions():
        assert door.compact(space) >= 1
        clock.later += 101
        assert seen(space, "q") == [n for n in range(40) if n % 3]
        assert space.stats("q").expired == 14
        assert drained(space, "q") == [n for n in range(40) if n % 3]


def test_x07_housekeeping_expires_messages_that_no_get_takes(space: spool.Space, clock: MovedClock) -> None:
    space.create_queue("q")
    space.put("q", 1, time_to_live=1)
    clock.later += 2
    door.housekeeper(space)._catch_up()
    door.expire(space)
    assert door.index(space).totals()["q"] == [1, 0, 0, 1]


def test_x07_times_that_exclude_each_other_are_refused(space: spool.Space) -> None:
    space.create_queue("q")
    with pytest.raises(spool.InvalidArgument, match="time_to_live and expires_at exclude each other"):
        space.put("q", 1, time_to_live=1, expires_at=1)


def test_x07_an_expired_message_stays_undelivered_until_its_error_queue_exists(space: spool.Space, clock: MovedClock):
    space.create_queue("q")
    edited(space, 'error_queue = "errors"')
    space.put("q", "late", time_to_live=10)
    clock.later += 11
    assert drained(space, "q") == []
    assert space.stats("q").expired == 0
    space.create_queue("errors")
    assert space.stats("q").expired == 1
    assert drained(space, "errors") == ["late"]


# -- X08 --------------------------------------------------------------------------------------------------------------


def test_x08_a_put_with_a_key_seen_within_the_window_returns_the_first_ones_id(
    space: spool.Space, clock: MovedClock, again: Reopen
) -> None:
    space.create_queue("q", deduplication_window=100)
    space.create_queue("other", deduplication_window=100)
    first = space.put("q", 1, deduplication_key="k")
    other = again()
    assert other.put("q", 2, deduplication_key="k") == first
    assert space.submit("q", 3, deduplication_key="k").result(PATIENT_SECONDS) == first
    space.get("q")
    assert other.put("q", 4, deduplication_key="k") == first  # taken or not
    assert other.put("other", 5, deduplication_key="k") != first
    clock.later += 101
    assert other.put("q", 6, deduplication_key="k") != first
    assert drained(space, "q") == [6]


def test_x08_the_key_is_remembered_over_a_restart_a_rollback_forgets_it(path: Path) -> None:
    with spool.create(path) as space:
        space.create_queue("q")
        with space.transaction() as tx:
            gone = tx.put("q", 0, deduplication_key="k")
            assert tx.put("q", 0, deduplication_key="k") == gone
            tx.rollback()
        first = space.put("q", 1, deduplication_key="k")
    with spool.open(path) as space:
        assert space.put("q", 2, deduplication_key="k") == first != gone
        assert drained(space, "q") == [1]


def test_x08_a_put_of_the_same_key_waits_for_the_outcome_of_the_first(space: spool.Space, again: Reopen) -> None:
    space.create_queue("q")
    other = again()
    ids: list[str] = []
    tx = space.transaction()
    first = tx.put("q", 1, deduplication_key="k")
    second = threading.Thread(target=lambda: ids.append(other.put("q", 2, deduplication_key="k")))
    second.start()
    time.sleep(0.05)
    assert ids == []
    tx.commit()
    second.join(PATIENT_SECONDS)
    assert ids == [first]
    assert drained(space, "q") == [1]


def test_x08_a_key_in_doubt_is_in_use(space: spool.Space) -> None:
    space.create_queue("q")
    branch = door.branch(space, xid=Xid(7, b"one", b""), timeout=30.0)
    branch.put("q", 1, deduplication_key="k")
    assert branch.prepare()
    with pytest.raises(spool.MessageInUse, match="in doubt"):
        space.put("q", 2, deduplication_key="k")


def test_x08_a_key_is_one_messages(space: spool.Space) -> None:
    space.create_queue("q")
    with pytest.raises(spool.InvalidArgument, match="one by one"):
        space.put_many("q", [1, 2], deduplication_key="k")


def test_x08_keys_take_few_files_and_none_after_the_window(space: spool.Space, clock: MovedClock) -> None:
    space.create_queue("q", deduplication_window=1000)
    ids = [space.put("q", n, deduplication_key=f"k{n}") for n in range(40)]
    assert len(drained(space, "q")) == 40
    committed = Path(space.path, "committed")
    with small_compactions():
        for _ in range(3):
            sum(Compactor(door.store(space)).steps())
            door.reclaim_behind(space)
    assert len(list(committed.iterdir())) < 10
    assert [space.put("q", n, deduplication_key=f"k{n}") for n in range(40)] == ids
    clock.later += 1001
    door.reclaim_behind(space)
    assert not [key for key in door.index(space).facts if key.startswith("deduplication")]
    assert sum(state.facts for state in door.index(space).files.values()) == len(door.index(space).facts) == 1
    assert len(list(committed.iterdir())) < 4


def test_x08_a_key_put_again_while_old_keys_are_rewritten_keeps_its_new_message(
    space: spool.Space, clock: MovedClock, again: Reopen, monkeypatch: pytest.MonkeyPatch
) -> None:
    space.create_queue("q", deduplication_window=100)
    for n in range(4):
        space.put("q", n, deduplication_key=f"k{n}")
    drained(space, "q")
    other, ids, said_by = again(), [], tombstones._content_of

    def meanwhile(*about: Any) -> Any:
        found = said_by(*about)
        clock.later += 101
        ids.append(other.put("q", "new", deduplication_key="k0"))
        return found

    monkeypatch.setattr(tombstones, "_content_of", meanwhile)
    with small_compactions():
        sum(Compactor(door.store(space)).steps())
    assert ids
    assert space.put("q", "again", deduplication_key="k0") == ids[0]


# -- X09 --------------------------------------------------------------------------------------------------------------


def test_x09_messages_of_one_group_come_one_at_a_time_groups_beside_each_other(space: spool.Space, again: Reopen):
    space.create_queue("q")
    for n in range(6):
        space.put("q", n, group="even" if n % 2 == 0 else "odd")
    space.put("q", "free")
    other = again()
    one, two, three = space.transaction(), other.transaction(), other.transaction()
    assert one.get("q").body == 0
    assert two.get("q").body == 1
    assert three.get("q").body == "free"
    with pytest.raises(spool.Empty):
        three.get("q")
    one.commit()
    assert three.get("q").body == 2
    two.rollback()
    assert three.get("q").body == 1
    three.commit()
    assert drained(other, "q") == [3, 4, 5]


def test_x09_a_compaction_keeps_a_group_waiting_for_its_failed_messages(space: spool.Space, clock: MovedClock) -> None:
    space.create_queue("q", ordered=True, retry_delay=3600)
    for n in range(24):
        space.put("q", n)
    tx = space.transaction()
    tx.get_many("q", 16)
    tx.rollback()
    with small_compactions():
        door.compact(space)
        assert drained(space, "q") == []
        clock.later += 3601
        assert drained(space, "q") == list(range(24))


def test_x09_a_transaction_that_has_a_group_may_take_more_of_it_in_order(space: spool.Space) -> None:
    space.create_queue("q")
    for n in range(4):
        space.put("q", n, group="g")
    with space.transaction() as tx:
        assert [tx.get("q").body, *(message.body for message in tx.get_many("q", 2))] == [0, 1, 2]
    assert drained(space, "q") == [3]


def test_x09_a_message_that_waits_for_its_next_attempt_keeps_its_group_waiting(space: spool.Space, clock: MovedClock):
    space.create_queue("q", retry_delay=100)
    space.put("q", 1, group="g")
    space.put("q", 2, group="g", delay=10)
    space.put("q", 3, group="g")
    with space.transaction() as tx:
        assert tx.get("q").body == 1
        tx.rollback()
    assert drained(space, "q") == []
    clock.later += 101
    assert drained(space, "q") == [1, 2, 3]


def test_x09_by_its_id_a_message_is_taken_out_of_order_yet_not_beside_another_of_its_group(space: spool.Space) -> None:
    space.create_queue("q")
    _, two, three = [space.put("q", n, group="g") for n in (1, 2, 3)]
    assert space.get("q", message_id=three).body == 3
    with space.transaction() as tx:
        tx.get("q")
        with pytest.raises(spool.MessageInUse):
            space.get("q", message_id=two, transaction=None)


def test_x09_a_branch_in_doubt_keeps_its_group_waiting(space: spool.Space, again: Reopen) -> None:
    space.create_queue("q")
    for n in (1, 2):
        space.put("q", n, group="g")
    branch = door.branch(space, xid=Xid(7, b"one", b""), timeout=30.0)
    branch.get("q")
    assert branch.prepare()
    for one in (space, again()):
        with pytest.raises(spool.Empty):
            one.get("q")


def test_x09_order_holds_over_compactions_and_restarts(space: spool.Space, again: Reopen) -> None:
    space.create_queue("q")
    for n in range(30):
        if n == 20:
            with small_compactions():
                door.compact(space)
        space.put("q", n, group=f"g{n % 3}")
    with small_compactions():
        other = again()
        held = [other.transaction() for _ in range(3)]
        assert sorted(tx.get("q").body for tx in held) == [0, 1, 2]
        with pytest.raises(spool.Empty):
            space.get("q")
        for tx in held:
            tx.rollback()
        with other.transaction() as tx:
            taken = [message.body for _ in range(3) for message in tx.get_many("q", 7)]
        taken += drained(space, "q")
    for group in range(3):
        assert [n for n in taken if n % 3 == group] == list(range(group, 30, 3))


# -- X12 --------------------------------------------------------------------------------------------------------------


def test_x12_dead_letters_are_redriven_to_where_each_came_from(space: spool.Space, clock: MovedClock) -> None:
    space.create_queue("errors")
    for queue in ("a", "b"):
        space.create_queue(queue, retries=0, error_queue="errors")
        message_id = space.put(queue, queue, headers={"from": queue}, time_to_live=1000)
        fail_one(space, queue)
    assert [message.origin_attempts for message in space.browse("errors")] == [1, 1]
    assert space.redrive("errors", dry_run=True) == 2
    assert space.redrive("errors", headers={"from": "a"}) == 1
    message = space.get("a")
    assert (message.body, message.attempts, message.origin_queue, message.not_before) == ("a", 0, "a", None)
    assert message.origin_attempts == 0
    assert space.redrive("errors", to="a") == 1
    assert space.get("a", message_id=message_id).origin_queue == "b"
    assert {name: stats.failed for name, stats in space.stats().items()} == {"a": 1, "b": 1, "errors": 0}


def test_x12_a_message_without_an_origin_remains_until_a_queue_is_named(space: spool.Space) -> None:
    space.create_queue("errors")
    space.create_queue("q")
    space.put("errors", 1)
    assert (space.redrive("errors", dry_run=True), space.redrive("errors")) == (0, 0)
    assert seen(space, "errors") == [1]
    with pytest.raises(spool.QueueNotFound):
        space.redrive("errors", "nowhere")
    assert space.redrive("errors", "q") == 1


def test_x09_e07_an_option_of_the_queue_makes_it_one_group(space: spool.Space, again: Reopen) -> None:
    space.create_queue("q", ordered=True)
    space.put_many("q", [1, 2])
    space.put("q", 3)
    with space.transaction() as tx:
        assert tx.get("q").body == 1
        with pytest.raises(spool.Empty):
            again().get("q")
        assert [message.body for message in tx.get_many("q", 5)] == [2, 3]
