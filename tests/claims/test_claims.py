"""Claims of one process: each way to end a message, groups, refusals, and the end of the claims themselves."""

import pickle
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

import spool
from spool.disk.disk import Disk
from tests import door
from tests.at_once import AT_ONCE
from tests.clocks import SimulatedClock, timed
from tests.full import no_room
from tests.held import PATIENT_SECONDS, committed_here
from tests.shown import shown
from tests.spaces import remove_by_hand


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def space(tmp_path: Path, clock: SimulatedClock) -> Iterator[spool.Space]:
    with spool.create(timed(tmp_path / "space", clock), defaults=AT_ONCE) as made:
        made.create_queue("errors")
        made.create_queue("orders", error_queue="errors", retries=1, retry_delay=10.0)
        yield made


@pytest.fixture
def claims(space: spool.Space) -> Iterator[spool.Claims]:
    with space.claims() as made:
        yield made


def bodies(messages: Iterable[spool.Message]) -> list[Any]:
    return [message.body for message in messages]


def test_x14_messages_are_taken_in_order_and_acknowledged_in_any(space: spool.Space, claims: spool.Claims) -> None:
    space.put_many("orders", range(5))
    taken = claims.take("orders", 3)
    assert bodies(taken) == [0, 1, 2]
    assert (space.stats("orders").claimed, space.stats("orders").ready, claims.held) == (3, 2, 3)
    assert space.get("orders").body == 3, "no other caller gets a held message"
    claims.remove([taken[2], taken[0]]).result(PATIENT_SECONDS)
    assert bodies(space.browse("orders")) == [1, 4]
    claims.remove(taken[1:2]).result(PATIENT_SECONDS)
    assert (space.stats("orders").dequeued, claims.held) == (4, 0)
    assert bodies(claims.take("orders", 9)) == [4]
    assert claims.take("orders", 9) == [], "no wait"


def test_x14_removals_of_one_moment_share_a_commit(space: spool.Space, claims: spool.Claims) -> None:
    space.put_many("orders", range(100))
    taken = claims.take("orders", 100)
    random.Random(1).shuffle(taken)
    before = door.counters(space).issued
    with committed_here(space):
        futures = [claims.remove([message]) for message in taken[:50]] + [claims.remove(taken[50:])]
        assert not any(future.done() for future in futures)
    assert all(future.result(0) is None for future in futures)
    assert door.counters(space).issued == before + 1
    assert list(space.browse("orders")) == []


def test_x14_ten_thousand_messages_are_held_and_removed_in_one_commit(tmp_path: Path) -> None:
    with spool.create(tmp_path / "space") as space, space.claims() as claims:
        space.create_queue("orders")
        for _ in range(10):  # held messages of many commits, and of neighbours
            space.put_many("orders", range(1000))
        taken = claims.take("orders", 20_000)
        assert len(taken) == claims.held == space.stats("orders").claimed == 10_000
        random.Random(1).shuffle(taken)
        before = door.counters(space).issued
        claims.remove(taken).result(PATIENT_SECONDS)
        assert door.counters(space).issued == before + 1
        assert (claims.held, space.stats("orders").dequeued, space.stats("orders").claimed) == (0, 10_000, 0)


def test_x14_a_failure_counts_an_attempt_waits_and_ends_in_the_error_queue(
    space: spool.Space, claims: spool.Claims, clock: SimulatedClock
) -> None:
    space.put("orders", "one")
    claims.fail(*claims.take("orders"), "it broke").result(PATIENT_SECONDS)
    assert claims.held == 0
    assert claims.take("orders") == [], "the retry delay"
    clock.time += 10.0
    [again] = claims.take("orders")
    assert (again.attempts, again.failure_reason) == (1, "it broke")
    claims.fail(again, "for good").result(PATIENT_SECONDS)
    [ended] = claims.take("errors")
    assert (ended.origin_queue, ended.origin_attempts, ended.failure_reason) == ("orders", 2, "for good")
    assert space.stats("orders").failed == 1


def test_x14_the_delay_of_a_failure_replaces_the_retry_delay(
    space: spool.Space, claims: spool.Claims, clock: SimulatedClock
) -> None:
    space.put("orders", "one")
    claims.fail(*claims.take("orders"), "later", delay=60).result(PATIENT_SECONDS)
    clock.time += 59.0
    assert claims.take("orders") == []
    clock.time += 1.0
    assert bodies(claims.take("orders")) == ["one"]
    for wrong in (-1, "soon", float("nan"), True):
        with pytest.raises(spool.InvalidArgument, match="delay is a number of seconds"):
            claims.fail(next(space.browse("orders")), "later", delay=wrong)  # type: ignore[arg-type]


