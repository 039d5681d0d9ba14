"""A message counts no attempt because its process waited for a lock of the space that another process held."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import spool
import spool.aio
from spool.coordination.locks import NUMBER, LockFile
from spool.log import settled_lock, write
from spool.log.sequence import with_number_lock
from spool.model.position import PositionRanges
from spool.runtime.clock import Deadline, LockTimeout, WaitExpired
from spool.transactions.hold import Hold
from spool.workers.worker import Worker
from tests import door
from tests.at_once import AT_ONCE


@pytest.fixture
def space(tmp_path: Path) -> Iterator[spool.Space]:
    with spool.create(tmp_path / "space", defaults={**AT_ONCE, "retries": 0, "error_queue": "errors"}) as found:
        found.create_queues(["errors", "orders", "replies"], create_missing=True)
        found.put("replies", "earlier")
        with found.transaction() as tx:  # the first claim of a process needs the number lock, too
            tx.get("replies")
        found.put("orders", "x")
        yield found


@contextmanager
def locked(space: spool.Space, on_timeout: Callable[[int], bool] = lambda times: False) -> Iterator[None]:
    """Let another process hold the number lock. Each wait for the lock expires at once.

    ``on_timeout``: called with the number of expired waits; once it returns True, the other process releases the lock.
    """
    times, held = 0, True
    with spool.open(space.path) as other:
        control = door.store(other).shared.control

        def release() -> None:
            nonlocal held
            if held:
                held = False
                control.unlock(NUMBER)

        def wait(mine: LockFile, deadline: Deadline, failed: str = "") -> None:
            nonlocal times
            times += 1
            if held and not on_timeout(times):
                raise LockTimeout("the lock is held by another process; the transaction was rolled back")
            release()
            with_number_lock(mine, deadline, failed)

        assert control.try_lock(NUMBER)
        with (
            mock.patch.object(write, "with_number_lock", wait),
            mock.patch.object(settled_lock, "with_number_lock", wait),
        ):
            try:
                yield
            finally:
                release()


def attempts(space: spool.Space) -> list[tuple[str, int]]:
    return [(queue, message.attempts) for queue in ("orders", "errors") for message in space.browse(queue)]


def test_a_transaction_that_cannot_get_a_lock_counts_no_attempt(space: spool.Space) -> None:
    with locked(space), pytest.raises(spool.TransactionTimeout, match="held by another process"):
        with space.transaction() as tx:
            tx.get("orders")
            tx.put("replies", "y")
    assert attempts(space) == [("orders", 0)]
    assert space.get("orders").body == "x"
    with pytest.raises(spool.Empty):
        space.get("replies")


def test_a_transaction_of_another_thread_that_cannot_get_a_lock_counts_no_attempt(space: spool.Space) -> None:
    tx = space.transaction()
    tx.get("orders")
    with locked(space):
        future = tx.commit_async()
        assert isinstance(future.exception(30), spool.TransactionTimeout)
    assert attempts(space) == [("orders", 0)]


def test_a_consumed_message_whose_commit_cannot_get_a_lock_counts_no_attempt(space: spool.Space) -> None:
    with locked(space), pytest.raises(spool.TransactionTimeout):
        for _, message in space.consume("orders", timeout=0):
            assert message.body == "x"
    assert attempts(space) == [("orders", 0)]


def test_the_commit_of_a_handled_message_waits_on_for_a_lock(space: spool.Space) -> None:
    called: list[object] = []
    with locked(space, lambda times: times == 3):
        summary = space.work("orders", lambda message: called.append(message.body), once=True)
    assert (called, summary.handled) == (["x"], 1), "the function is not called again"
    assert attempts(space) == []


def test_a_handled_message_counts_no_attempt_if_the_worker_stops_before_a_lock_is_free(space: spool.Space) -> None:
    called: list[object] = []
    worker = Worker(space, "orders", lambda message: called.append(message.body))

    def stop(times: int) -> bool:
        worker.stop()
        return False

    with locked(space, stop):
        summary = worker.run()
    assert (called, summary.kept) == (["x"], 1)
    assert attempts(space) == [("orders", 0)]
    assert space.get("orders").body == "x"


def test_a_failed_call_still_counts_while_its_commit_waits_for_a_lock(space: spool.Space) -> None:
    def fail(message: spool.Message) -> None:
        raise ValueError("no such account")

    with locked(space, lambda times: times == 2):
        summary = space.work("orders", fail, once=True)
    assert summary.dead_lettered == 1
    assert attempts(space) == [("errors", 0)]


# -- gets that wait -------------------------------------------------------------------------------------------------


def test_a_get_without_a_time_limit_waits_on_for_a_lock(space: spool.Space) -> None:
    with locked(space, lambda times: times == 3):
        assert space.get("orders", timeout=None).body == "x"


def test_a_get_whose_time_is_over_does_not_wait_on_for_a_lock(space: spool.Space) -> None:
    with locked(space), pytest.raises(spool.TransactionTimeout):
        space.get("orders", timeout=0.001)
    assert space.get("orders").body == "x"


def expiring(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first claims fail, because another process holds a lock for 30 seconds."""
    claim, left = Hold.claim, times

    def expire(*args: Any) -> PositionRanges:
        nonlocal left
        left -= 1
        if left >= 0:
            raise WaitExpired("commit 7 is held by another process")
        return claim(*args)

    monkeypatch.setattr(Hold, "claim", expire)


def test_a_claim_without_a_time_limit_waits_on_for_a_lock(space: spool.Space, monkeypatch: pytest.MonkeyPatch) -> None:
    expiring(2, monkeypatch)
    with space.transaction() as tx:
        assert tx.get("orders", timeout=None).body == "x"
    assert attempts(space) == []


async def get_in_a_task(path: Path) -> None:
    async with spool.aio.open(path) as space:
        assert (await space.get("orders", timeout=None)).body == "x"


def test_a_task_without_a_time_limit_waits_on_for_a_lock(space: spool.Space, monkeypatch: pytest.MonkeyPatch) -> None:
    expiring(2, monkeypatch)
    asyncio.run(get_in_a_task(Path(space.path)))


def test_a_claim_that_waits_no_longer_rolls_the_transaction_back(space: spool.Space, monkeypatch: pytest.MonkeyPatch):
    expiring(1, monkeypatch)
    tx = space.transaction()
    tx.put("replies", "y")
    with pytest.raises(spool.TransactionTimeout, match="held by another process; the transaction was rolled back"):
        tx.get("orders")
    assert not tx.is_active
    assert attempts(space) == [("orders", 0)]
