"""What an application may find in a space after a crash, and the histories that say so.

A *world* is what an application sees: the messages of each queue in order, the branches in doubt with the messages
that they hold, and the counts since the beginning. A *ledger* says which worlds may be found at any time of a history:
before a call the old one, while it runs the old or the new one, and once it has returned only the new one (all or
nothing, and acknowledged means there).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import spool
from spool.index.index import DEQUEUED, ENQUEUED
from spool.model.xid import Xid
from spool.runtime.clock import Deadline
from spool.store.parts import addressed_positions
from spool.transactions.coordinated import CoordinatedTransaction
from spool.transactions.two_phase import commit_prepared, rollback_prepared

AFTER = "after"
QUEUES = ("a", "b", AFTER)
XID = Xid(4711, b"foreign", b"1")


@dataclass(frozen=True)
class World:
    """``queues``: bodies that can be browsed, per queue; ``held``: how many messages branches in doubt hold or would
    add, per queue; ``counts``: (enqueued, dequeued) since the beginning, per queue."""

    queues: tuple[tuple[str, ...], ...]
    in_doubt: tuple[str, ...] = ()
    held: tuple[int, ...] = (0,) * len(QUEUES)
    counts: tuple[tuple[int, int], ...] = ((0, 0),) * len(QUEUES)

    def put(self, queue: str, *bodies: str) -> "World":
        place = QUEUES.index(queue)
        enqueued, dequeued = self.counts[place]
        return self._with(place, self.queues[place] + bodies, (enqueued + len(bodies), dequeued))

    def got(self, queue: str, count: int = 1) -> "World":
        """The first ``count`` messages of the queue are gone."""
        place = QUEUES.index(queue)
        enqueued, dequeued = self.counts[place]
        return self._with(place, self.queues[place][count:], (enqueued, dequeued + count))

    def doubting(self, queue: str, hidden: int, *, added: int = 0) -> "World":
        """A branch in doubt hides the first messages of the queue, and would add some."""
        place = QUEUES.index(queue)
        held = list(self.held)
        held[place] += hidden + added
        queues = self._with(place, self.queues[place][hidden:], self.counts[place])
        return replace(queues, held=tuple(held), in_doubt=(str(XID),))

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in vars(self).items()).replace(" " * 64, "")

    def _with(self, place: int, bodies: tuple[str, ...], counts: tuple[int, int]) -> "World":
        queues, all_counts = list(self.queues), list(self.counts)
        queues[place], all_counts[place] = bodies, counts
        return replace(self, queues=tuple(queues), counts=tuple(all_counts))


EMPTY = World(((),) * len(QUEUES))


class Ledger:
    """Which worlds may be found now; ``kept``: those that may be if only the process has died, if these are fewer."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.allowed = frozenset([world])
        self.kept: frozenset[World] | None = None

    @property
    def after_kill(self) -> frozenset[World]:
        return self.allowed if self.kept is None else self.kept

    @contextmanager
    def becoming(self, world: World, *, surely: bool = True, or_else: Iterable[World] = ()) -> Iterator[None]:
        """While the block runs, both worlds may be found, ``or_else`` some others; after it only the new one, unless
        that is not ``surely``."""
        self.allowed = frozenset([self.world, world, *or_else])
        yield
        self.world = world
        if surely:
            self.allowed = frozenset([world])


@dataclass(frozen=True)
class History:
    """``setup`` is over and durable when ``run`` begins; ``begin`` is the world then. ``decided`` maps a decision on
    the branch in doubt to the world that it makes, for histories that have one. ``finish`` is what is done in each
    space that is opened afterwards before it is looked at. ``survivors``: how many disks a cut leaves at most in a
    default run, since long histories have many cuts. ``mirrored``: the space has a mirror. ``loses``: a power cut may
    take what was seen, as far as the ledger allows."""

    name: str
    setup: Callable[[spool.Space], None]
    begin: World
    run: Callable[[spool.Space, Ledger], None]
    decided: Mapping[World, Mapping[str, World]] = field(default_factory=dict)
    may_return: frozenset[World] = frozenset()
    finish: Callable[[spool.Space], object] = lambda space: None
    survivors: int = 4
    mirrored: bool = False
    loses: bool = False


def look(space: spool.Space) -> World:
    """What an application sees."""
    store = space._store
    queues = tuple(tuple(str(message.body) for message in space.browse(queue)) for queue in QUEUES)
    totals = store.view.index.totals()
    return World(
        queues,
        tuple(sorted(map(str, store.view.prepared.branches))),
        tuple(_held(space).count(queue) for queue in QUEUES),
        tuple((counts[ENQUEUED], counts[DEQUEUED]) for counts in (totals.get(queue, [0] * 4) for queue in QUEUES)),
    )


def _held(space: spool.Space) -> list[str]:
    """The queue of each message that a branch in doubt holds, or would add."""
    store = space._store
    images = store.view.prepared.branches.values()
    runs = [store.view.index.messages.find(place) for image in images for place in addressed_positions(image)]
    tables = [table for image in images for table in image.tables]
    added = [table.queues[place] for table in tables for place, _, count in table.runs for _ in range(count)]
    return [run.queue.name for run in runs if run is not None] + added


def decide(space: spool.Space, outcome: str, *, told: bool = False) -> None:
    """Commit or roll back the branch in doubt, as a coordinator that was or was not told its vote."""
    store = space._store
    if outcome == "commit":
        commit_prepared(space._core, XID, vote_known=told)
    else:
        rollback_prepared(store, XID, deadline(space))


def in_doubt(before: World) -> World:
    """What is there once a branch is prepared that takes a message of queue a and puts a reply into b."""
    return before.doubting("a", 1).doubting("b", 0, added=1)


def prepare(space: spool.Space, ledger: Ledger) -> None:
    """Prepare such a branch."""
    with ledger.becoming(in_doubt(ledger.world)):
        tx = branch(space)
        tx.get("a")
        tx.put("b", "reply")
        assert tx.prepare()


def deadline(space: spool.Space) -> Deadline:
    return space._store.deadline()


def branch(space: spool.Space) -> CoordinatedTransaction:
    """A transaction that can be prepared."""
    return CoordinatedTransaction(space._core, xid=XID)
