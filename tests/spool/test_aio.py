"""The asyncio interface: the same promises, and nothing lost by a cancelled task."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import spool
import spool.aio
from tests.spool.held import PATIENT_SECONDS, HeldDisk

Story = Callable[[spool.aio.Space], Coroutine[Any, Any, None]]


class HeldReads(HeldDisk):
    """``press`` is called as a message's body is read, which is after its claim."""

    press: Callable[[], None] = staticmethod(lambda: None)

    def read_at(self, handle: int, offset: int, length: int) -> bytes:
        self.press()
        return super().read_at(handle, offset, length)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with spool.create(tmp_path / "space") as space:
        space.create_queue("orders")
    return tmp_path / "space"


@pytest.fixture
def disk(path: Path) -> Iterator[HeldReads]:
    disk = HeldReads(str(path))
    real = spool.space.open
    with mock.patch("spool.space.open", lambda path: real(path, disk=disk)):
        yield disk
    disk.go_on.set()


def run(path: Path, story: Story) -> None:
    async def main() -> None:
        async with asyncio.timeout(PATIENT_SECONDS), spool.aio.open(path) as space:
            await story(space)

    asyncio.run(main())


def left(path: Path) -> list[object]:
    """What is in the queue for who opens it next, and can be taken."""
    with spool.open(path) as space:
        found = [message.body for message in space.browse("orders")]
        assert not found or [message.body for message in space.get_many("orders", 1000)] == found
        assert space.check() == []
        return found


def test_put_and_get(path: Path) -> None:
    async def story(space: spool.aio.Space) -> None:
        id = await space.put("orders", {"n": 1}, priority=60)
        ids = await space.put_many("orders", ["two", "three"])
        message = await space.get("orders")
        assert (message.id, message.body, message.priority) == (id, {"n": 1}, 60)
        assert [message.id for message in await space.get_many("orders", 5)] == ids
        with pytest.raises(spool.Empty):
            await space.get("orders", timeout=0.01)

    run(path, story)
    assert left(path) == []


def test_a_get_waits_for_what_another_task_puts(path: Path) -> None:
    async def story(space: spool.aio.Space) -> None:
        getting = asyncio.create_task(space.get("orders", timeout=None))
        await asyncio.sleep(0)
        await space.put("orders", "late")
        assert (await getting).body == "late"

    run(path, story)


def test_errors_reach_the_task(path: Path) -> None:
    async def story(space: spool.aio.Space) -> None:
        for call in (space.put("nowhere", "a"), space.get("nowhere")):
            with pytest.raises(spool.QueueNotFound):
                await call
        await space.put("orders", "a")
        for refused in (space.put("orders", "a", priority=0), space.get("orders", timeout=-1)):
            with pytest.raises(spool.InvalidArgument):
                await refused

    run(path, story)


def test_opening_what_is_no_space_fails(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(spool.NotASpace):
            await spool.aio.open(tmp_path / "nothing")

    asyncio.run(main())


def test_a_thousand_tasks_share_few_commits_and_wake_the_loop_once_for_each(path: Path) -> None:
    async def story(space: spool.aio.Space) -> None:
        loop = asyncio.get_running_loop()
        calls: list[object] = []
        real = loop.call_soon_threadsafe
        with mock.patch.object(loop, "call_soon_threadsafe", lambda *args: calls.append(args) or real(*args)):
            before = space._store.index.applied
            ids = await asyncio.gather(*(space.put("orders", n) for n in range(1000)))
        commits = space._store.index.applied - before
        assert len(set(ids)) == 1000
        assert len(calls) == commits < 100

    run(path, story)
    assert sorted(left(path)) == list(range(1000))


def test_a_put_joins_the_tasks_transaction(path: Path) -> None:
    async def story(space: spool.aio.Space) -> None:
        with space.sync.transaction() as transaction:
            await space.put("orders", "a")
            transaction.rollback()
        with space.sync.transaction():
            await space.put("orders", "b")
            assert list(space.sync.browse("orders")) == []

    run(path, story)
    assert left(path) == ["b"]


def test_a_put_that_is_cancelled_before_its_commit_leaves_nothing(path: Path, disk: HeldReads) -> None:
    async def story(space: spool.aio.Space) -> None:
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

    run(path, story)
    assert left(path) == ["first", "third"]


def test_a_get_that_is_cancelled_while_it_claims_gives_back(path: Path, disk: HeldReads) -> None:
    async def story(space: spool.aio.Space) -> None:
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

    run(path, story)
    assert left(path) == ["b"]


@pytest.mark.parametrize("by", ["cancel", "timeout"])
def test_a_get_that_is_cancelled_in_its_commit_returns_the_message(path: Path, disk: HeldReads, by: str) -> None:
    async def story(space: spool.aio.Space) -> None:
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

    run(path, story)
    assert left(path) == []


def test_closing_commits_what_was_put(path: Path) -> None:
    async def main() -> None:
        space = await spool.aio.open(path)
        tasks = [asyncio.create_task(space.put("orders", n)) for n in range(50)]
        await asyncio.sleep(0)
        await space.close()
        assert len(set(await asyncio.gather(*tasks))) == 50
        with pytest.raises(spool.NotOpen):
            await space.put("orders", "late")

    asyncio.run(main())
    assert left(path) == list(range(50))
