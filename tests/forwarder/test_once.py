"""A forwarder without Spark, its tasks run in this process: ``once``, the summary, and being abandoned."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from py4j.protocol import Py4JNetworkError

import forwarder
import spool
from forwarder import Effect, Forwarder, Summary
from forwarder import forwarder as driver
from forwarder.result import Failures, RoundResult
from forwarder.round import Route, TaskDied
from forwarder.routes import arguments
from forwarder.routes.base import in_steps
from forwarder.task import Chunk, TaskResult
from spool.workers.conclusion import kept
from spool.workers.outcome import Outcome, Rejected, Replied, Retried
from spool.workers.states import Event
from tests.forwarder.rounds import SPARK, Answer, Scripted, answers, in_process
from tests.spaces import space_with
from xaspool_scripts.forward import main

space = space_with("errors", work={"retry_delay": 0.0, "retry_delay_max": None})


@pytest.fixture(autouse=True)
def _without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "spark_job", lambda context, chunks, tasks: in_process(chunks))
    monkeypatch.setattr(arguments, "parse", lambda url, **_: Scripted(url))


def made(space: spool.Space, answer: Answer, **options: Any) -> Forwarder:
    answers["it"] = answer
    return Forwarder(space.path, {"work": "it"}, SPARK, **options)


def boom(request: object) -> Outcome:
    return Retried("ValueError: boom")


@pytest.mark.timeout(30)
def test_once_attempts_each_message_once_and_returns_with_a_queue_s_first_options(space: spool.Space) -> None:
    """The queue has no delay before the next attempt."""
    ids = space.put_many("work", ["a", "b", "c"])
    calls = []

    def answer(request: Any) -> Outcome:
        calls.append(request.message.body)
        return boom(request) if request.message.body != "b" else Replied()

    summary = made(space, answer).run(once=True)
    assert sorted(calls) == ["a", "b", "c"]
    assert summary.effects == {"work": {Effect.RETRIED: 2, Effect.DELIVERED: 1}}
    assert summary.left == {"work": 2}
    assert list(summary.failures["work"]) == [("retried", "ValueError: boom", 2)]
    assert space.show(ids[0]).failure_reason == "ValueError: boom", "while it is retried"
    assert made(space, lambda request: Replied()).run(once=True).left == {}


def test_once_takes_its_steps_again_while_one_waits_for_room_and_others_forward() -> None:
    """Without the routes whose service was not reached."""
    first, then, gone = (Route(name, Scripted("it"), step=step) for name, step in (("a", 0), ("b", 1), ("c", 1)))
    full, delivered = RoundResult(kept=kept(Event.NO_ROOM, "queue b is full")), RoundResult({Effect.DELIVERED: 2})
    not_reached = RoundResult(kept=kept(Event.UNREACHED, "refused"))
    summary, ran = Summary(), []
    for routes in in_steps([first, then, gone], True, summary):
        ran.append([route.queue for route in routes])
        for queue in ran[-1]:
            summary.add(queue, {"a": full, "b": delivered if len(ran) < 6 else RoundResult(), "c": not_reached}[queue])
    assert ran == [["a"], ["b", "c"], ["a"], ["b"], ["a"], ["b"]]
    assert (set(summary.down), summary.full) == ({"a", "c"}, {"a"})


class GoneContext:
    """A context of Spark whose Java has ended, or that was stopped, while the routes were idle."""

    master = "local[2]"

    def __init__(self, error: Exception) -> None:
        self.error, self._jsc = error, None

    @property
    def defaultParallelism(self) -> int:
        raise self.error


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (Py4JNetworkError("Answer from Java side is empty"), "Spark's Java has ended (Answer from Java side is empty)"),
        (ConnectionRefusedError("Connection refused"), "Spark's Java has ended (Connection refused)"),
        (AttributeError("'NoneType' object has no attribute 'sc'"), "Spark was stopped"),
    ],
)
def test_x05_a_spark_that_ended_while_routes_were_idle_is_told_in_a_line_and_leaves_nothing_claimed(
    space: spool.Space, error: Exception, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    space.put("work", "x")
    answers["it"] = lambda request: Replied()
    spark: Any = SimpleNamespace(sparkContext=GoneContext(error))
    summary = Forwarder(space.path, {"work": "it"}, spark).run(once=True)
    assert summary.errors == [f"work: {told}: start the forwarder again"]
    assert "Traceback" not in caplog.text
    assert (space.stats("work").ready, space.stats("work").claimed) == (1, 0)


def test_once_leaves_messages_that_others_hold_and_messages_that_are_not_due(space: spool.Space) -> None:
    space.put("work", "held")
    space.put("work", "later", delay=3600)
    with space.transaction() as holder:
        holder.get("work")
        summary = made(space, boom).run(once=True)
        assert (summary.effects, summary.left) == ({"work": {}}, {"work": 1})
        holder.rollback("")
    space.change_queue("work", retry_delay=3600.0)
    assert made(space, boom).run(once=True).left == {"work": 1}, "it failed, and waits"


def test_kinds_of_failures_are_few() -> None:
    failures = Failures()
    for n in range(300):
        failures.add(Effect.RETRIED, f"reason {chr(0x4E00 + n)}")
    assert len(list(failures)) <= 102
    assert sum(failure.messages for failure in failures) == 300
    assert failures.last(Effect.REJECTED) is None


def test_a_forwarder_that_is_stopped_gives_out_nothing_again_because_a_task_died(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking for the message that killed its worker takes many rounds' time; it is found when it is called again."""
    ids = space.put_many("work", range(8))
    run = made(space, boom)
    jobs = []

    def dies(context: object, chunks: list[Chunk], tasks: int) -> list[TaskResult]:
        jobs.append(chunks)
        run.stop()
        raise TaskDied("Python worker exited unexpectedly")

    monkeypatch.setattr(driver, "spark_job", dies)
    assert run.run().handled == 0
    assert len(jobs) == 1
    assert [space.show(id_).attempts for id_ in ids] == [0] * 8


