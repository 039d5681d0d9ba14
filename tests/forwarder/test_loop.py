"""The rounds of a route, of which two may be under way: overlap, order, and the messages that remain when rounds end
early."""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import spool
from forwarder import SparkUnavailable
from forwarder.events import Claimed, Done, Down, Event, Paused, Up
from forwarder.result import RoundResult
from forwarder.round import Job, Round, Route
from forwarder.routes.loop import RouteLoop
from forwarder.routes.pace import FIRST_ROUND_MESSAGES
from forwarder.task import Chunk, TaskResult
from spool.workers import pauses
from spool.workers.outcome import Replied, Retried
from tests.forwarder.rounds import Answer, Scripted, answers, echo, in_process
from tests.spaces import space_with

pytestmark = pytest.mark.timeout(120)

FIRST = FIRST_ROUND_MESSAGES
LONG_SECONDS = 60.0


space = space_with(work={"retry_delay": 0.0, "retry_delay_max": None})


class Running:
    """A loop over queue ``work``, its events, and for each round the bodies that its service was called with."""

    def __init__(self, space: spool.Space, job: Job | None = None, answer: Answer = echo, *, once: bool = True) -> None:
        self.events: list[Event] = []
        self.calls: list[list[Any]] = []
        self.result = RoundResult()
        self.stop = threading.Event()
        self.told = threading.Condition()
        answers["it"] = lambda request: (self.calls[-1].append(request.message.body), answer(request))[1]
        self._job = job or in_process
        self._is_calling = threading.Lock()
        self.loop = RouteLoop(
            space=space, route=Route("work", Scripted("it")), job=self._begin, tasks=lambda: 2, once=once,
            stopped=self.stop, attempted=set(), count=lambda queue, result: None, tell=self._tell,
        )  # fmt: skip
        self.loop.pace._is_steady = True  # as behind a round of two seconds

    def _tell(self, event: Event) -> None:
        with self.told:
            self.events.append(event)
            self.told.notify_all()

    def _begin(self, chunks: list[Chunk]) -> list[TaskResult]:
        assert self._is_calling.acquire(blocking=False), "the rounds of a route call one after the other"
        try:
            self.calls.append([])
            return self._job(chunks)
        finally:
            self._is_calling.release()

    def wait_for(self, wanted: Callable[[Event], bool]) -> None:
        with self.told:
            assert self.told.wait_for(lambda: any(map(wanted, self.events)), LONG_SECONDS)

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def is_ahead(event: Event) -> bool:
    return isinstance(event, Claimed) and event.ahead


def test_a_round_is_claimed_while_one_calls_and_committed_while_the_next_one_calls(space: spool.Space) -> None:
    """Each round waits for an event of the other; without an overlap, neither round would end."""
    space.put_many("work", range(2 * FIRST))

    def job(chunks: list[Chunk]) -> list[TaskResult]:
        if len(run.calls) == 1:
            run.wait_for(is_ahead)
        else:
            run.wait_for(lambda event: isinstance(event, Done))
        return in_process(chunks)

    run = Running(space, job)
    run.loop.run()
    assert run.calls == [list(range(FIRST)), list(range(FIRST, 2 * FIRST))]
    assert [done.round for done in run.of(Done)] == [claimed.round for claimed in run.of(Claimed)]
    assert (space.stats("work").ready, space.stats("work").dequeued) == (0, 2 * FIRST)


