"""A get by id or correlation id waits: only its message wakes the get, in each way in which the message can arrive."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest

import spool
import spool.aio
from spool.store.awaited import Awaited
from spool.transactions.claiming import Wanted
from spool.transactions.hold import Hold
from spool.transactions.waiting import repeat_when_arrived, wake_arrived
from tests import door
from tests.clocks import LONG, PatientClock, timed
from tests.compaction import small_compactions
from tests.meanwhile import Processes, commit, prepare
from tests.spaces import opened_path, path_with

WHEN_WOKEN = LONG / 2  # and it waits longer than a test takes


path = path_with("orders", "elsewhere")
other = opened_path()


def test_a_commit_of_another_opener_wakes_it(path: Path, pool: ThreadPoolExecutor, other: spool.Space) -> None:
    clock = PatientClock()
    with spool.open(timed(path, clock)) as space:
        found = pool.submit(space.get, "orders", correlation_id="mine", timeout=WHEN_WOKEN)
        assert clock.waits.wait(LONG)
        other.put("orders", "another's", correlation_id="another's")
        other.put("orders", "mine", correlation_id="mine")
        assert found.result(LONG).body == "mine"
        assert all(clock.was_woken)


def test_of_many_that_wait_each_is_woken_for_its_own_message(path: Path, other: spool.Space) -> None:
    """When the call that listens for all gets its message, another call continues to listen."""
    clock = PatientClock(8)
    with ThreadPoolExecutor(8) as pool, spool.open(timed(path, clock)) as space:
        ids = [str(n) for n in range(8)]
        found = [pool.submit(space.get, "orders", correlation_id=id, timeout=WHEN_WOKEN) for id in ids]
        assert clock.waits.wait(LONG)
        for id, one in zip(ids, found, strict=True):
            other.put("orders", id, correlation_id=id)
            assert one.result(LONG).body == id
        assert all(clock.was_woken)


def test_unrelated_commits_cost_a_waiting_call_no_search(
    path: Path, pool: ThreadPoolExecutor, other: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str | None] = []
    claim = Hold.claim

    def counted(hold: Hold, wanted: Wanted) -> object:
        looks.append(wanted.correlation_id)
        return claim(hold, wanted)

    monkeypatch.setattr(Hold, "claim", counted)
    clock = PatientClock(2)
    with spool.open(timed(path, clock)) as space:
        found = [pool.submit(space.get, "orders", correlation_id=id, timeout=WHEN_WOKEN) for id in ("one", "two")]
        assert clock.waits.wait(LONG)
        before = len(looks)
        for n in range(50):
            other.put("orders", n, correlation_id=f"another's {n}")
        for id, one in zip(("one", "two"), found, strict=True):
            other.put("orders", id, correlation_id=id)
            assert one.result(LONG).body == id
    assert len(looks) - before <= 4, "one search for each arrival, and one for each new listener"


# -- each way in which the message arrives ----------------------------------------------------------------------------


# Each function does the part before the wait, and returns the part during the wait.


def comes_as_it_is_put(other: spool.Space) -> Callable[[], object]:
    return lambda: other.put("orders", "new", correlation_id="c")


def comes_among_others(other: spool.Space) -> Callable[[], object]:
    def put() -> None:
        with other.transaction() as tx:
            tx.put_many("orders", ["another", "one"])
            tx.put("elsewhere", "another", correlation_id="c")
            tx.put("orders", "new", correlation_id="c")

    return put


def comes_before_its_time(other: spool.Space) -> Callable[[], object]:
    return lambda: other.put("orders", "new", correlation_id="c", delay=1000)


def comes_from_another_queue(other: spool.Space) -> Callable[[], object]:
    id = other.put("elsewhere", "new", correlation_id="c")
    return lambda: other.move(id, "orders")


def _held(other: spool.Space) -> spool.Transaction:
    other.put("orders", "new", correlation_id="c")
    holder = other.transaction()
    holder.get("orders")
    return holder


def comes_by_a_rollback(other: spool.Space) -> Callable[[], object]:
    return _held(other).rollback


def comes_as_a_claim_is_left(other: spool.Space) -> Callable[[], object]:
    return _held(other).abandon


WAYS = [
    comes_as_it_is_put, comes_among_others, comes_before_its_time, comes_from_another_queue, comes_by_a_rollback,
    comes_as_a_claim_is_left,
]  # fmt: skip


@pytest.mark.parametrize("comes", WAYS)
def test_a_waiting_call_gets_its_message_in_each_way_of_arrival(
    path: Path, pool: ThreadPoolExecutor, other: spool.Space, comes: Callable[[spool.Space], Callable[[], object]]
) -> None:
    come = comes(other)
    with spool.open(path) as space:
        found = pool.submit(space.get, "orders", correlation_id="c", timeout=WHEN_WOKEN)
        come()
        assert found.result(LONG).body == "new"


@pytest.mark.parametrize("comes", WAYS)
async def test_a_waiting_task_gets_its_message_in_each_way_of_arrival(
    path: Path, other: spool.Space, comes: Callable[[spool.Space], Callable[[], object]]
) -> None:
    come = comes(other)

    async with asyncio.timeout(LONG), spool.aio.open(path) as space:
        found = asyncio.create_task(space.get("orders", correlation_id="c", timeout=None))
        strangers = [asyncio.create_task(space.get("orders", correlation_id=str(n), timeout=None)) for n in range(9)]
        await asyncio.sleep(0)
        await asyncio.to_thread(come)
        assert (await found).body == "new"
        for stranger in strangers:
            stranger.cancel()


def test_a_get_by_id_gets_the_message_of_a_branch_that_was_prepared_before(pool: ThreadPoolExecutor) -> None:
    processes = Processes()
    space = processes.space()
    with processes.space() as other:
        prepare(other)
        [id] = [
            branch.header.branches[0].id.hex() + "0" * 8 for branch in door.store(other).view.prepared.branches.values()
        ]
        with pytest.raises(spool.Empty):
            space.get("orders", message_id=id, timeout=0.1)
        commit(other)
        assert space.get("orders", message_id=id, timeout=0.1).body == "new"


def test_a_message_that_arrived_and_was_compacted_since_last_search_wakes_call(path: Path, other: spool.Space) -> None:
    with small_compactions(), spool.open(path) as space:
        store, arrived = door.store(space), threading.Event()
        [absent] = [Awaited("orders", None, "c")]
        with store.view.awaited.entered([absent], arrived.set):
            wake_arrived(store, thorough=True)
            arrived.clear()
            for n in range(9):
                other.put("orders", n, correlation_id="c" if n == 4 else "another's")
            assert door.compact(other)
            door.reclaim(other)
            wake_arrived(store, thorough=True)
            assert not store.view.index.messages.is_in_memory(*absent)
            assert arrived.is_set()
        assert space.get("orders", correlation_id="c").body == 4


def test_a_message_that_arrives_during_an_attempt_is_not_missed(other: spool.Space) -> None:
    store, attempts = door.store(other), list[int]()

    def look() -> str:
        attempts.append(1)
        if len(attempts) == 1:  # it has searched
            store.view.awaited.wake_all()
            return ""
        return "new"

    with store.view.awaited.listener:  # so the call sleeps until it is woken
        awaited, deadline = Awaited("orders", None, "c"), store.deadline(LONG)
        assert repeat_when_arrived(store, [awaited], lambda: False, look, deadline) == "new"
        assert deadline.remaining() > 0


# -- one message by its id --------------------------------------------------------------------------------------------


def test_a_message_that_another_transaction_holds_is_waited_for(
    path: Path, pool: ThreadPoolExecutor, other: spool.Space
) -> None:
    with spool.open(path) as space:
        id = space.put("orders", "held")
        with other.transaction() as holder:
            holder.get("orders")
            with pytest.raises(spool.MessageInUse):
                space.get("orders", message_id=id, timeout=0.05)
            found = pool.submit(space.get, "orders", message_id=id, timeout=WHEN_WOKEN)
            holder.rollback()
            assert found.result(LONG).body == "held"


def test_a_transaction_does_not_wait_for_a_message_that_it_has_claimed(path: Path, other: spool.Space) -> None:
    id = other.put("orders", "mine")
    with other.transaction() as tx:
        tx.get("orders")
        with pytest.raises(spool.MessageInUse, match="in this transaction"):
            tx.get("orders", message_id=id, timeout=None)
        tx.rollback()


def test_several_messages_with_one_correlation_id_are_taken_together(path: Path, other: spool.Space) -> None:
    other.put_many("orders", [1, 2, 3], correlation_id="c")
    with other.transaction() as tx:
        assert [m.body for m in tx.get_many("orders", 2, correlation_id="c", timeout=WHEN_WOKEN)] == [1, 2]
        assert [m.body for m in tx.get_many("orders", 2, correlation_id="c", timeout=WHEN_WOKEN)] == [3]
        with pytest.raises(spool.Empty, match="'c'"):
            tx.get_many("orders", 2, correlation_id="c", timeout=0.01)


# -- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["close", "stop", "delete_queue"])
def test_a_space_that_is_closed_or_stopped_and_a_queue_that_is_deleted_end_the_wait(
    path: Path, pool: ThreadPoolExecutor, ending: str
) -> None:
    with spool.open(path) as space:
        found = [pool.submit(space.get, "orders", correlation_id=str(n), timeout=None) for n in range(2)]
        {"close": space.close, "stop": door.store(space).stop, "delete_queue": lambda: space.delete_queue("orders")}[
            ending
        ]()
        for one in found:
            assert isinstance(one.exception(LONG), spool.NotOpen | spool.SpaceStopped | spool.QueueNotFound)


@pytest.mark.parametrize("ending", ["close", "delete_queue"])
async def test_the_same_ends_the_wait_of_tasks(path: Path, ending: str) -> None:
    async with asyncio.timeout(LONG), spool.aio.open(path) as space:
        found = [asyncio.create_task(space.get("orders", correlation_id=str(n), timeout=None)) for n in range(2)]
        await asyncio.sleep(0)
        await (space.close() if ending == "close" else space.delete_queue("orders"))
        for one in found:
            with pytest.raises((spool.NotOpen, spool.QueueNotFound)):
                await one


def test_a_thorough_look_notices_a_deleted_lock_file_before_the_housekeeper(path: Path) -> None:
    with spool.open(path) as space:
        (path / "run" / "control").unlink()
        with pytest.raises(spool.SpaceStopped):
            wake_arrived(door.store(space), thorough=True)


def test_a_call_that_stops_waiting_leaves_nothing(path: Path, other: spool.Space) -> None:
    with pytest.raises(spool.Empty):
        other.get("orders", correlation_id="c", timeout=0.01)
    assert not door.store(other).view.awaited._wakes


def test_a_call_without_notifications_polls(path: Path, pool: ThreadPoolExecutor, other: spool.Space) -> None:
    with spool.open(path) as space, mock.patch.object(door.disk(space), "watch", side_effect=OSError):
        found = pool.submit(space.get, "orders", correlation_id="c", timeout=WHEN_WOKEN)
        other.put("orders", "new", correlation_id="c")
        assert found.result(LONG).body == "new"


# -- a deduplication key -----------------------------------------------------------------------------------------------


def test_a_put_waits_for_a_deduplication_key_no_longer_than_its_transaction(path: Path, other: spool.Space) -> None:
    with spool.open(path) as space, other.transaction() as holder:
        holder.put("orders", "first", deduplication_key="order 7")
        with space.transaction(timeout=0.05) as tx:
            with pytest.raises(spool.MessageInUse, match=r"order 7.* within 0\.0"):  # not 30 seconds
                tx.put("orders", "second", deduplication_key="order 7")
            tx.rollback()