class Told(Forwarder):
    """A forwarder whose run returns the summary that the test sets."""

    told = Summary()

    def run(self, once: bool = False) -> Summary:
        return self.told


def _telling(monkeypatch: pytest.MonkeyPatch, space: spool.Space, summary: Summary) -> list[str]:
    """Let the program end with this summary; return its words."""
    monkeypatch.setattr(Told, "told", summary)
    monkeypatch.setattr(forwarder, "Forwarder", Told)
    monkeypatch.setattr("xaspool_scripts.forward._stop_on_signals", lambda forwarder: None)
    return ["-s", space.path, "--route", "work=it", "--once"]


@pytest.mark.parametrize(
    ("summary", "code"),
    [
        (Summary({"work": {"delivered": 1}}), 0),
        (Summary({"work": {"retried": 1}}, left={"work": 1}), 5),
        (Summary({"work": {"rejected": 1, "retried": 1}}, left={"work": 1}), 6),
        (Summary({"work": {"dropped": 1}}), 6),
        (Summary({"work": {"dead_lettered": 1}}), 6),
        (Summary({"work": {"quarantined": 1}}, errors=["work: the disk is full"]), 4),
        (Summary(left={"work": 1}, down={"work": "not reached"}), 1),
        (Summary(errors=["work: the disk is full"]), 1),
    ],
)
def test_the_exit_code_says_whether_something_is_left(
    space: spool.Space, summary: Summary, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = _telling(monkeypatch, space, summary)
    assert CliRunner().invoke(main, words).exit_code == code


def test_the_summary_names_effects_and_reasons_for_people_and_for_programs(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    space.change_queue("work", error_queue="errors", retries=0)
    space.put_many("work", ["a", "b"])
    answers = iter([boom(None), Rejected("no such account")])
    summary = made(space, lambda request: next(answers)).run(once=True)
    words = _telling(monkeypatch, space, summary)
    assert CliRunner().invoke(main, words).stdout.splitlines() == [
        "work: 1 rejected, 1 moved to the error queue",
        "  1 rejected: no such account",
        "  1 moved to the error queue: ValueError: boom",
    ]
    told = json.loads(CliRunner().invoke(main, [*words, "--json"]).stdout)
    assert told.pop("time") > 0
    assert told == {
        "event": "stopped",
        "effects": {"work": {"dead_lettered": 1, "rejected": 1}},
        "failures": [
            {"queue": "work", "effect": "dead_lettered", "reason": "ValueError: boom", "messages": 1},
            {"queue": "work", "effect": "rejected", "reason": "no such account", "messages": 1},
        ],
        "left": {},
        "down": {},
        "errors": [],
    }


def test_q12_a_route_without_a_service_has_that_of_the_queue_s_name(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(arguments, "parse", lambda url, **_: asked.append(url) or Scripted(url))
    words = ["-s", space.path, "--route", "work", "--services", "python:no_such_module"]
    assert CliRunner().invoke(main, words).exit_code == 2
    assert asked == ["python:no_such_module:work"]
    assert "'work' is not QUEUE=SERVICE" in CliRunner().invoke(main, words[:4]).output
