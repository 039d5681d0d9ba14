"""``spool.aio.Space.work``: the outcomes are those of ``spool.Space.work``; its time limit is a real one."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import spool
import spool.aio
from spool.workers import attempt
from tests.shown import bodies_at
from tests.spaces import path_with
from tests.workers.conftest import WAIT, counts

path = path_with(
    "replies",
    "errors",
    "other",
    defaults={},
    orders={"retry_delay": 0, "retry_delay_max": None, "error_queue": "errors", "reply_queue": "replies"},
)


async def test_plain_functions_are_called_in_threads_and_their_puts_join(path: Path) -> None:
    async with spool.aio.open(path) as space:
        await space.put_many("orders", [1, 2])

        def function(message: spool.Message) -> None:
            assert threading.current_thread() is not threading.main_thread()
            space.sync.put("other", message.body)
            assert spool.current_space() is space.sync
            if message.body == 2:
                raise ValueError("no such article")

        assert counts(await space.work("orders", function, once=True)) == {"delivered": 1, "retried": 1, "left": 1}
    assert bodies_at(path, "other") == [1]


async def test_a_coroutine_that_takes_too_long_is_cancelled(path: Path) -> None:
    cancelled = []

    async with spool.aio.open(path) as space:
        await space.put("orders", "hangs")
        await space.change_queue("orders", retries=0)

        async def function(message: spool.Message) -> None:
            await space.put("other", "before")
            try:
                await space.get("other", timeout=None, correlation_id=None)
                await space.get("replies", timeout=None)
            except asyncio.CancelledError:
                cancelled.append(message.body)
                raise

        summary = await space.work("orders", function, once=True, timeout=0.05)
        assert counts(summary) == {"dead_lettered": 1}
        assert summary.reasons == {"dead_lettered": "took longer than 0.05 s"}
        assert (await space.get("errors")).failure_reason == "took longer than 0.05 s"
    assert (cancelled, bodies_at(path, "other")) == (["hangs"], [])


async def test_a_plain_function_that_takes_too_long_is_given_up(path: Path) -> None:
    go_on = threading.Event()
    late: list[BaseException] = []

    async with spool.aio.open(path) as space:
        await space.put("orders", "hangs")

        def function(message: spool.Message) -> None:
            assert go_on.wait(WAIT)
            try:
                space.sync.put("other", "late")
            except spool.SpoolError as error:
                late.append(error)
            loop.call_soon_threadsafe(ended.set)

        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        assert counts(await space.work("orders", function, once=True, timeout=0.05)) == {
            "retried": 1, "left": 1, "abandoned": 1,
        }  # fmt: skip
        go_on.set()
        await ended.wait()
    assert [type(error) for error in late] == [spool.ProtocolError]
    assert bodies_at(path, "other") == []


async def test_plain_functions_are_called_in_as_many_threads_as_there_are_tasks(path: Path) -> None:
    """The loop's own pool may be small, or full: none of them waits for a thread while its time runs."""

    async with spool.aio.open(path) as space:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        await space.put_many("orders", range(4))
        together = threading.Barrier(4)
        summary = await space.work("orders", lambda message: together.wait(WAIT) and None, tasks=4, once=True)
        assert counts(summary) == {"delivered": 4}


async def test_calls_that_hang_hold_up_neither_others_nor_the_close(path: Path) -> None:
    go_on = threading.Event()

    async with spool.aio.open(path) as space:
        await space.put_many("orders", ["hangs", "hangs", "good", "good"])

        def function(message: spool.Message) -> None:
            if message.body == "hangs":
                go_on.wait(WAIT)

        try:
            summary = await space.work("orders", function, tasks=2, once=True, timeout=0.3)
            assert counts(summary) == {"delivered": 2, "retried": 2, "left": 2, "abandoned": 2}
            pool = ThreadPoolExecutor(1)
            asyncio.get_running_loop().set_default_executor(pool)
            full = pool.submit(go_on.wait, WAIT)
            await space.close()
            assert not full.done()
        finally:
            go_on.set()


async def test_a_failure_of_the_space_is_heard_at_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(self: attempt.Attempt, *args: Any) -> None:
        raise spool.DiskFailure(5, "the disk is gone")

    monkeypatch.setattr(attempt.Attempt, "conclude", gone)

    async with spool.aio.open(path) as space:
        await space.put("orders", "x")

        async def function(message: spool.Message) -> None:
            pass

        async with asyncio.timeout(WAIT / 4):
            with pytest.raises(spool.DiskFailure, match="the disk is gone"):
                await space.work("orders", function, tasks=8)


async def test_tasks_are_side_by_side_and_an_event_stops_it(path: Path) -> None:
    async with spool.aio.open(path) as space:
        together, stop = asyncio.Barrier(3), asyncio.Event()

        async def function(message: spool.Message) -> None:
            await together.wait()
            stop.set()

        worker = asyncio.create_task(space.work("orders", function, tasks=3, stop=stop))
        await space.put_many("orders", range(3))
        assert counts(await worker) == {"delivered": 3}


async def test_wrong_arguments_are_refused_before_a_message_is_taken(path: Path) -> None:
    async with spool.aio.open(path) as space:
        with pytest.raises(spool.QueueNotFound, match="did you mean orders"):
            await space.work("order", print)
        with pytest.raises(spool.InvalidArgument, match="tasks is a whole number from 1"):
            await space.work("orders", print, tasks=0)


async def test_a_loop_over_consume_that_is_left_says_so(path: Path) -> None:
    async with spool.aio.open(path) as space:
        await space.change_queue("orders", retries=0)
        await space.put("orders", "x")
        loop = space.consume("orders")
        async for _ in loop:
            break
        await loop.aclose()
        assert "was left before its body ended" in str((await space.get("errors")).failure_reason)
