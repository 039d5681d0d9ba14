"""Histories of a queue without durability: what a power cut may take of it, beside a queue that loses nothing."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import spool
from spool.maintenance.reclaim import reclaim
from tests.compaction import small_compactions
from tests.crash.book import Book
from tests.crash.interleave import Scenario, Stage
from tests.crash.programs import getting, one_after_the_other, putting, reclaiming, replying
from tests.crash.worlds import EMPTY, QUEUES, History, Ledger, World

LOSING, KEEPING = "b", "a"
Effect = tuple[str, str, str]  # "put" or "take", queue, body


def _after(world: World, effects: tuple[Effect, ...]) -> World:
    for what, queue, body in effects:
        if what == "put":
            world = world.put(queue, body)
        elif body in world.queues[QUEUES.index(queue)]:  # the removal of a message that is lost does nothing
            world = _without(world, queue, body)
    return world


def _without(world: World, queue: str, body: str) -> World:
    place = QUEUES.index(queue)
    queues, counts = list(world.queues), list(world.counts)
    queues[place] = tuple(other for other in queues[place] if other != body)
    counts[place] = counts[place][0], counts[place][1] + 1
    return replace(world, queues=tuple(queues), counts=tuple(counts))


def _counting_less(world: World) -> Iterator[World]:
    place = QUEUES.index(LOSING)
    enqueued, dequeued = world.counts[place]
    for count in range(enqueued):
        counts = list(world.counts)
        counts[place] = count, dequeued
        yield replace(world, counts=tuple(counts))


class Losses:
    """What was done, each deed whole or not at all, and surely or not."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._begin = ledger.world
        self.may_miscount = False  # a message whose first file is lost is not counted, wherever else it lies
        self._deeds: list[tuple[tuple[Effect, ...], bool]] = []

    @contextmanager
    def doing(self, *effects: Effect, surely: bool = False) -> Iterator[None]:
        """While the block runs, the deed may be there or not; after it, a process that dies takes nothing with it, and
        a power cut what is not sure."""
        before, kept = self._worlds(), self._all()
        self._deeds.append((effects, False))
        self._tell(before | self._worlds(), frozenset([kept, self._all()]))
        yield
        self._deeds[-1] = effects, surely
        self._tell(self._worlds(), frozenset([self._all()]))

    def everything_becomes_sure(self) -> None:
        self._tell(self._worlds(), frozenset([self._all()]))

    def everything_is_sure(self) -> None:
        self._deeds = [(effects, True) for effects, _ in self._deeds]
        self._tell(frozenset([self._all()]), frozenset([self._all()]))

    def _tell(self, allowed: frozenset[World], kept: frozenset[World]) -> None:
        if self.may_miscount:
            allowed |= {less for world in allowed for less in _counting_less(world)}
        self._ledger.allowed, self._ledger.kept = allowed, kept

    def _all(self) -> World:
        return self._made([True] * len(self._deeds))

    def _worlds(self) -> frozenset[World]:
        choices = itertools.product(*([True] if surely else [True, False] for _, surely in self._deeds))
        return frozenset(map(self._made, choices))

    def _made(self, done: "tuple[bool, ...] | list[bool]") -> World:
        world = self._begin
        for (effects, _), there in zip(self._deeds, done, strict=True):
            world = _after(world, effects) if there else world
        return world


def _one_loses(space: spool.Space) -> None:
    space.change_queue(LOSING, durability="none")
    space.put(LOSING, "old")  # durable when the space is closed


def _puts_and_gets(space: spool.Space, ledger: Ledger) -> None:
    """What is done with the other queue, or with both in one transaction, is sure."""
    losses = Losses(ledger)
    with losses.doing(("put", LOSING, "one")):
        space.put(LOSING, "one")
    with losses.doing(("take", LOSING, "old")):
        assert space.get(LOSING).body == "old"
    with losses.doing(("put", KEEPING, "kept"), surely=True):
        space.put(KEEPING, "kept")
    with losses.doing(("take", LOSING, "one"), ("put", KEEPING, "reply"), surely=True):
        with spool.Transaction(space._core, counted=False) as both:
            both.put(KEEPING, f"reply to {both.get(LOSING).body}"[:5])
    with losses.doing(("take", KEEPING, "kept"), surely=True):
        space.get(KEEPING)


def _moved(space: spool.Space, ledger: Ledger) -> None:
    """A message that has left the queue for another one is as sure as if it had been put there."""
    losses = Losses(ledger)
    with losses.doing(("put", LOSING, "one")):
        message = space.put(LOSING, "one")
    ledger.kept = frozenset([OLD.put(LOSING, "one"), MOVED])
    ledger.allowed |= ledger.kept
    space.move(message, KEEPING)
    ledger.allowed = ledger.kept = frozenset([MOVED])


OLD = EMPTY.put(LOSING, "old")
MOVED = replace(OLD.put(KEEPING, "one"), counts=((1, 0), (2, 0), (0, 0)))


def _housekeeping(space: spool.Space, ledger: Ledger) -> None:
    """What was compacted, or counted as flushed by reclaim, is sure."""
    losses = Losses(ledger)
    for body in "12":
        with losses.doing(("put", LOSING, body)):
            space.put(LOSING, body)
    losses.may_miscount = True
    losses.everything_becomes_sure()
    with small_compactions():
        assert space._housekeeper.compact() == 1
    losses.everything_is_sure()
    with losses.doing(("take", LOSING, "old")):
        space.get(LOSING)
    reclaim(space._store)
    losses.may_miscount = False
    losses.everything_is_sure()
    with losses.doing(("take", LOSING, "1")):
        space.get(LOSING)


LOSSES = (
    History("a queue without durability", _one_loses, OLD, _puts_and_gets, loses=True),
    History("moved out of a queue without durability", _one_loses, OLD, _moved, loses=True),
    History("a queue without durability, compacted", _one_loses, OLD, _housekeeping, survivors=2, loses=True),
)


def _loses(space: spool.Space, book: Book) -> None:
    space.change_queue("a", durability="none")
    book.losing = frozenset("a")


def _lossy_commits_and_takes(stage: Stage) -> None:
    """Of several processes, beside transactions that put what is durable, and a reclaim that flushes."""
    stage.process("A", putting(stage.book, "A", 2))
    stage.process("B", one_after_the_other(getting(stage.book, "B"), reclaiming))
    stage.process("C", replying(stage.book, "C"))


LOSSY = (Scenario("a queue without durability", _lossy_commits_and_takes, ("m0",), _loses),)
