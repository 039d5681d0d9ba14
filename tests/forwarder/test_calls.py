"""Several calls of a service under way at a time, in one task."""

import threading
from dataclasses import replace

import pytest

import spool
from forwarder.round import Round, Route
from forwarder.services import Request
from forwarder.task import Chunk, ChunkCalls, ServiceThreads, TaskResult, deliver
from spool.engine.remote import ReadMessage
from spool.workers.effects import Effect
from spool.workers.outcome import Outcome, Replied, Retried
from tests.forwarder.rounds import Scripted, answers, echo, forward, run_round
from tests.shown import bodies

PATIENT_SECONDS = 30.0


def in_one_task(chunks: list[Chunk]) -> list[TaskResult]:
    """Run all the work of a round in one task."""
    return [deliver(joined(chunks), 0, 0)]


def joined(chunks: list[Chunk]) -> Chunk:
    return replace(chunks[0], runs=[one for chunk in chunks for one in chunk.runs])


def test_a_task_has_as_many_calls_under_way_as_the_service_has_threads_and_never_more(space: spool.Space) -> None:
    space.put_many("work", [b"%d" % i for i in range(12)])
    together, under_way, most = threading.Barrier(4), [], []

    def answer(request: Request) -> Outcome:
        under_way.append(request)
        most.append(len(under_way))
        together.wait(PATIENT_SECONDS)  # broken, unless four are under way
        under_way.remove(request)
        return echo(request)

    assert forward(space, answer, threads=4, job=in_one_task).effects == {Effect.DELIVERED: 12}
    assert max(most) == 4


def test_replies_keep_the_order_of_the_messages_when_a_later_call_ends_first(space: spool.Space) -> None:
    space.put_many("work", [b"slow", b"fast"])
    fast_ended = threading.Event()

    def answer(request: Request) -> Outcome:
        if request.raw == b"slow":
            assert fast_ended.wait(PATIENT_SECONDS)
        else:
            fast_ended.set()
        return echo(request)

    assert forward(space, answer, threads=2, job=in_one_task).effects == {Effect.DELIVERED: 2}
    assert bodies(space, "replies") == [b"re: slow", b"re: fast"]


def test_e08_one_slow_call_does_not_hold_back_the_others(space: spool.Space) -> None:
    space.put("work", b"slow")
    space.put_many("work", [b"fast"] * 20)
    fast, all_fast = [], threading.Event()

    def answer(request: Request) -> Outcome:
        if request.raw == b"slow":
            assert all_fast.wait(PATIENT_SECONDS), "one thread calls all others meanwhile"
        else:
            fast.append(request)
            if len(fast) == 20:
                all_fast.set()
        return echo(request)

    assert forward(space, answer, threads=2, job=in_one_task).effects == {Effect.DELIVERED: 21}


@pytest.mark.parametrize("threads", [1, 3])
def test_q12_only_calls_under_way_reach_a_service_that_is_down(space: spool.Space, threads: int) -> None:
    space.put_many("work", [b"x"] * 20)
    called = []

    def answer(request: Request) -> Outcome:
        called.append(request)
        return Retried("ConnectError", counted=False)

    assert forward(space, answer, threads=threads, job=in_one_task).effects == {Effect.KEPT: len(called)}
    assert 1 <= len(called) <= threads
    assert [message.attempts for message in space.browse("work")] == [0] * 20


def test_messages_of_a_group_are_never_under_way_together(space: spool.Space) -> None:
    for body in (b"1", b"2"):
        space.put("work", body, group="a")
    together = []

    def answer(request: Request) -> Outcome:
        together.append(request.raw)
        return Replied()

    assert forward(space, answer, threads=4).effects == {Effect.DELIVERED: 1}
    assert together == [b"1"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_service_cannot_end_its_task(space: spool.Space, error: type[BaseException]) -> None:
    """No Ctrl-C reaches the workers of Spark."""
    space.put_many("work", [b"breaks", b"goes on"])

    def answer(request: Request) -> Outcome:
        if request.raw == b"breaks":
            raise error
        return Replied()

    assert forward(space, answer, job=in_one_task).effects == {Effect.RETRIED: 1, Effect.DELIVERED: 1}
    assert [message.attempts for message in space.browse("work")] == [1]


def test_a_service_that_is_watched_is_called_one_message_at_a_time(space: spool.Space) -> None:
    """The process of the service is killed if one call hangs, and other calls under way would be lost."""
    space.put_many("work", [b"x"] * 6)
    called_in: list[threading.Thread] = []

    def answer(request: Request) -> Outcome:
        called_in.append(threading.current_thread())
        return Replied()

    route = Route("work", Scripted("watched", watched=60.0, threads=4))
    answers["watched"] = answer
    run_round(space, route, in_one_task, limit=100, tasks=1, timeout=0)
    assert called_in == [threading.current_thread()] * 6, "the task's own thread makes all calls"


def test_all_calls_that_are_under_way_count_when_the_forwarder_is_ended(space: spool.Space) -> None:
    ids = space.put_many("work", [b"a", b"b", b"c", b"d"])
    began, seen = threading.Barrier(3), list[int]()
    round_ = Round(space, Route("work", Scripted("it", threads=4)))

    def answer(request: Request) -> Outcome:
        if request.raw == b"b":
            return Replied()
        if began.wait(PATIENT_SECONDS) == 0:
            round_.count_calls()
            seen.extend(space.show(id_).attempts for id_ in ids)
        began.wait(PATIENT_SECONDS)
        return Replied()

    answers["it"] = answer
    with round_:
        round_.claim(10, timeout=0)
        round_.call(in_one_task, tasks=2)
    assert [seen[0], seen[2], seen[3]] == [1, 1, 1]
    assert seen[1] in (0, 1), "its call may have ended"


@pytest.mark.timeout(PATIENT_SECONDS)
def test_the_end_of_a_call_is_told_although_it_cannot_be_recorded() -> None:
    """Otherwise a task that waits for the end of the call would wait for ever."""

    def record(key: object) -> None:
        raise OSError

    calls = ChunkCalls(ServiceThreads(echo, 2), Chunk("", b"", Scripted("it"), None, []), record)  # type: ignore[arg-type]
    message = spool.Message("0" * 32, "work", b"one", 0.0, spool.Position(1, 0), {})
    calls.begin((0, ReadMessage(message, b"one")), Replied)
    assert calls.wait()[1] == Replied()