def test_x14_a_rejection_moves_messages_to_the_error_queue_at_once(space: spool.Space, claims: spool.Claims) -> None:
    space.put_many("orders", range(3))
    taken = claims.take("orders", 3)
    before = door.counters(space).issued
    claims.reject(taken[::2], "no such account").result(PATIENT_SECONDS)
    assert door.counters(space).issued == before + 1
    failed = shown(claims.take("errors", 9), "body origin_attempts failure_reason")
    assert failed == [(0, 1, "no such account"), (2, 1, "no such account")]
    assert claims.held == 3


def test_x14_calls_that_wait_for_the_error_queue_are_woken_once_the_message_is_free(
    space: spool.Space, claims: spool.Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken = dict[str, int]()
    wakeups = door.store(space).shared.counters.wakeups
    monkeypatch.setattr(wakeups, "announce", woken.update)
    space.put_many("orders", range(3))
    claims.reject(claims.take("orders", 3)[1:], "no").result(PATIENT_SECONDS)
    assert woken["errors"] == 2


def test_x14_a_rejection_without_an_error_queue_drops_the_message_with_a_warning(
    space: spool.Space, claims: spool.Claims, caplog: pytest.LogCaptureFixture
) -> None:
    space.create_queue("plain")
    id = space.put("plain", "one")
    claims.reject(claims.take("plain"), "bad").result(PATIENT_SECONDS)
    assert (space.stats("plain").failed, space.stats("plain").ready, claims.held) == (1, 0, 0)
    assert f"message {id} of queue plain was rejected, and is deleted" in caplog.text


def test_x14_a_rejection_with_a_delay_drops_no_message(space: spool.Space, claims: spool.Claims, clock: SimulatedClock):
    space.create_queue("plain", retries=0)
    space.put("plain", "one")
    for _ in range(3):
        claims.reject(claims.take("plain"), "not mine", delay=60).result(PATIENT_SECONDS)
        [waiting] = space.browse("plain")
        assert (waiting.attempts, waiting.failure_reason, space.stats("plain").delayed) == (0, "not mine", 1)
        clock.time += 60.0
    space.put("orders", "two")
    claims.reject(claims.take("orders"), "not mine", delay=60).result(PATIENT_SECONDS)
    assert bodies(claims.take("errors")) == ["two"], "at once"
    with pytest.raises(spool.InvalidArgument, match="delay is a number of seconds"):
        claims.reject(claims.take("plain"), "not mine", delay=-1)


def test_x14_a_released_message_is_at_its_place_again_and_wakes_a_waiting_call(
    space: spool.Space, claims: spool.Claims
) -> None:
    space.put_many("orders", range(3))
    taken = claims.take("orders", 3)
    claims.release(taken[1:])
    assert [(one.body, one.attempts) for one in claims.take("orders", 9)] == [(1, 0), (2, 0)]
    claims.begin(taken[0])
    waiting, got = threading.Event(), []

    def get() -> None:
        waiting.set()
        got.append(space.get("orders", timeout=PATIENT_SECONDS))

    thread = threading.Thread(target=get)
    thread.start()
    assert waiting.wait(PATIENT_SECONDS)
    claims.release([taken[0]])
    thread.join(PATIENT_SECONDS)
    assert [(one.body, one.attempts) for one in got] == [(0, 0)], "no attempt is counted, even for a begun message"


def test_x14_a_message_is_taken_by_its_correlation_id(space: spool.Space, claims: spool.Claims) -> None:
    space.put("orders", "other")
    space.put("orders", "now", correlation_id="x")
    space.put("orders", "later", correlation_id="x", delay=100)
    assert bodies(claims.take("orders", 9, correlation_id="x")) == ["now", "later"]
    assert claims.take("orders", 9, correlation_id="x") == []


# -- groups -----------------------------------------------------------------------------------------------------------


def test_x14_a_message_is_taken_by_its_id(space: spool.Space, claims: spool.Claims) -> None:
    space.put("orders", "first")
    id = space.put("orders", "later", delay=100)
    [taken] = claims.take("orders", 9, message_id=id)
    assert (taken.id, taken.body) == (id, "later")
    assert claims.take("orders", message_id=id) == [], "the message is held"
    claims.remove([taken]).result(PATIENT_SECONDS)
    assert claims.take("orders", message_id=id) == [], "the message was removed"
    assert bodies(claims.take("orders", 9)) == ["first"]


def test_x14_of_a_group_one_message_at_a_time_is_held_and_the_next_follows_its_end(
    space: spool.Space, claims: spool.Claims
) -> None:
    for body in range(4):
        space.put("orders", body, group="ab"[body % 2])
    space.put("orders", 4)
    taken = claims.take("orders", 3)
    assert bodies(taken) == [0, 1, 4]
    with space.claims() as others:
        assert claims.take("orders", 9) == others.take("orders", 9) == []
        claims.remove(taken[:1]).result(PATIENT_SECONDS)
        [second] = others.take("orders", 9)
        assert second.body == 2, "the lock of a group passes to the next holder"
        others.release([second])
    claims.fail(taken[1], "later").result(PATIENT_SECONDS)
    assert bodies(claims.take("orders", 9)) == [2], "the failed message of group b holds up its group"


def test_x14_of_an_ordered_queue_one_message_is_held(space: spool.Space, claims: spool.Claims) -> None:
    space.create_queue("line", ordered=True)
    space.put_many("line", range(3))
    for body in range(3):
        [message] = claims.take("line", 9)
        assert message.body == body
        assert claims.take("line", 9) == []
        with pytest.raises(spool.Empty):
            space.get("line")
        claims.remove([message]).result(PATIENT_SECONDS)


def test_x14_a_take_by_correlation_id_gets_one_message_of_a_group(space: spool.Space, claims: spool.Claims) -> None:
    for body in range(3):
        space.put("orders", body, group="a" if body < 2 else None, correlation_id="x")
    taken = claims.take("orders", 9, correlation_id="x")
    assert bodies(taken) == [0, 2]
    assert space.stats("orders").claimed == claims.held == 2
    claims.remove(taken).result(PATIENT_SECONDS)
    assert bodies(claims.take("orders", 9, correlation_id="x")) == [1]


def test_x14_a_group_that_no_message_was_taken_of_is_free(space: spool.Space, claims: spool.Claims) -> None:
    space.put("orders", "one", group="a", delay=100, correlation_id="x")
    assert claims.take("orders") == []
    assert space.get("orders", correlation_id="x").body == "one"


# -- refusals ---------------------------------------------------------------------------------------------------------


ENDINGS: list[Callable[[spool.Claims, spool.Message], object]] = [
    spool.Claims.begin,
    lambda claims, message: claims.remove([message]),
    lambda claims, message: claims.fail(message, "again"),
    lambda claims, message: claims.reject([message], "no"),
    lambda claims, message: claims.release([message]),
]


@pytest.mark.parametrize("ending", ENDINGS, ids=["begin", "remove", "fail", "reject", "release"])
def test_x14_a_message_that_is_not_held_is_refused_and_nothing_changes(
    space: spool.Space, claims: spool.Claims, ending: Callable[[spool.Claims, spool.Message], object]
) -> None:
    space.put_many("orders", range(4))
    removed, released, held = claims.take("orders", 3)
    claims.remove([removed]).result(PATIENT_SECONDS)
    claims.release([released])
    free = next(message for message in space.browse("orders") if message.body == 3)
    with space.claims() as others:
        theirs = others.take("orders")
        for message in (removed, released, free, *theirs):
            with pytest.raises(spool.BadMessageId, match=f"message {message.id} is not held by these claims"):
                ending(claims, message)
    with pytest.raises(spool.BadMessageId):
        claims.remove([held, removed])
    assert (claims.held, bodies(space.browse("orders"))) == (1, [1, 2, 3])
    with pytest.raises(spool.InvalidArgument, match=r"messages that take\(\) returned"):
        ending(claims, held.id)  # type: ignore[arg-type]
    claims.remove([held, held]).result(PATIENT_SECONDS)


def test_x14_a_message_that_is_being_removed_is_refused(space: spool.Space, claims: spool.Claims) -> None:
    space.put("orders", "one")
    taken = claims.take("orders")
    with committed_here(space):
        future = claims.remove(taken)
        assert claims.held == 1
        with pytest.raises(spool.BadMessageId, match="is being removed or failed"):
            claims.fail(*taken, "again")
    assert future.result(0) is None


def test_x14_wrong_arguments_are_refused_with_the_remedy(space: spool.Space, claims: spool.Claims) -> None:
    space.put("orders", "one")
    [message] = claims.take("orders")
    with pytest.raises(spool.InvalidArgument, match=r"use remove\(\[message\]\)"):
        claims.remove(message)  # type: ignore[arg-type]
    with pytest.raises(spool.QueueNotFound, match="there is no queue 'order'"):
        claims.take("order")
    for wrong in (0, -1, "2", True, None):
        with pytest.raises(spool.InvalidArgument, match="max_messages is a whole number from 1"):
            claims.take("orders", wrong)  # type: ignore[arg-type]
    with pytest.raises(spool.BadMessageId, match="nothing"):
        claims.take("orders", message_id="nothing")
    with pytest.raises(spool.InvalidArgument, match="exclude each other"):
        claims.take("orders", message_id=message.id, correlation_id="x")
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(claims)
    assert claims.remove([]).result(0) is claims.reject([], "no").result(0) is None
    claims.release([])


def test_x14_an_administrator_does_not_delete_a_held_message(space: spool.Space, claims: spool.Claims) -> None:
    id = space.put("orders", "one")
    taken = claims.take("orders")
    for act in (space.delete, lambda id: space.move(id, "errors"), lambda id: space.change(id, priority=9)):
        with pytest.raises(spool.MessageInUse):
            act(id)
    assert space.purge("orders") == 0
    with pytest.raises(spool.QueueNotEmpty):
        space.delete_queue("orders")
    claims.remove(taken).result(PATIENT_SECONDS)


def test_x14_a_message_that_expires_while_it_is_held_is_removed_as_any_other(
    space: spool.Space, claims: spool.Claims, clock: SimulatedClock
) -> None:
    space.put_many("orders", ["one", "two"], time_to_live=5)
    taken = claims.take("orders", 2)
    clock.time += 6.0
    assert space.stats("orders").expired == 0
    claims.remove(taken[:1]).result(PATIENT_SECONDS)
    claims.release(taken[1:])
    assert claims.take("orders") == []
    assert (space.stats("orders").dequeued, space.stats("orders").expired) == (1, 1)


def test_x14_a_full_error_queue_takes_failed_messages_nevertheless(space: spool.Space, claims: spool.Claims) -> None:
    space.change_queue("errors", max_messages=1)
    space.put_many("orders", range(2))
    claims.reject(claims.take("orders", 2), "no").result(PATIENT_SECONDS)
    assert space.stats("errors").ready == 2


# -- failures of the disk ---------------------------------------------------------------------------------------------


def test_x14_a_removal_succeeds_on_a_full_disk(
    space: spool.Space, claims: spool.Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    space.put_many("orders", range(3))
    taken = claims.take("orders", 3)
    space.put("orders", "more")
    space.get("orders")
    with monkeypatch.context() as full:
        full.setattr(Disk, "create", no_room)
        with pytest.raises(spool.DiskFailure):
            space.put("orders", "x" * 100_000)
        claims.remove(taken).result(PATIENT_SECONDS)
    assert list(space.browse("orders")) == []


def fails() -> None:
    raise OSError(5, "it fails")


def test_x14_after_a_failed_removal_the_messages_are_held_and_can_be_removed_again(
    space: spool.Space, claims: spool.Claims
) -> None:
    space.put_many("orders", range(2))
    taken = claims.take("orders", 2)

    with door.failing_attempts(fails):
        for end in (lambda: claims.remove(taken), lambda: claims.fail(taken[0], ""), lambda: claims.reject(taken, "")):
            assert isinstance(end().exception(PATIENT_SECONDS), spool.DiskFailure)
    assert (claims.held, space.stats("orders").claimed) == (2, 2)
    claims.remove(taken).result(PATIENT_SECONDS)
    assert space.stats("orders").dequeued == 2


@pytest.mark.parametrize("happened", [True, False])
def test_x14_a_call_of_unknown_outcome_is_repeatable(space: spool.Space, claims: spool.Claims, happened: bool) -> None:
    space.put_many("orders", range(4), group="a")
    for first, second in ((1, 1), (3, 2)):  # remove and remove again; reject, then fail
        taken = claims.take("orders", 2)
        with door.unknown_attempts(happened=happened):
            future: Any = ENDINGS[first](claims, taken[0])
            assert isinstance(future.exception(PATIENT_SECONDS), spool.CommitUnknown)
        assert (claims.held, len(taken)) == (1, 1)
        future = ENDINGS[second](claims, taken[0])
        assert future.result(PATIENT_SECONDS) is None
        assert claims.held == 0
    assert space.stats("orders").dequeued == 1
    assert [(one.attempts, one.failure_reason) for one in space.browse("errors")] == ([(0, "no")] if happened else [])
    if happened:
        assert bodies(claims.take("orders")) == [2], "the lock of the group is free"


def test_x14_a_full_disk_counts_no_attempts_and_stops_no_call(
    space: spool.Space, claims: spool.Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    space.put_many("orders", range(2))
    one, two = claims.take("orders", 2)
    with monkeypatch.context() as full:
        full.setattr(Disk, "create", no_room)
        claims.begin(one)
        full.undo()
        claims.begin(one)
        full.setattr(Disk, "write_at", no_room)
        claims.begin(two)
    assert door.in_work(space) == [one.position]
    claims.remove([one, two]).result(PATIENT_SECONDS)


# -- the end of claims ------------------------------------------------------------------------------------------------


def test_x14_the_end_of_the_block_releases_all_and_later_calls_name_the_remedy(space: spool.Space) -> None:
    space.put_many("orders", range(3), group="a")
    space.put("orders", 3)
    with space.claims() as claims:
        taken = claims.take("orders", 9)
        claims.begin(taken[0])
        with committed_here(space):
            future = claims.remove(taken[1:])
            claims.close()
            claims.close()
            assert claims.held == 1, "the removal under way"
    assert future.result(0) is None
    assert claims.held == space.stats("orders").claimed == 0
    assert [(one.body, one.attempts) for one in space.browse("orders")] == [(0, 0), (1, 0), (2, 0)]
    assert space.get("orders").body == 0, "its group is free"
    assert door.in_work(space) == []
    for call in (lambda: claims.take("orders"), lambda: claims.remove(taken), lambda: claims.begin(taken[0])):
        with pytest.raises(spool.ProtocolError, match=r"call space\.claims\(\)"):
            call()


def test_x14_after_a_failed_removal_closed_claims_release_the_messages(space: spool.Space) -> None:
    space.put("orders", "one")
    claims = space.claims()
    with door.failing_attempts(fails), committed_here(space):
        future = claims.remove(claims.take("orders"))
        claims.close()
    assert isinstance(future.exception(0), spool.DiskFailure)
    assert (claims.held, space.stats("orders").ready) == (0, 1)


def test_x14_a_closed_space_refuses_all_calls_and_has_released_the_messages(tmp_path: Path) -> None:
    with spool.create(tmp_path / "space") as space:
        space.create_queue("orders", retries=None, retry_delay=0.0)
        space.put_many("orders", range(2))
        claims = space.claims()
        taken = claims.take("orders", 2)
        claims.begin(taken[0])
    for ending in ENDINGS:
        with pytest.raises(spool.NotOpen):
            ending(claims, taken[0])
    with pytest.raises(spool.NotOpen):
        claims.take("orders")
    claims.close()
    with spool.open(tmp_path / "space") as space:
        assert [(one.body, one.attempts) for one in space.browse("orders")] == [(0, 1), (1, 0)]
        with pytest.raises(spool.NotOpen), space.claims():
            space.close()
            space.claims()


def test_x14_a_removal_under_way_is_committed_when_the_space_closes(tmp_path: Path) -> None:
    with spool.create(tmp_path / "space") as space:
        space.create_queue("orders")
        space.put_many("orders", range(100))
        claims = space.claims()
        futures = [claims.remove([message]) for message in claims.take("orders", 100)]
    assert not wait(futures, PATIENT_SECONDS).not_done
    assert [future.exception() for future in futures] == [None] * 100
    with spool.open(tmp_path / "space") as space:
        assert list(space.browse("orders")) == []


def test_x14_dropped_claims_are_released_with_a_warning(space: spool.Space) -> None:
    space.put("orders", "one")
    with pytest.warns(ResourceWarning, match="1 messages, which are released"):
        assert space.claims().take("orders")
    door.steps(space)
    assert space.get("orders").body == "one"


# -- threads and foreign code -----------------------------------------------------------------------------------------


def test_x14_many_threads_use_one_object(space: spool.Space, claims: spool.Claims, pool: ThreadPoolExecutor) -> None:
    space.put_many("orders", range(2000))
    seen: list[list[int]] = [[] for _ in range(8)]

    def work(mine: list[int]) -> None:
        while taken := claims.take("orders", 7):
            mine += bodies(taken)
            for message in taken[:3]:
                claims.begin(message)
            claims.remove(taken[::-1])

    list(pool.map(work, seen, timeout=PATIENT_SECONDS))
    assert sorted(body for mine in seen for body in mine) == list(range(2000))
    space.put("orders", "last")  # after the removals, which were submitted earlier
    assert bodies(space.browse("orders")) == ["last"]


def test_x14_a_callback_of_a_future_may_use_the_claims(space: spool.Space, claims: spool.Claims) -> None:
    space.put_many("orders", range(3))
    done = threading.Event()

    def next_one(_: object) -> None:
        if taken := claims.take("orders"):
            claims.remove(taken).add_done_callback(next_one)
        else:
            done.set()

    next_one(None)
    assert done.wait(PATIENT_SECONDS)
    assert space.stats("orders").dequeued == 3


def test_x14_an_error_queue_that_was_deleted_meanwhile_is_not_used(space: spool.Space, claims: spool.Claims) -> None:
    """The failure is committed under the settings of its commit: without an error queue, the attempts are unlimited."""
    space.create_queue("rare", error_queue="errors", retries=0)
    space.put("rare", "one")
    with committed_here(space):
        future = claims.fail(*claims.take("rare"), "it broke")
        space.change_queue("orders", error_queue=None)
        space.change_queue("rare", error_queue=None, retries=None)
        space.delete_queue("errors")
    if not future.done():  # the failure was refused, and sent again
        with committed_here(space):
            pass
    assert future.result(PATIENT_SECONDS) is None
    assert [(one.body, one.attempts) for one in space.browse("rare")] == [("one", 1)]


def reject(taken: list[spool.Message], claims: spool.Claims) -> Any:
    return claims.reject(taken, "no such cake")


def fail(taken: list[spool.Message], claims: spool.Claims) -> Any:
    return claims.fail(*taken, "no such cake", delay=0)


@pytest.mark.parametrize(("missing", "end"), [("failed", reject), ("failed", fail), ("rare", reject)])
def test_x14_a_message_whose_error_queue_is_missing_remains_for_another_attempt(
    space: spool.Space, claims: spool.Claims, clock: SimulatedClock, caplog: pytest.LogCaptureFixture,
    missing: str, end: Callable[[list[spool.Message], spool.Claims], Any],
) -> None:  # fmt: skip
    options: Any = {"error_queue": "failed", "retries": 0, "retry_delay": 0, "retry_delay_max": None}
    space.create_queue("rare", create_missing=True, **options)
    space.put("rare", "stone")
    taken = claims.take("rare")
    remove_by_hand(space, missing)
    end(taken, claims).result(PATIENT_SECONDS)
    assert (
        f"queue {missing} does not exist: create it (spool-admin queue create {missing}): no such cake" in caplog.text
    )
    space.create_queue(missing, **(options if missing == "rare" else {}))
    assert shown(space.browse("rare"), "body attempts failure_reason") == [("stone", 1, "no such cake")]
    assert claims.take("rare") == [], "the message is not due at once"
    clock.sleep(60.0)
    end(claims.take("rare"), claims).result(PATIENT_SECONDS)
    assert bodies(space.browse("failed")) == ["stone"]


def test_x14_a_reason_is_one_line_without_control_characters(space: spool.Space, claims: spool.Claims) -> None:
    space.put_many("orders", ["apple", "stone"])
    apple, stone = claims.take("orders", 2)
    reason = "the oven\n\tis \x1b[31mcold\x00" + "!" * 2_000
    claims.fail(apple, reason).result(PATIENT_SECONDS)
    claims.reject([stone], reason).result(PATIENT_SECONDS)
    for message in (*space.browse("orders"), *space.browse("errors")):
        assert message.failure_reason is not None
        assert message.failure_reason.startswith("the oven is \\x1b[31mcold\\x00!")
        assert len(message.failure_reason) == 1_000


def test_browsing_held_messages_asks_for_no_process(space: spool.Space, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel would list the open files of all processes of the machine. Only ``entries`` needs the list."""
    space.put_many("orders", ["a", "b"])
    with space.claims() as claims:
        claims.take("orders")
        assert [entry.holder is None for entry in space.entries("orders")] == [False, True]
        monkeypatch.setattr(Disk, "process_locks", None)
        assert [message.body for message in space.browse("orders")] == ["a", "b"]
