"""An administrator who has removed the cause of failures lets the messages of a queue be attempted at once."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import spool
import spool.aio
from forwarder import Effect, Request, Route, ThreadForwarder
from forwarder.events import Done, Event, Paused
from forwarder.routes.loop import RouteLoop
from spool.coordination.resumptions import Resumptions, request_resumption
from spool.workers import pauses
from spool.workers.outcome import Outcome, Replied, Retried
from tests.clocks import SimulatedClock, timed
from tests.forwarder.rounds import Scripted, answers, in_process
from tests.spaces import path_with
from tests.workers.conftest import WAIT

pytestmark = pytest.mark.timeout(120)


path = path_with(replies={"max_messages": 1}, work={"reply_queue": "replies"}, errors={})


@pytest.fixture(autouse=True)
def _long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pause ends by itself within a test."""
    monkeypatch.setattr(pauses, "FIRST_PAUSE_SECONDS", 3600.0)
    monkeypatch.setattr(pauses, "LONGEST_PAUSE_SECONDS", 3600.0)


def make_room_and_resume(path: Path) -> None:
    code = "import spool, sys\nwith spool.open(sys.argv[1]) as space:\n    space.get('replies'); space.resume('work')"
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)


def test_e06_a_paused_worker_attempts_a_message_at_once_when_an_administrator_of_another_process_asks(
    path: Path,
) -> None:
    with spool.open(path) as space:
        space.put("replies", "in the way")
        space.put("work", "tea")
        paused, stop, handler = threading.Event(), threading.Event(), spool.Handler(lambda message: b"done")
        handler.paused = lambda queue, reason, seconds: paused.set()  # type: ignore[method-assign]
        worker = spool.Worker(space, "work", handler, stop=stop)
        thread = threading.Thread(target=worker.run)
        thread.start()
        assert paused.wait(WAIT)
        assert worker.is_paused
        make_room_and_resume(path)
        assert space.get("replies", timeout=WAIT).body == b"done"
        stop.set()
        thread.join()


def test_e06_a_paused_worker_of_asyncio_attempts_a_message_at_once_when_an_administrator_asks(path: Path) -> None:
    async def work() -> bytes:
        async with spool.aio.open(path) as space:
            await space.put("replies", "in the way")
            await space.put("work", "tea")
            stop = asyncio.Event()
            working = asyncio.create_task(space.work("work", lambda message: b"done", stop=stop))
            while not space.sync.engine.meters.read().states.get(("workers_paused", "work")):
                await asyncio.sleep(0.01)
            await space.get("replies")
            assert await space.resume("work") == 0
            body: bytes = (await space.get("replies", timeout=WAIT)).body
            stop.set()
            await working
            return body

    assert asyncio.run(work()) == b"done"


def down_at_first(space: spool.Space, paused: threading.Event) -> Callable[[Request], Outcome]:
    """A service that nobody reaches until the route pauses."""

    def answer(request: Request) -> Outcome:
        return Replied(None) if paused.is_set() else Retried("refused", counted=False)

    return answer


@pytest.mark.every(2, first=1)
@pytest.mark.parametrize("kind", ["threads", "rounds"])
def test_e06_a_paused_route_attempts_its_messages_at_once_when_an_administrator_asks(path: Path, kind: str) -> None:
    with spool.open(path) as space:
        paused, done, stop = threading.Event(), threading.Event(), threading.Event()
        answers["it"] = down_at_first(space, paused)
        space.create_queue("calls")
        space.put("calls", "tea")

        def tell(event: Event) -> None:
            if isinstance(event, Paused):
                assert event.seconds == 3600
                paused.set()
            elif isinstance(event, Done) and event.effects == {Effect.DELIVERED: 1}:
                done.set()

        if kind == "threads":
            forwarder = ThreadForwarder(space.path, [Route("calls", Scripted("it"))], on_event=tell)
            run, end = forwarder.run, forwarder.stop
        else:
            loop = RouteLoop(
                space=space, route=Route("calls", Scripted("it")), job=in_process, tasks=lambda: 1, once=False,
                stopped=stop, attempted=set(), count=lambda queue, result: None, tell=tell,
            )  # fmt: skip
            run, end = loop.run, stop.set  # type: ignore[assignment]
        thread = threading.Thread(target=run)
        thread.start()
        assert paused.wait(WAIT)
        space.resume("errors")  # (another queue)
        assert not done.wait(1.0)
        space.resume("calls")
        assert done.wait(WAIT)
        end()
        thread.join()


def test_e06_failed_messages_that_wait_are_ready_at_once_and_other_delayed_ones_are_not(path: Path) -> None:
    with spool.open(path) as space:
        space.create_queue("calls", retry_delay=3600.0, first_delay=0.0)
        failed = [space.put("calls", number) for number in range(3)]

        def fail(message: spool.Message) -> None:
            raise ValueError("the service is down")

        space.work("calls", fail, once=True)
        space.put("calls", "later", delay=3600)
        assert (space.stats("calls").ready, space.stats("calls").delayed) == (0, 4)
        with pytest.raises(spool.QueueNotFound):
            space.resume("nowhere")
        assert space.resume("calls") == 3
        assert (space.stats("calls").ready, space.stats("calls").delayed) == (3, 1)
        assert space.resume("calls") == 0
        found = space.get_many("calls", 9)
        assert [(message.id, message.attempts) for message in found] == [(id, 1) for id in failed]


def test_a_request_is_for_one_queue_and_is_reported_once_and_read_twice_a_second(path: Path) -> None:
    with spool.open(path) as space:
        clock = SimulatedClock(100.0)
        disk = timed(path, clock)
        early = Resumptions(disk, "work")
        request_resumption(disk, "errors")  # (this creates the file)
        assert not early.is_requested()
        request_resumption(disk, "work")
        assert not early.is_requested()  # it has just read the file
        clock.sleep(0.5)
        assert early.is_requested()
        clock.sleep(0.5)
        assert not early.is_requested()
        assert not Resumptions(disk, "work").is_requested()
        assert space.check() == []  # the file belongs to the space


def test_a_forwarder_without_spark_is_counted_as_a_forwarder(path: Path) -> None:
    answers["it"] = lambda request: Replied(None)
    with spool.open(path) as space:
        space.create_queue("calls")
        space.put_many("calls", ["tea", "rye"])
        states: list[dict[tuple[str, ...], int]] = []
        forwarder = ThreadForwarder(
            space.path, [Route("calls", Scripted("it"))],
            on_event=lambda event: states.append(space.engine.meters.read().states),
        )  # fmt: skip
        forwarder.run(once=True)
        assert any(("route", "calls", "Scripted") in found for found in states)
        assert not any(key[0].startswith("workers") for found in states for key in found)
        counts = space.engine.meters.read().counts
        assert {key: count for key, count in counts.items() if key[0] == "outcomes"} == {
            ("outcomes", "forwarder", "calls", "delivered"): 2
        }
