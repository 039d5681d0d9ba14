"""Visibility: a message that one worker saw, and that no worker has touched since, is visible to all.

A whole commit becomes visible at once: with its acknowledgement, or when any worker sees or gets one of its messages.
So later readers see the commit, and no worker gets a message that follows it by priority and position.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from sortedcontainers import SortedList

if TYPE_CHECKING:
    from tests.torture.checker import History, Place, Position
    from tests.torture.history import Record

_NEVER = 2**63
_ADD, _REMOVE, _ASK = range(3)


class Rank(NamedTuple):
    """A message's place in its queue."""

    minus_priority: int
    position: "Position"


@dataclass(frozen=True)
class Message:
    """A committed message, with the time from its visibility to the first attempt to claim it."""

    place: "Place"
    rank: Rank
    tx: str
    visible_at: int
    touched_at: int


class Question(NamedTuple):
    """A call from ``begun`` to ``at`` that got or saw a message must have passed all messages up to ``rank``."""

    name: str
    begun: int
    rank: Rank | None
    seen: frozenset["Place"]


def unseen(history: "History") -> Iterator[str]:
    """Every message that was passed over or not seen, in words."""
    messages = _messages(history)
    by_queue: dict[str, list[tuple[int, int, Message | Question]]] = defaultdict(list)
    for message in messages.values():
        if message.visible_at < message.touched_at:
            by_queue[message.place[0]].append((message.visible_at, _ADD, message))
            by_queue[message.place[0]].append((message.touched_at, _REMOVE, message))
    for got in history.gots():
        if got.tx is not None and (found := messages.get(got.place)):
            question = Question(f"{got.tx.name} got {got.place}", got.tx.began_at, found.rank, frozenset((got.place,)))
            by_queue[got.place[0]].append((got.at, _ASK, question))
    for look in history.looks:
        by_queue[look["queue"]].append((look["at"], _ASK, _question(look, messages)))
    yield from _never_committed(history)
    for events in by_queue.values():
        yield from _answers(sorted(events, key=lambda event: event[:2]), messages)


def _messages(history: "History") -> dict["Place", Message]:
    """Return all messages whose position is known. A dropped file's acknowledgement says nothing of when it becomes a
    message."""
    seen_at: dict[str, int] = {}
    owners = {place: tx for place, _, tx in history.committed_puts()}
    shown = [((look["queue"], key), look["at"]) for look in history.looks for key in look["keys"]]
    for place, at in [*shown, *((got.place, got.at) for got in history.gots())]:
        if place in owners:
            name = owners[place].name
            seen_at[name] = min(at, seen_at.get(name, _NEVER))
    found = {}
    for place, expected, tx in history.committed_puts():
        position = expected or next((delivery.position for delivery in history.deliveries[place]), None)
        if position is None:
            continue
        acked = tx.ended_at if "ack" in tx.events and tx.ordered and tx.ended_at is not None else _NEVER
        visible_at = min(acked, seen_at.get(tx.name, _NEVER))
        rank = Rank(-history.priorities.get(place, 50), position)
        found[place] = Message(place, rank, tx.name, visible_at, history.touched_at.get(position, _NEVER))
    return found


def _question(look: "Record", messages: dict["Place", Message]) -> Question:
    """The messages that a read must have shown: all, or all up to its last one if it was cut short."""
    seen = [(look["queue"], key) for key in look["keys"]]
    last = (
        None
        if look["all"]
        else max((messages[place].rank for place in seen if place in messages), default=Rank(0, (0, 0)))
    )
    return Question(f"{look['worker']} looked at {look['queue']}", look["begun"], last, frozenset(seen))


def _answers(events: list[tuple[int, int, Message | Question]], messages: dict["Place", Message]) -> Iterator[str]:
    waiting: SortedList[tuple[Rank, Message]] = SortedList(key=lambda entry: entry[0])
    for _, kind, what in events:
        if isinstance(what, Message):
            (waiting.add if kind == _ADD else waiting.remove)((what.rank, what))
            continue
        together = {messages[place].tx for place in what.seen if place in messages} if len(what.seen) > 1 else set()
        for rank, message in waiting:
            if what.rank is not None and rank >= what.rank:
                break
            if message.place not in what.seen and (message.visible_at < what.begun or message.tx in together):
                yield f"{what.name}, and not {message.place} of {message.tx}, which was there and comes before"


def _never_committed(history: "History") -> Iterator[str]:
    put = {place for place, _, _ in history.committed_puts()}
    for look in history.looks:
        for key in look["keys"]:
            if (look["queue"], key) not in put:
                yield f"{look['worker']} saw {look['queue']} {key}, which was never committed"