def test_e07_an_ordered_queue_has_one_round_at_a_time(space: spool.Space) -> None:
    space.create_queue("strict", ordered=True)
    space.put_many("strict", range(3 * FIRST))
    run = Running(space)
    run.loop.route = Route("strict", Scripted("it"))
    run.loop.run()
    assert [body for calls in run.calls for body in calls] == list(range(3 * FIRST))
    assert [type(event) for event in run.events] == [Claimed, Done] * (len(run.events) // 2)
    assert not any(map(is_ahead, run.events))


def test_e07_groups_keep_their_order_when_rounds_overlap(space: spool.Space) -> None:
    groups = [f"group {n}" for n in range(2 * FIRST)]
    for place in range(3):
        with space.transaction() as transaction:
            for group in groups:
                transaction.put("work", [group, place], group=group)
    run = Running(space)
    run.loop.run()
    assert any(map(is_ahead, run.events))
    seen: dict[str, list[int]] = {}
    for calls in run.calls:
        assert len({group for group, _ in calls}) == len(calls), "a round has one message of each group"
        for group, place in calls:
            seen.setdefault(group, []).append(place)
    assert seen == {group: [0, 1, 2] for group in groups}


def test_once_attempts_each_message_once_in_rounds_that_overlap(space: spool.Space) -> None:
    space.put_many("work", range(5 * FIRST))
    run = Running(space, answer=lambda request: Retried("busy"))
    run.loop.run()
    assert any(map(is_ahead, run.events))
    assert sorted(body for calls in run.calls for body in calls) == list(range(5 * FIRST))
    assert space.stats("work").ready == 5 * FIRST


def test_q12_a_stop_finishes_the_round_that_calls_and_gives_back_the_next_one(space: spool.Space) -> None:
    ids = space.put_many("work", range(2 * FIRST))

    def job(chunks: list[Chunk]) -> list[TaskResult]:
        run.wait_for(is_ahead)
        run.stop.set()
        return in_process(chunks)

    run = Running(space, job, once=False)
    run.loop.run()
    assert run.calls == [list(range(FIRST))]
    stats = space.stats("work")
    assert (stats.ready, stats.claimed, stats.dequeued) == (FIRST, 0, FIRST)
    assert space.show(ids[-1]).attempts == 0


def test_q12_a_service_that_goes_down_is_not_called_by_the_round_that_is_claimed_already(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call finds the service down, and later calls, a second or more apart, find it up again; no attempt is
    counted."""
    space.put_many("work", range(2 * FIRST))
    is_down, tries = True, list[int]()

    def answer(request: Any) -> Any:
        tries.append(request.message.attempts)
        return Retried("connection refused", counted=False) if is_down else Replied()

    def job(chunks: list[Chunk]) -> list[TaskResult]:
        nonlocal is_down
        if len(run.calls) == 1:
            run.wait_for(is_ahead)
        is_down = len(run.calls) == 1
        blocks = in_process(chunks[:1] if is_down else chunks)
        if len(run.calls) > 2:
            run.stop.set()
        return blocks

    class Watching(Running):
        was_busy = False

        def _tell(self, event: Event) -> None:
            self.was_busy = self.was_busy or (isinstance(event, Paused) and self.loop.is_busy)
            super()._tell(event)

    run = Watching(space, job, answer, once=False)
    monkeypatch.setattr(pauses, "FIRST_PAUSE_SECONDS", 0.01)
    run.loop.run()
    assert run.calls[:2] == [[0], list(range(FIRST))], "from the first message on"
    (down,), (pause,), (up,) = run.of(Down), run.of(Paused), run.of(Up)
    assert down.reason == pause.reason == "the service was not reached (connection refused)"
    assert run.events.index(down) < run.events.index(pause) < run.events.index(up)
    assert run.was_busy, "a route that pauses is not idle"
    stats = space.stats("work")
    assert (stats.ready, stats.claimed, stats.dequeued) == (0, 0, 2 * FIRST)
    assert tries == [0] * (2 * FIRST + 1)


def test_q12_a_route_is_busy_until_its_round_is_committed(space: spool.Space) -> None:
    """A commit that takes longer than an idle time must not end the forwarder."""
    space.put("work", b"x")
    run = Running(space)
    busy: list[bool] = []
    run.loop.count = lambda queue, result: busy.append(run.loop.is_busy)
    run.loop.run()
    assert busy == [True, False], "behind a commit, and when there was no message"


def test_messages_that_a_round_leaves_come_before_those_that_are_claimed_already(space: spool.Space) -> None:
    space.put_many("work", range(2 * FIRST))

    def job(chunks: list[Chunk]) -> list[TaskResult]:
        if len(run.calls) == 1:
            run.wait_for(is_ahead)
            return in_process(chunks[:1])  # as if the time were over
        return in_process(chunks)

    run = Running(space, job)
    run.loop.run()
    assert [body for calls in run.calls for body in calls] == list(range(2 * FIRST))


def test_a_spark_that_ends_leaves_nothing_claimed(space: spool.Space) -> None:
    space.put_many("work", range(2 * FIRST))

    def job(chunks: list[Chunk]) -> list[TaskResult]:
        run.wait_for(is_ahead)
        raise SparkUnavailable("Spark was stopped")

    run = Running(space, job)
    with pytest.raises(SparkUnavailable):
        run.loop.run()
    assert (space.stats("work").ready, space.stats("work").claimed) == (2 * FIRST, 0)


def test_a_spark_that_ends_between_two_rounds_leaves_nothing_claimed_and_loses_no_answer(space: spool.Space) -> None:
    """A round asks Spark for its cores before it calls; the results of the earlier round are committed."""
    space.put_many("work", range(2 * FIRST))
    run = Running(space, lambda chunks: (run.wait_for(is_ahead), in_process(chunks))[1])

    def cores() -> int:
        if run.calls:
            raise SparkUnavailable("Spark's Java has ended")
        return 2

    run.loop.tasks = cores
    with pytest.raises(SparkUnavailable):
        run.loop.run()
    assert (space.stats("work").claimed, space.stats("work").dequeued) == (0, FIRST)


def test_a_round_that_cannot_begin_to_call_is_given_back(space: spool.Space, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: ThreadPoolExecutor, call: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(ThreadPoolExecutor, "submit", fails)
    space.put_many("work", range(3))
    with pytest.raises(RuntimeError):
        Running(space).loop.run()
    assert (space.stats("work").claimed, space.stats("work").ready) == (0, 3)


def test_calls_in_progress_are_committed_though_the_commit_before_them_fails(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    space.put_many("work", range(2 * FIRST))
    commit, commits = Round.commit, list[Round]()

    def fails_first(self: Round) -> RoundResult:
        commits.append(self)
        if len(commits) == 1:
            raise OSError("no space left on device")
        return commit(self)

    monkeypatch.setattr(Round, "commit", fails_first)
    run = Running(space, lambda chunks: (run.wait_for(is_ahead), in_process(chunks))[1])
    with pytest.raises(OSError, match="no space left"):
        run.loop.run()
    assert (space.stats("work").ready, space.stats("work").claimed) == (FIRST, 0)
    assert {message.body for message in space.browse("work")} == set(range(FIRST)), "they will be called again"


KILLED = """
import os, signal, sys, threading
import spool
from forwarder.events import Claimed, Done
from forwarder.round import Round, Route
from forwarder.routes.loop import RouteLoop
from forwarder.services import parse
from tests.forwarder.rounds import in_process

path, moment = sys.argv[1:]
ahead, jobs = threading.Event(), []

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def tell(event):
    if isinstance(event, Claimed) and event.ahead:
        ahead.set()

def job(chunks):
    jobs.append(chunks)
    if len(jobs) == 1:
        assert ahead.wait(60)
    blocks = in_process(chunks)
    if moment == "both claimed" or len(jobs) == 2:
        die()
    return blocks

if moment != "both claimed":  # the second round ends the process before the first one is committed
    Round.commit = lambda self: threading.Event().wait()
with spool.open(path) as space:
    loop = RouteLoop(
        space=space, route=Route("work", parse("queue:next")), job=job, tasks=lambda: 2, once=True,
        stopped=threading.Event(), attempted=set(), count=lambda queue, result: None, tell=tell,
    )
    loop.pace._is_steady = True
    loop.run()
"""


@pytest.mark.every(2, first=1)
@pytest.mark.parametrize("moment", ["both claimed", "one prepared, one called"])
def test_x05_a_driver_killed_with_two_rounds_under_way_loses_and_doubles_nothing(space: spool.Space, moment: str):
    space.create_queue("next")
    space.put_many("work", range(3 * FIRST))
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, space.path, moment], check=False, cwd=Path(__file__).parents[2]
    )
    assert killed.returncode == -signal.SIGKILL
    assert space.stats("work").claimed == 0, "claims end with their process"
    run = Running(space, answer=lambda request: Replied())
    run.loop.run()
    called = [body for calls in run.calls for body in calls]
    moved = [message.body for message in space.browse("next")]
    assert sorted(called + moved) == list(range(3 * FIRST))
    assert moved == [], "nothing was committed"


def test_x05_a_round_has_as_many_tasks_as_the_cluster_has_cores_when_it_begins(space: spool.Space) -> None:
    cores, chunks_of = [1], []

    def job(chunks: list[Chunk]) -> list[TaskResult]:
        chunks_of.append(len(chunks))
        cores[0] = 4  # a worker comes, and no further one
        return in_process(chunks)

    space.put_many("work", range(3 * FIRST))
    run = Running(space, job, lambda request: Replied())
    run.loop.pace._is_steady, run.loop.tasks = False, lambda: cores[0]
    run.loop.run()
    assert chunks_of == [2, 8], "two chunks for each task"
