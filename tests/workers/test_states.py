"""The state machine of an attempt, by its properties: an attempt ends once, for any events in any order."""

import re
from collections.abc import Iterator
from itertools import chain
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

import spool
from spool.disk import Disk
from spool.model.position import Position
from spool.model.settings import QueueConfig
from spool.workers import conclusion, pauses, states
from spool.workers.conclusion import Conclusion, without_room
from spool.workers.effects import Effect
from spool.workers.next_step import DriverStep, next_step
from spool.workers.outcome import Rejected, Replied, Retried
from spool.workers.pauses import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, Breaker
from spool.workers.states import ENDS, Event, State, end_of_call, next_state
from spool.workers.worker_run import WorkerRun
from tests.clocks import SimulatedClock

possible = {state: [event for event in Event if (state, event) in states._NEXT] for state in State}


def histories(state: State = State.CLAIMED, most: int = 5) -> Iterator[list[tuple[State, Event, State]]]:
    """Yield each attempt of at most five events, which is one event more than the longest way to an end has."""
    yield []
    for event in (Event if state in ENDS else possible[state]) if most else ():
        after = next_state(state, event)
        for rest in histories(after, most - 1):
            yield [(state, event, after), *rest]


def test_an_attempt_ends_once_and_nothing_changes_its_end() -> None:
    for before, _, after in chain.from_iterable(histories()):
        assert after is before or before not in ENDS


def test_a_result_after_the_time_limit_or_the_end_changes_nothing() -> None:
    """The first of the answer and the time limit decides the end; the later one has no effect."""
    for history in histories():
        events = [event for before, event, after in history if after is not before]
        assert not {Event.ANSWER, Event.COMMITTED, Event.UNREACHED} & set(events[index_of_withdrawal(events) :][1:])


def index_of_withdrawal(events: list[Event]) -> int:
    return next((n for n, event in enumerate(events) if event in (Event.LATE, Event.END)), len(events))


def test_the_table_of_conclusions_has_each_event_that_ends_an_attempt_and_tells_whether_it_counts() -> None:
    rows = re.findall(r"^\|[^|]+\| ([A-Z_]+) +\|[^|]+\| ([\w ]+?) +\|", conclusion.__doc__ or "", re.MULTILINE)
    counts = {State.WITHDRAWN: {True}, State.ABANDONED: {False}, State.CONCLUDED: {True, False}}
    for (before, event), after in states._NEXT.items():
        if after in ENDS and (before, event) != (State.CLAIMED, Event.END):  # (the table tells the end of a call)
            assert {attempt != "none" for name, attempt in rows if name == event.name} == counts[after], event


def test_a_stop_ends_no_call_and_releases_messages_that_are_only_claimed() -> None:
    for before, event, after in chain.from_iterable(histories()):
        if event is Event.STOP:
            assert after is (State.ABANDONED if before is State.CLAIMED else before)


def test_an_attempt_is_counted_only_after_its_call_began() -> None:
    for history in histories():
        if any(after in (State.CONCLUDED, State.WITHDRAWN) for _, _, after in history):
            assert history[0][1] is Event.BEGIN


@pytest.mark.parametrize("state", [state for state in State if state not in ENDS])
def test_each_state_can_end_and_an_impossible_event_is_a_defect(state: State) -> None:
    reached = {state}
    for _ in State:
        reached |= {next_state(each, event) for each in reached - ENDS for event in possible[each]}
    assert reached >= {State.ABANDONED, State.CONCLUDED, State.WITHDRAWN}
    for event in set(Event) - set(possible[state]):
        with pytest.raises(ValueError, match=event.name):
            next_state(state, event)


def test_the_table_of_the_docstring_is_that_of_the_machine() -> None:
    rows = re.findall(r"^\| (\w+) +\| ([A-Z_, ]+?)(?::[^|]*)? *\| (\w+) +\|", states.__doc__ or "", re.MULTILINE)
    told = {(State(state), Event[name]): State(after) for state, names, after in rows for name in names.split(", ")}
    assert told == states._NEXT


def test_a_service_that_was_not_reached_has_no_answer() -> None:
    assert [end_of_call(outcome) for outcome in (Replied(), Rejected("no"), Retried("busy"))] == [Event.ANSWER] * 3
    assert end_of_call(Retried("refused", counted=False)) is Event.UNREACHED


