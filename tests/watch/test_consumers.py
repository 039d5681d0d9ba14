"""X20: who serves a queue: live processes that wait for its messages, since when, and whether they hold messages."""

import asyncio
import os
import threading
import time

import pytest

import spool
import spool.aio
from spool.watch.consumers import Consumer, consumers
from tests.clocks import until
from tests.spaces import space_with
from tests.watch.samples import transaction

space = space_with("orders")


def serving(space: spool.Space, queue: str = "orders") -> list[Consumer]:
    metrics = space.metrics()
    return consumers(metrics.states, metrics.transactions).get(queue, [])


def test_x20_consumers_are_read_from_the_meters_and_are_busy_while_they_hold_messages() -> None:
    states = {
        ("consumer", "orders", "17", "celery", "1000"): 2, ("consumer", "orders", "18", "cron.py", "900"): 1,
        ("consumer", "mail", "17", "celery", "1000"): 1, ("consumer", "mail", "x", "y", "z"): 1,
        ("consumer", "mail", "5", "y"): 1, ("workers", "orders"): 2, ("consumer", "mail", "5", "y", "7"): 0,
    }  # fmt: skip
    held = [transaction(pid=17), transaction(pid=17, takes={"orders": 1}), transaction(pid=18, state="in doubt")]
    assert consumers(states, held) == {
        "mail": [Consumer("mail", 17, "celery", 1, 1000.0)],
        "orders": [Consumer("orders", 18, "cron.py", 1, 900.0), Consumer("orders", 17, "celery", 2, 1000.0, 3)],
    }


def test_x20_a_worker_serves_its_queue_from_its_begin_to_its_end(space: spool.Space) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work(message: spool.Message) -> None:
        begun.set()
        assert go_on.wait(30)

    worker = spool.Worker(space, "orders", work, threads=3)
    runs = threading.Thread(target=worker.run)
    runs.start()
    until(lambda: [(one.threads, one.is_busy) for one in serving(space)] == [(3, False)])
    space.put("orders", b"1")
    assert begun.wait(30)
    (one,) = serving(space)
    assert (one.pid, one.held, one.threads) == (os.getpid(), 1, 3)
    assert abs(one.since - time.time()) < 60
    worker.stop()
    go_on.set()
    runs.join()
    until(lambda: [one.threads for one in serving(space)] == [1])  # (the waits of its threads are kept for a time)


def test_x20_arrivals_serve_their_queues_until_they_are_closed_or_dropped(space: spool.Space) -> None:
    space.create_queue("mail")
    first, second = space.arrivals(["orders", "mail"]), space.arrivals(["orders"])
    assert [one.threads for one in serving(space)] == [2]
    assert [one.threads for one in serving(space, "mail")] == [1]
    first.close()
    until(lambda: not serving(space, "mail"))
    assert [one.threads for one in serving(space)] == [1]
    del second
    other = space.arrivals(["mail"])  # (the thread that watches notices the dropped ones)
    until(lambda: not serving(space))
    other.close()


def test_x20_a_get_serves_its_queue_while_it_waits_and_a_get_without_a_wait_costs_nothing(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    space.put("orders", b"1")
    space.get("orders", timeout=30)
    with pytest.raises(spool.Empty):
        space.get("orders")
    assert serving(space) == []
    waiting = threading.Thread(target=lambda: space.get("orders", timeout=30))
    waiting.start()
    until(lambda: serving(space))
    space.put("orders", b"2")
    waiting.join()
    assert [one.threads for one in serving(space)] == [1]  # (it will probably wait again)
    now = time.monotonic()
    monkeypatch.setattr(type(space.engine.clock), "monotonic", lambda clock: now + 31)
    assert serving(space) == []


async def test_x20_a_task_that_waits_serves_its_queue(space: spool.Space) -> None:
    async with spool.aio.open(space.path) as other:
        waiting = asyncio.create_task(other.get("orders", timeout=30))
        while not (await asyncio.to_thread(serving, space)) and not waiting.done():
            await asyncio.sleep(0.05)
        await other.put("orders", b"1")
        await waiting
    assert serving(space) == []  # (the space of the task is closed)
