"""The asyncio interface: the same promises, and nothing lost by a cancelled task."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from unittest import mock

import pytest

import spool
import spool.aio
from spool.store.awaited import Awaited
from spool.transactions import waiting
from tests import door
from tests.held import PATIENT_SECONDS, HeldDisk
from tests.spaces import path_with


class HeldReads(HeldDisk):
    """``press`` is called as a message's body is read, which is after its claim."""

    press: Callable[[], None] = staticmethod(lambda: None)

    def read_at(self, handle: int, offset: int, length: int) -> bytes:
        self.press()
        return super().read_at(handle, offset, length)


path = path_with("orders")


@pytest.fixture
def disk(path: Path) -> Iterator[HeldReads]:
    disk = HeldReads(str(path))
    yield disk
    disk.go_on.set()


def left(path: Path) -> list[object]:
    """Return the bodies that the next opener finds in the queue and can take."""
    with spool.open(path) as space:
        found = [message.body for message in space.browse("orders")]
        assert not found or [message.body for message in space.get_many("orders", 1000)] == found
        assert space.check() == []
        return found


async def test_put_and_get(path: Path) -> None:
    async with spool.aio.open(path) as space:
        id = await space.put("orders", {"n": 1}, priority=60)
        ids = await space.put_many("orders", ["two", "three"])
        message = await space.get("orders")
        assert (message.id, message.body, message.priority) == (id, {"n": 1}, 60)
        assert [message.id for message in await space.get_many("orders", 5)] == ids
        with pytest.raises(spool.Empty):
            await space.get("orders", timeout=0.01)
    assert left(path) == []


async def test_errors_reach_the_task(path: Path) -> None:
    async with spool.aio.open(path) as space:
        for call in (space.put("nowhere", "a"), space.get("nowhere")):
            with pytest.raises(spool.QueueNotFound):
                await call
        await space.put("orders", "a")
        for refused in (space.put("orders", "a", priority=0), space.get("orders", timeout=-1)):
            with pytest.raises(spool.InvalidArgument):
                await refused


async def test_a_thousand_tasks_share_few_commits_and_wake_the_loop_once_for_each(path: Path) -> None:
    async with spool.aio.open(path) as space:
        loop = asyncio.get_running_loop()
        calls: list[object] = []
        real = loop.call_soon_threadsafe
        with mock.patch.object(loop, "call_soon_threadsafe", lambda *args: calls.append(args) or real(*args)):
            before = door.counters(space).published
            ids = await asyncio.gather(*(space.put("orders", n) for n in range(1000)))
        commits = door.counters(space).published - before
        assert len(set(ids)) == 1000
        assert len(calls) == commits < 100
    assert sorted(left(path)) == list(range(1000))


async def test_a_put_that_is_cancelled_before_its_commit_leaves_nothing(path: Path, disk: HeldReads) -> None:
    async with spool.aio.open(disk) as space:
        disk.go_on.clear()
        disk.holding = True
        first = asyncio.create_task(space.put("orders", "first"))
        await asyncio.to_thread(disk.arrived.wait, PATIENT_SECONDS)
        second, third = (asyncio.create_task(space.put("orders", body)) for body in ("second", "third"))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.sleep(0)
        disk.go_on.set()
        await asyncio.gather(first, third)
        with pytest.raises(asyncio.CancelledError):
            await second
    assert left(path) == ["first", "third"]


async def test_a_get_that_is_cancelled_while_it_claims_gives_back(path: Path, disk: HeldReads) -> None:
    async with spool.aio.open(disk) as space:
        await space.put("orders", "a")
        loop = asyncio.get_running_loop()
        gone = []

        def press() -> None:
            disk.press = lambda: None
            loop.call_soon_threadsafe(getting.cancel)
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(PATIENT_SECONDS)
            gone.append(True)

        getting = asyncio.create_task(space.get("orders"))
        disk.press = press
        with pytest.raises(asyncio.CancelledError):
            await getting
        message = await space.get("orders", timeout=PATIENT_SECONDS)
        assert (message.body, message.attempts, gone) == ("a", 0, [True])
        await space.put("orders", "b")
    assert left(path) == ["b"]


