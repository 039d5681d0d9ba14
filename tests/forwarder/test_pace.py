"""The next action of a route, decided from the results of its last rounds."""

from types import SimpleNamespace
from typing import Any

import pytest

from forwarder import ThreadForwarder
from forwarder.result import RoundResult
from forwarder.round import RoundSize
from forwarder.routes.pace import FIRST_ROUND_MESSAGES, MOST_ROUND_MESSAGES, Pace, halves, is_through, next_limit
from spool.workers.conclusion import kept
from spool.workers.states import Event

FULL_ROUND = RoundSize(FIRST_ROUND_MESSAGES, FIRST_ROUND_MESSAGES)


def delivered(messages: int) -> RoundResult:
    return RoundResult({"delivered": messages})


def not_reached() -> RoundResult:
    return RoundResult({"kept": 1}, kept=kept(Event.UNREACHED, "refused"))


def steady() -> Pace:
    """The pace behind a round of two seconds."""
    pace = Pace(2)
    pace.note(FULL_ROUND, delivered(FULL_ROUND.messages), seconds=2.0)
    return pace


def test_the_next_round_is_claimed_while_a_full_one_calls() -> None:
    assert steady().claims_ahead(FULL_ROUND)
    assert not steady().claims_ahead(RoundSize(128, 127)), "what comes meanwhile is claimed in one round behind it"


def test_nothing_is_claimed_ahead_while_rounds_still_grow_or_shrink() -> None:
    pace = Pace(2)
    assert not pace.claims_ahead(FULL_ROUND)
    pace.note(FULL_ROUND, delivered(128), seconds=0.1)
    assert not pace.claims_ahead(RoundSize(256, 256))
    pace.note(RoundSize(256, 256), delivered(256), seconds=2.5)
    assert pace.claims_ahead(RoundSize(256, 256))
    pace.note(RoundSize(256, 256), delivered(256), seconds=5.0)
    assert not pace.claims_ahead(RoundSize(128, 128))


def test_e07_nothing_is_claimed_ahead_where_order_or_room_depends_on_the_commit() -> None:
    assert not steady().claims_ahead(RoundSize(128, 128, in_order=True))
    assert not steady().claims_ahead(RoundSize(128, 128, is_bounded=True))


@pytest.mark.parametrize(
    "result", [not_reached(), RoundResult(kept=kept(Event.NO_ROOM, "queue replies is full")), delivered(9)]
)
def test_nothing_is_claimed_ahead_behind_a_round_that_left_messages(result: RoundResult) -> None:
    """The messages that the round left come first; or the service is down, and would fail for the next messages,
    too."""
    pace = steady()
    assert not is_through(128, result)
    pace.note(FULL_ROUND, result, seconds=2.0)
    assert not pace.claims_ahead(FULL_ROUND)
    pace.note(RoundSize(pace.limit, pace.limit), delivered(pace.limit), seconds=2.0)
    assert pace.claims_ahead(RoundSize(pace.limit, pace.limit))


def test_a_route_has_a_bounded_number_of_messages_claimed() -> None:
    """Two rounds of so many at most, however fast the service is."""
    pace, size = Pace(2), FULL_ROUND
    for _ in range(30):
        pace.note(size, delivered(size.messages), seconds=0.001)
        size = RoundSize(pace.limit, pace.limit)
    assert pace.limit == MOST_ROUND_MESSAGES == 65_536


def test_q11_answers_that_find_no_room_are_tried_in_halves_without_a_pause() -> None:
    pace, full = Pace(2), RoundResult(kept=kept(Event.NO_ROOM, "queue replies is full"))
    pace.note(RoundSize(128, 100), full, seconds=0.1)
    assert (pace.limit, halves(RoundSize(128, 100), full), halves(RoundSize(50, 1), full)) == (50, True, False)
    assert full.down == "there is no room (queue replies is full)"


def test_q12_a_forwarder_is_idle_when_no_route_had_a_message_or_was_busy_for_long_enough() -> None:
    def is_over(now: float, messages: int = 0, is_busy: bool = False) -> bool:
        forwarder._now, forwarder._loops = lambda: now, [SimpleNamespace(is_busy=is_busy)]
        forwarder._end_if_idle(messages)
        return forwarder._is_stopping

    forwarder: Any = ThreadForwarder("a space", {"work": "queue:next"}, idle=10.0)
    forwarder._active_at = 100.0
    assert not is_over(109.0)
    assert not is_over(110.0, messages=1)
    assert not is_over(119.0, is_busy=True), "a call of another route is in progress, or it pauses"
    assert not is_over(128.0)
    assert is_over(129.0)
    forwarder = ThreadForwarder("a space", {"work": "queue:next"})
    forwarder._active_at = 0.0
    assert not is_over(1e9)


@pytest.mark.parametrize(
    ("limit", "messages", "seconds", "expected"),
    [
        (128, 128, 0.1, 256),
        (4, 4, 1.5, 8),
        (128, 100, 0.1, 128),
        (128, 128, 2.0, 128),
        (128, 9, 9.0, 64),
        (8, 8, 9.0, 8),
        (1, 1, 9, 1),
    ],
)
def test_rounds_grow_while_they_are_short_and_shrink_while_they_are_long(
    limit: int, messages: int, seconds: float, expected: int
) -> None:
    assert next_limit(limit, messages, seconds, tasks=8) == expected


@pytest.mark.parametrize(
    ("fixed_seconds", "seconds_per_message", "least", "most"),
    [(5.0, 0.001, 64, 128), (0.1, 0.25, 8, 16), (3.0, 0.25, 8, 16), (0.3, 0.0, 65_536, 65_536)],
    ids=["busy machine", "slow service", "slow service on a busy machine", "fast"],
)
def test_rounds_shrink_only_while_a_smaller_round_is_not_slower_per_message(
    fixed_seconds: float, seconds_per_message: float, least: int, most: int
) -> None:
    """On a busy machine the start of the tasks takes seconds, so smaller rounds forward fewer messages a second."""
    pace, limits = Pace(2), list[int]()
    for _ in range(40):
        size = RoundSize(pace.limit, pace.limit)
        limits.append(size.limit)
        pace.note(size, delivered(size.messages), seconds=fixed_seconds + seconds_per_message * size.messages)
    assert least <= min(limits[20:]) <= max(limits[20:]) <= most


def test_rounds_shrink_at_once_when_a_service_becomes_slow() -> None:
    pace, spent = Pace(2), 0.0
    while pace.limit < MOST_ROUND_MESSAGES:
        pace.note(RoundSize(pace.limit, pace.limit), delivered(pace.limit), seconds=0.1)
    for _ in range(20):
        spent += pace.limit * 0.01
        pace.note(RoundSize(pace.limit, pace.limit), delivered(pace.limit), seconds=pace.limit * 0.01)
    assert (pace.limit, spent < 2 * MOST_ROUND_MESSAGES * 0.01 + 20 * 4) == (256, True)
