"""X21: a worker or route pauses when many messages fail one after another, and one message shows whether it is over."""

import itertools
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import spool
import spool.aio
from forwarder import Request, Route, ThreadForwarder
from forwarder.events import Down, Event, Paused, Up
from forwarder.routes.loop import RouteLoop
from spool.model.position import Position
from spool.workers import pauses
from spool.workers.outcome import Outcome, Rejected, Replied, Retried
from spool.workers.pauses import Streak
from tests.forwarder.rounds import Scripted, answers, in_process
from tests.spaces import path_with
from tests.threads import beside
from tests.workers.conftest import WAIT

pytestmark = pytest.mark.timeout(120)

MANY = 60

path = path_with(errors={}, work={"retries": 10, "retry_delay": 3600.0, "error_queue": "errors"})


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(pauses, "LONGEST_PAUSE_SECONDS", 0.02)


class Service:
    """A service that fails until it has been paused for the third time. Then it answers each call."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.pauses = self.calls = 0
        self.reasons: list[str] = []
        self.done = threading.Event()

    def note_pause(self, reason: str) -> None:
        with self.lock:
            self.pauses += 1
            self.reasons.append(reason)

    def __call__(self, message: object) -> None:
        with self.lock:
            self.calls += 1
            if self.pauses < 3:
                raise ConnectionError(f"HTTP 503: request {self.calls}")

    def answer(self, request: Request) -> Outcome:
        try:
            self(request)
        except ConnectionError as error:
            return Retried(str(error))
        return Replied(None)


def check(space: spool.Space, service: Service, *, failed: int) -> None:
    """At most ``failed`` attempts failed. Without pauses, each message would have failed several times."""
    assert space.stats("work").ready == space.stats("errors").ready == 0
    assert len(service.reasons) >= 3
    assert service.reasons[0].startswith("10 messages failed one after another, the last with: ")
    assert all(reason.startswith("the service still fails: one more message ") for reason in service.reasons[1:])
    assert service.calls - MANY <= failed
    states = space.engine.meters.read().states
    assert not states.get(("workers_paused", "work"))
    assert not any(key[0] == "route_down" for key in states)


def wait_until_empty(space: spool.Space) -> None:
    """Wait until all messages are handled. A failed message returns after all others, so none fails twice in a row."""
    for _ in range(int(WAIT / 0.02)):
        stats = space.stats("work")
        if not stats.ready + stats.claimed + stats.in_doubt:
            if not stats.delayed:
                return
            space.resume("work")
        threading.Event().wait(0.02)
    raise AssertionError(space.stats("work"))


@pytest.mark.parametrize("kind", ["threads", "rounds"])
def test_x21_a_route_pauses_at_a_storm_of_failures_and_one_message_shows_that_it_is_over(path: Path, kind: str) -> None:
    events: list[Event] = []
    with spool.open(path) as space:
        space.put_many("work", range(MANY))
        service, stop = Service(), threading.Event()
        answers["it"] = service.answer
        was_shown_down: list[bool] = []

        def tell(event: Event) -> None:
            events.append(event)
            if isinstance(event, Paused):
                was_shown_down.append(("route_down", "work", "Scripted") in space.engine.meters.read().states)
                service.note_pause(event.reason)

        run: Callable[[], object]
        if kind == "threads":
            forwarder = ThreadForwarder(space.path, [Route("work", Scripted("it"))], on_event=tell)
            run, end = forwarder.run, forwarder.stop
        else:
            loop = RouteLoop(
                space=space, route=Route("work", Scripted("it")), job=in_process, tasks=lambda: 1, once=False,
                stopped=stop, attempted=set(), count=lambda queue, result: None, tell=tell,
            )  # fmt: skip
            run, end = loop.run, stop.set
        with beside(run, end):
            wait_until_empty(space)
        check(space, service, failed=2 * 10 + 2 if kind == "rounds" else 10 + 1 + 2)  # (a round has two chunks)
        assert (
            kind == "threads" or was_shown_down == [False] + [True] * (len(was_shown_down) - 1) or all(was_shown_down)
        )
        assert [type(event) for event in events if isinstance(event, Down | Up)] == [Down, Up]
        counts = space.engine.meters.read().counts
        assert counts["service_calls", "work", "Scripted", "succeeded"] == MANY
        assert counts["service_calls", "work", "Scripted", "failed"] == service.calls - MANY


def failing(message: spool.Message) -> None:
    raise ValueError("never")


def handled(path: Path, function: Callable[[spool.Message], object], most: int = 10, retries: int = 1) -> list[str]:
    """Work until the queue is empty; return the reasons of pauses."""
    reasons: list[str] = []
    with spool.open(path) as space:
        space.change_queue("work", retries=retries)
        space.put_many("work", range(MANY))
        handler, stop = spool.Handler(function), threading.Event()
        handler.paused = lambda queue, reason, seconds: reasons.append(reason)  # type: ignore[method-assign]
        with beside(partial(space.work, "work", handler, stop=stop, pause_after=most), stop.set):
            wait_until_empty(space)
    return reasons


def one_failing(message: spool.Message) -> None:
    if message.body == 0:
        raise ValueError("never")


def rejecting(message: spool.Message) -> None:
    raise spool.Reject("no such account")


def failing_differently(message: spool.Message) -> None:
    raise [ValueError, KeyError, OSError][message.body % 3]("never")


@pytest.mark.parametrize(("function", "retries"), [(one_failing, 30), (rejecting, 1), (failing_differently, 1)])
def test_x21_one_message_final_failures_and_failures_of_different_kinds_are_no_storm(
    path: Path, function: Callable[[spool.Message], None], retries: int
) -> None:
    assert handled(path, function, retries=retries) == []


def test_x21_the_number_can_be_chosen_and_0_causes_no_pause(path: Path) -> None:
    assert handled(path, failing, most=0) == []
    assert handled(path, failing, most=3)[0].startswith("3 messages failed one after another")
    with spool.open(path) as space, pytest.raises(spool.InvalidArgument, match="pause_after"):
        space.work("work", failing, pause_after=-1)


def test_x21_a_run_with_once_attempts_each_message_despite_a_storm(path: Path) -> None:
    with spool.open(path) as space:
        space.put_many("work", range(MANY))
        assert space.work("work", failing, once=True).retried == MANY


def test_x21_the_kind_of_a_failure_is_its_reason_up_to_the_colon_without_digits() -> None:
    streak = Streak(3)
    for number, reason in enumerate(("HTTP 503: busy", "HTTP 502: <html>", "HTTP 504")):
        streak.fail(reason, Position(1, number))
    assert streak.is_storm
    streak.fail("ValueError: x", Position(1, 4))
    assert not streak.is_storm
    for _ in range(9):
        streak.fail("ValueError: y", Position(1, 4))
    assert not streak.is_storm, "it is one message"
    streak.end()
    assert streak.failed == set()


def test_x21_an_outcome_of_another_kind_ends_the_streak_of_a_route(path: Path) -> None:
    with spool.open(path) as space:
        space.change_queue("work", retries=1)
        space.put_many("work", range(MANY))
        calls = itertools.count()
        answers["it"] = lambda request: Rejected("no") if next(calls) % 5 == 0 else Retried("busy")
        reasons: list[str] = []
        forwarder = ThreadForwarder(
            space.path, [Route("work", Scripted("it"))],
            on_event=lambda event: reasons.append(event.reason) if isinstance(event, Paused) else None,
        )  # fmt: skip
        with beside(forwarder.run, forwarder.stop):
            wait_until_empty(space)
        assert reasons == []