@pytest.mark.parametrize("by", ["cancel", "timeout"])
async def test_a_get_that_is_cancelled_in_its_commit_returns_the_message(path: Path, disk: HeldReads, by: str) -> None:
    async with spool.aio.open(disk) as space:
        await space.put("orders", "a")
        got: list[object] = []
        cancelled: list[bool] = []

        async def consumer() -> None:
            try:
                if by == "timeout":
                    async with asyncio.timeout(None) as limit:
                        limits.append(limit)
                        got.append((await space.get("orders")).body)
                    await asyncio.sleep(0)
                else:
                    got.append((await space.get("orders")).body)
                    await asyncio.sleep(PATIENT_SECONDS)
            except asyncio.CancelledError:
                cancelled.append(True)

        limits: list[asyncio.Timeout] = []
        disk.go_on.clear()
        disk.holding = True
        task = asyncio.create_task(consumer())
        await asyncio.to_thread(disk.arrived.wait, PATIENT_SECONDS)
        if by == "timeout":
            limits[0].reschedule(asyncio.get_running_loop().time())
        else:
            task.cancel()
        for _ in range(3):
            await asyncio.sleep(0)
        assert not task.done()
        disk.go_on.set()
        await task
        assert got == ["a"]
        assert cancelled == ([True] if by == "cancel" else [])
    assert left(path) == []


async def test_closing_commits_puts_that_have_begun(path: Path) -> None:
    space = await spool.aio.open(path)
    tasks = [asyncio.create_task(space.put("orders", n)) for n in range(50)]
    await asyncio.sleep(0)
    await space.close()
    assert len(set(await asyncio.gather(*tasks))) == 50
    with pytest.raises(spool.NotOpen):
        await space.put("orders", "late")
    assert left(path) == list(range(50))


async def test_x12_a_transaction_commits_as_a_whole_or_is_rolled_back(path: Path) -> None:
    async with spool.aio.open(path) as space:
        await space.put("orders", 1)
        async with space.transaction() as tx:
            message = await tx.get("orders")
            await space.put("orders", message.body + 1)  # joins
            with pytest.raises(spool.Empty):
                await space.get("orders")
        with pytest.raises(RuntimeError):
            async with space.transaction():
                assert (await space.get("orders")).body == 2
                await space.put("orders", 3)
                raise RuntimeError
        assert [message.body async for message in space.browse("orders")] == [2]
        assert (await space.stats("orders")).ready == 1
        tx = space.transaction()
        await tx.put("orders", 4)
        await tx.rollback()
        with pytest.raises(spool.TransactionRolledBack):
            await tx.commit()
    assert left(path) == [2]


async def test_x12_tasks_are_each_in_their_own_transaction(path: Path) -> None:
    async def one(space: spool.aio.Space, n: int) -> None:
        async with space.transaction():
            await space.put("orders", n)
            await asyncio.sleep(0)
            if n % 2:
                raise ValueError(n)

    async with spool.aio.open(path) as space:
        done = await asyncio.gather(*(one(space, n) for n in range(10)), return_exceptions=True)
        assert sum(isinstance(outcome, ValueError) for outcome in done) == 5
    assert sorted(left(path)) == [0, 2, 4, 6, 8]  # type: ignore[type-var]


@pytest.mark.parametrize("count", [1, 300])
async def test_x12_of_many_tasks_that_wait_each_gets_one(path: Path, count: int) -> None:
    async with spool.aio.open(path) as space:
        waiting = [asyncio.create_task(space.get("orders", timeout=None)) for _ in range(count)]
        await asyncio.sleep(0.05)
        await space.put_many("orders", range(count))
        assert sorted(message.body for message in await asyncio.gather(*waiting)) == list(range(count))


async def test_x12_a_wait_ends_in_time_beside_a_get_that_waits_longer(path: Path) -> None:
    async with spool.aio.open(path) as space:
        patient = asyncio.create_task(space.get("orders", timeout=None))
        await asyncio.sleep(0)
        with pytest.raises(spool.Empty):
            await space.get("orders", timeout=0.05)
        await space.put("orders", 1)
        assert (await patient).body == 1


async def test_a_waiting_task_wakes_for_a_message_of_another(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "IDLE_SECONDS", 2 * PATIENT_SECONDS)  # so that only the arrival ends the pause

    async with spool.aio.open(path) as space:
        with spool.open(path) as other:
            for n in range(3):  # (the first wake of a listener wakes all calls)
                found = asyncio.create_task(space.get("orders", timeout=None))
                while not door.store(space).view.awaited._wakes:
                    await asyncio.sleep(0)
                await asyncio.to_thread(other.put, "orders", n)
                assert (await found).body == n


async def test_a_message_that_arrives_during_an_attempt_of_a_task_is_not_missed(path: Path) -> None:
    async with spool.aio.open(path) as space:
        attempts = list[int]()

        async def get_once() -> str:
            attempts.append(1)
            if len(attempts) == 1:  # it has searched
                door.store(space).view.awaited.wake_all()
                await asyncio.sleep(0)
                raise spool.Empty
            return "new"

        space._receiver._listening = asyncio.create_task(asyncio.sleep(2 * PATIENT_SECONDS))  # it wakes nobody
        awaited, deadline = Awaited("orders", None, "c"), door.deadline(space, None)
        assert await space._receiver._repeat([awaited], lambda: False, get_once, deadline) == "new"


