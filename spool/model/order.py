"""The place of a message in its queue: by the queue's criteria, at the top, or before another message. Pure.

A place is a key. Keys are compared as tuples. A key has only values that never change: the position, and control fields
that are written with the message.

A put can insert a message B in front of a message A (option ``before``). B gets a copy of the values of A's key,
``[number, ordinal, priority, time, top]``. So B keeps its place when A is removed. If A itself was inserted in front of
a message T, B gets the values of T's key. After these values, B gets the positions of the messages between T and B.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from spool.errors import InvalidArgument
from spool.model.message import DEFAULT_PRIORITY, due_time
from spool.model.position import Position
from spool.model.settings import LIFO, PRIORITY, TIME

Key = tuple[float, ...]
MOST_BEFORE = 64  # the most messages in a chain of messages that were each inserted in front of the previous message
_ABOVE_ALL = float("-inf")


def order_key(order: tuple[str, ...], number: int, first: int, attributes: Mapping[str, Any], since: float) -> Key:
    """Return a message's sort key, with one part for each criterion. The first part is the most significant."""
    if "before" in attributes:
        target, ordinal, priority, time, top, *_ = attributes["before"]
        key = _key(order, target, ordinal, priority, time, top)
        for number_between, ordinal_between in (*list(_positions(attributes["before"]))[1:], (number, first)):
            key = (*key[:-1], key[-1] - 0.5, number_between, ordinal_between)
        return key
    priority = attributes.get("priority", DEFAULT_PRIORITY)
    return _key(order, number, first, priority, _time(attributes, since), attributes.get("top", False))


def _key(order: tuple[str, ...], number: int, ordinal: int, priority: int, time: float, top: bool) -> Key:
    if top:
        return _ABOVE_ALL, -number, -ordinal  # the newest message is delivered first
    criteria = {PRIORITY: -priority, TIME: time}
    sign = -1 if order[-1] == LIFO else 1
    return *(criteria[criterion] for criterion in order[:-1]), sign * number, sign * ordinal


def _time(attributes: Mapping[str, Any], committed_at: float) -> float:
    """Return the time for the criterion ``time``: the due time, or without a due time the time of the commit."""
    due = due_time(attributes, committed_at)
    return committed_at if due is None else due


def is_backwards(order: tuple[str, ...], attributes: Mapping[str, Any]) -> bool:
    """Return whether a queue delivers neighbouring messages of one commit from the last to the first."""
    return "before" not in attributes and (order[-1] == LIFO or attributes.get("top", False))


def place_before(attributes: Mapping[str, Any], committed_at: float, position: Position) -> list[Any]:
    """Return the field ``before`` of a new message that is inserted in front of an existing message.

    ``attributes`` and ``position`` belong to the existing message.
    """
    if "before" not in attributes:
        priority = attributes.get("priority", DEFAULT_PRIORITY)
        return [*position, priority, _time(attributes, committed_at), attributes.get("top", False)]
    place = [*attributes["before"], *position]
    if len(place) > 5 + 2 * MOST_BEFORE:
        raise InvalidArgument(
            f"{MOST_BEFORE} messages in a row were each put before the last one, and no more can be: "
            "put it before another message, or at the top"
        )
    return place


def cuts(attributes: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return the positions (number, ordinal) where a run must end, so that this message fits between two runs."""
    if "before" not in attributes:
        return []
    return [(number, ordinal + side) for number, ordinal in _positions(attributes["before"]) for side in (0, 1)]


def _positions(place: list[Any]) -> Iterator[tuple[int, int]]:
    """Yield the position of the message with whose key ``place`` begins, then the positions after this key."""
    yield place[0], place[1]
    yield from zip(place[5::2], place[6::2], strict=True)
