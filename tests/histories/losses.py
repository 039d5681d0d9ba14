"""Histories of a queue without durability, beside a durable queue: a power cut may take commits of the former."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import spool
from tests import door
from tests.compaction import small_compactions
from tests.histories.contents import EMPTY, QUEUES, Contents
from tests.histories.history import Expectation, History, did

LOSING, KEEPING = "b", "a"
Effect = tuple[str, str, str]  # "put" or "take", queue, body


def _after(contents: Contents, effects: tuple[Effect, ...]) -> Contents:
    for what, queue, body in effects:
        if what == "put":
            contents = contents.put(queue, body)
        elif body in contents.queues[QUEUES.index(queue)]:  # the removal of a message that is lost does nothing
            contents = _taken(contents, queue, body)
    return contents


def _taken(contents: Contents, queue: str, body: str) -> Contents:
    place = QUEUES.index(queue)
    others = [other for other in contents.queues[place] if other != body]
    return contents.ordered(queue, body, *others).got(queue)


def _counting_less(contents: Contents) -> Iterator[Contents]:
    place = QUEUES.index(LOSING)
    enqueued, dequeued = contents.counts[place]
    for count in range(enqueued):
        counts = list(contents.counts)
        counts[place] = count, dequeued
        yield replace(contents, counts=tuple(counts))


class Losses:
    """The operations so far: each happened whole or not at all, durably or not."""

    def __init__(self, expected: Expectation) -> None:
        self._expectation = expected
        self._begin = expected.contents
        self.may_miscount = False  # a message whose first file is lost is not counted, wherever else it lies
        self._operations: list[tuple[tuple[Effect, ...], bool]] = []

    @contextmanager
    def doing(self, *effects: Effect, surely: bool = False) -> Iterator[None]:
        """While the block runs, the operation may have happened or not. Afterwards a kill takes nothing back, and a
        power cut takes only operations that are not ``surely`` durable."""
        before, kept = self._contents(), self._all()
        self._operations.append((effects, False))
        self._tell(before | self._contents(), frozenset([kept, self._all()]))
        yield
        self._operations[-1] = effects, surely
        self._tell(self._contents(), frozenset([self._all()]))

    def everything_becomes_sure(self) -> None:
        self._tell(self._contents(), frozenset([self._all()]))

    def everything_is_sure(self) -> None:
        self._operations = [(effects, True) for effects, _ in self._operations]
        self._tell(frozenset([self._all()]), frozenset([self._all()]))

    def _tell(self, allowed: frozenset[Contents], kept: frozenset[Contents]) -> None:
        if self.may_miscount:
            allowed |= {less for contents in allowed for less in _counting_less(contents)}
        self._expectation.allowed, self._expectation.kept = allowed, kept

    def _all(self) -> Contents:
        return self._made([True] * len(self._operations))

    def _contents(self) -> frozenset[Contents]:
        choices = itertools.product(*([True] if surely else [True, False] for _, surely in self._operations))
        return frozenset(map(self._made, choices))

    def _made(self, done: "tuple[bool, ...] | list[bool]") -> Contents:
        contents = self._begin
        for (effects, _), there in zip(self._operations, done, strict=True):
            contents = _after(contents, effects) if there else contents
        return contents


def _one_loses(space: spool.Space) -> None:
    space.change_queue(LOSING, durability="none")
    space.put(LOSING, "old")  # durable when the space is closed


def _puts_and_gets(space: spool.Space, expected: Expectation) -> None:
    """Operations on the durable queue, or on both queues in one transaction, are durable."""
    losses = Losses(expected)
    with losses.doing(("put", LOSING, "one")):
        space.put(LOSING, "one")
    with losses.doing(("take", LOSING, "old")):
        assert space.get(LOSING).body == "old"
    with losses.doing(("put", KEEPING, "kept"), surely=True):
        space.put(KEEPING, "kept")
    with losses.doing(("take", LOSING, "one"), ("put", KEEPING, "reply"), surely=True):
        with spool.Transaction(door.core(space), counted=False) as both:
            both.put(KEEPING, f"reply to {both.get(LOSING).body}"[:5])
    with losses.doing(("take", KEEPING, "kept"), surely=True):
        space.get(KEEPING)


def _moved(space: spool.Space, expected: Expectation) -> None:
    """A message that has left the queue for another one is as sure as if it had been put there."""
    losses = Losses(expected)
    with losses.doing(("put", LOSING, "one")):
        message = space.put(LOSING, "one")
    expected.kept = frozenset([OLD.put(LOSING, "one"), MOVED])
    expected.allowed |= expected.kept
    space.move(message, KEEPING)
    expected.allowed = expected.kept = frozenset([MOVED])


OLD = EMPTY.put(LOSING, "old")
MOVED = replace(OLD.put(KEEPING, "one"), counts=((1, 0), (2, 0), (0, 0)))


def _housekeeping(space: spool.Space, expected: Expectation) -> None:
    """Compacted messages, and commits that reclaim has counted as flushed, are durable."""
    losses = Losses(expected)
    for body in "12":
        with losses.doing(("put", LOSING, body)):
            space.put(LOSING, body)
    losses.may_miscount = True
    losses.everything_becomes_sure()
    with small_compactions():
        did(door.compact(space))
    losses.everything_is_sure()
    with losses.doing(("take", LOSING, "old")):
        space.get(LOSING)
    door.reclaim(space)
    losses.may_miscount = False
    losses.everything_is_sure()
    with losses.doing(("take", LOSING, "1")):
        space.get(LOSING)


LOSSES = (
    History("a queue without durability", _one_loses, OLD, _puts_and_gets, loses=True),
    History("moved out of a queue without durability", _one_loses, OLD, _moved, loses=True),
    History("a queue without durability, compacted", _one_loses, OLD, _housekeeping, survivors=2, loses=True),
)