async def test_a_waiting_task_that_is_cancelled_gives_its_turn_to_the_next_and_leaves_nothing(path: Path) -> None:
    async with spool.aio.open(path) as space:
        first, second = (asyncio.create_task(space.get("orders", timeout=None)) for _ in range(2))
        while space._receiver._listening is None:
            await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await space.put("orders", 1)
        assert (await second).body == 1
        assert not door.store(space).view.awaited._wakes


async def test_x12_a_get_that_is_cancelled_in_a_transaction_rolls_it_back(path: Path, disk: HeldReads) -> None:
    async with spool.aio.open(disk) as space:
        loop, reads = asyncio.get_running_loop(), asyncio.Event()
        await space.put("orders", 1)

        async def consumer() -> None:
            async with space.transaction():
                try:
                    await space.get("orders")
                except asyncio.CancelledError:
                    asyncio.current_task().uncancel()  # type: ignore[union-attr]

        disk.press = lambda: loop.call_soon_threadsafe(reads.set) and None
        task = asyncio.create_task(consumer())
        await reads.wait()
        task.cancel()
        with contextlib.suppress(spool.TransactionRolledBack):
            await task
    assert left(path) == [1]


async def test_x12_consume_gives_one_transaction_a_message(path: Path) -> None:
    async with spool.aio.open(path) as space:
        await space.put_many("orders", [1, 2, 3])
        seen = []
        with pytest.raises(ValueError):
            async with contextlib.aclosing(space.consume("orders", timeout=0)) as messages:
                async for tx, message in messages:
                    assert tx.sync.xid
                    seen.append(message.body)
                    if message.body == 2:
                        raise ValueError
        seen += [message.body async for _, message in space.consume("orders", timeout=0)]
        assert seen == [1, 2, 2, 3]
    assert left(path) == []


async def test_x12_a_get_of_a_transaction_waits_for_no_task_that_cannot_take_its_message(path: Path) -> None:
    async with asyncio.timeout(PATIENT_SECONDS), spool.aio.open(path) as space:
        await space.put("orders", 1, group="g")
        async with space.transaction(timeout=None) as tx:
            await tx.get("orders")
            waiting = asyncio.create_task(space.get("orders", timeout=None, transaction=None))
            while not space._receiver._turns:
                await asyncio.sleep(0)
            following = asyncio.create_task(tx.get("orders", timeout=None))
            await space.put("orders", 2, group="g", transaction=None)
            assert (await following).body == 2
            with pytest.raises(spool.TransactionTimeout):
                await space.transaction(timeout=0.5).get("orders", timeout=None)
            waiting.cancel()


async def test_x08_tasks_that_wait_for_a_key_leave_its_holder_a_thread(path: Path) -> None:
    async with spool.aio.open(path) as space:
        await space.change_queue("orders", deduplication_window=600)
        put = partial(space.put, "orders", deduplication_key="a", transaction=None)
        async with space.transaction() as tx:
            await tx.put("orders", "first", deduplication_key="a")
            waiting = [asyncio.create_task(put(n)) for n in range(40)]
            await asyncio.sleep(0)
            await tx.put("orders", "second", deduplication_key="b")
        await asyncio.gather(*waiting)
    assert left(path) == ["first", "second"]


async def test_a_put_beside_a_replace_that_waits_does_not_stop_the_loop(path: Path) -> None:
    async with spool.aio.open(path) as space:
        async with space.transaction() as holder, space.transaction() as tx:
            await holder.replace("orders", 1, correlation_id="a")
            replacing = asyncio.create_task(tx.replace("orders", 2, correlation_id="a"))
            while tx.sync.mutex.acquire(blocking=False):
                tx.sync.mutex.release()
                await asyncio.sleep(0)
            putting = asyncio.create_task(tx.put("orders", 3))
            await asyncio.sleep(0)
            await holder.rollback()
            await asyncio.gather(replacing, putting)
    assert left(path) == [2, 3]


async def test_every_call_after_the_end_says_that_the_space_is_closed(path: Path) -> None:
    async with spool.aio.open(path) as space:
        tx = space.transaction()
    for call in (
        space.put("orders", 1, deduplication_key="a"),
        space.replace("orders", 1, correlation_id="a"),
        tx.replace("orders", 1, correlation_id="a"),
        tx.get("orders"),
    ):
        with pytest.raises(spool.NotOpen):
            await call