@given(st.sampled_from([None, "a", "b", "c"]), st.sets(st.sampled_from(["a", "b"])), st.sets(st.sampled_from("abc")))
def test_a_full_queue_concerns_one_message_only_if_no_other_uses_it(full: str | None, named: set[str], into: set[str]):
    conclusion = without_room(spool.Full("full", full), QueueConfig("work"), named, into, replies=True)
    assert conclusion.waits == (full in named - into)


# -- pauses -----------------------------------------------------------------------------------------------------------


@given(st.lists(st.one_of(st.none(), st.floats(0, 1e4)), min_size=1, max_size=20))
def test_pauses_grow_to_a_minute_and_are_never_shorter_than_the_service_asks(asked: list[float | None]) -> None:
    now = 100.0
    breaker, before = Breaker("work", lambda: now, lambda: False, once=False), FIRST_PAUSE_SECONDS / 2
    for retry_after in [*asked, None]:
        breaker.hold_back("refused", retry_after)
        before = min(before * 2, LONGEST_PAUSE_SECONDS)
        assert breaker.take_untold() == ("refused", max(before, retry_after or 0.0))
        now += max(before, retry_after or 0.0)
        assert breaker.pause_left() == 0
    breaker.note("")
    breaker.hold_back("refused")
    assert breaker.take_untold() == ("refused", FIRST_PAUSE_SECONDS)


@pytest.mark.parametrize(
    ("state", "step"),
    [
        ({}, DriverStep.TAKE),
        ({"is_stopping": True, "is_full": True}, DriverStep.END),
        ({"is_full": True, "down": True}, DriverStep.CALL),
        ({"down": True}, DriverStep.PAUSE),
        ({"is_empty": True}, DriverStep.TAKE),
        ({"is_empty": True, "once": True, "is_busy": True}, DriverStep.CALL),
        ({"is_empty": True, "once": True}, DriverStep.END),
        ({"down": True, "once": True, "is_busy": True}, DriverStep.END),
    ],
)
def test_the_next_step_of_each_driver(state: dict[str, bool], step: DriverStep) -> None:
    breaker = Breaker("work", lambda: 100.0, lambda: False, once=state.pop("once", False))
    if state.pop("down", False):
        breaker.hold_back("refused")
    assert next_step(breaker, **{"is_stopping": False, **state}) is step


def test_q12_a_run_claims_nothing_during_a_pause_and_a_call_from_before_does_not_end_the_pause() -> None:
    clock = SimulatedClock(100.0)
    disk = Disk("/nowhere")
    disk.clock = clock
    run = WorkerRun(mock.Mock(clock=clock, **{"files.disk": disk}), "work", print, once=False)
    position, refused = Position(7, 0), Conclusion(Effect.KEPT, "refused", "the service was not reached (refused)")
    with mock.patch.object(run.handler, "paused") as told:
        run.hold_back(position, refused)
        clock.sleep(0.5)
        run.hold_back(Position(7, 1), refused)
        run.end(Position(7, 2), Conclusion(Effect.DELIVERED, ""), 100.0)
        assert (run.breaker.pause_left(), run.begin(position), told.mock_calls) == (0.5, False, [])
        run.end(position, refused, 100.0)
        clock.sleep(0.5)
        assert run.begin(position)
        run.hold_back(position, refused)
        run.end(position, refused, 101.0)
        clock.sleep(2.0)
        run.end(position, Conclusion(Effect.DELIVERED, ""), 103.0)
        run.hold_back(position, refused)
        run.end(position, refused, 103.0)
    assert told.mock_calls == [mock.call("work", refused.pause, seconds) for seconds in (1.0, 2.0, 1.0)]


def test_a_message_that_waits_alone_is_passed_over_for_a_growing_time_and_forgotten_at_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, position = SimulatedClock(100.0), Position(7, 0)
    breaker = Breaker("work", clock.monotonic, lambda: False, once=False)
    for seconds in (1.0, 2.0, 4.0):
        assert breaker.wait(position)
        assert (breaker.passed(), breaker.seconds()) == ([position], seconds)
        clock.sleep(seconds)
        assert (breaker.passed(), breaker.seconds()) == ([], None)
    clock.sleep(LONGEST_PAUSE_SECONDS + 1)
    breaker.passed()
    assert breaker.wait(position)
    assert breaker.seconds() == 1.0
    monkeypatch.setattr(pauses, "MOST_WAITING", 1)
    assert not breaker.wait(Position(7, 1))
    breaker.note("", position)
    assert breaker.wait(Position(7, 1))
