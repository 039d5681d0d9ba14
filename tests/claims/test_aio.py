"""Claims of asyncio tasks."""

import asyncio
from pathlib import Path

import pytest

import spool
import spool.aio
from tests import door
from tests.at_once import AT_ONCE
from tests.held import PATIENT_SECONDS


async def test_x14_tasks_claim_and_end_messages_and_removals_share_a_commit(tmp_path: Path) -> None:
    opening = spool.aio.create(tmp_path / "space", defaults=AT_ONCE)
    async with asyncio.timeout(PATIENT_SECONDS), opening as space, space.claims() as claims:
        await space.create_queue("errors")
        await space.create_queue("orders", error_queue="errors")
        await space.put_many("orders", range(60))
        taken = await claims.take("orders", 60)
        await claims.begin(taken[0])
        before = door.counters(space.sync).issued
        await asyncio.gather(*(claims.remove([message]) for message in taken[50:]))
        assert door.counters(space.sync).issued < before + 10
        await claims.fail(taken[0], "it broke", delay=100)
        await claims.reject(taken[1:2], "no")
        await claims.release(taken[2:3])
        with pytest.raises(spool.BadMessageId):
            await claims.remove(taken[:1])
        assert claims.held == 47
        stats = await space.stats("orders")
        assert (stats.delayed, stats.ready, stats.claimed, stats.dequeued) == (1, 1, 47, 10)
        assert [message.failure_reason async for message in space.browse("errors")] == ["no"]
    assert claims.held == 0
    assert "closed" in repr(claims)


async def test_x14_a_task_that_is_cancelled_in_a_call_first_gets_the_outcome(tmp_path: Path) -> None:
    """So a cancelled take loses no message, and a cancelled removal is known to have happened."""

    opening = spool.aio.create(tmp_path / "space", defaults=AT_ONCE)
    async with asyncio.timeout(PATIENT_SECONDS), opening as space, space.claims() as claims:
        await space.create_queue("orders")
        await space.put_many("orders", range(2))
        done: list[object] = []

        async def work() -> None:
            taken = await claims.take("orders", 2)
            done.extend(taken)
            await claims.remove(taken)
            done.append("removed")
            await asyncio.sleep(PATIENT_SECONDS)

        task = asyncio.create_task(work())
        await asyncio.sleep(0)  # the task is in its first call
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done[2:] == ["removed"], "the task is cancelled at its first wait that is no call of the space"
        assert (claims.held, (await space.stats("orders")).dequeued) == (0, 2)
