"""The contents of a space that an application may find after a crash, as a history of calls says.

``Contents`` are the messages of each queue in order, the branches in doubt with the messages that they hold, and the
counts since the beginning. An ``Expectation`` says which contents are allowed at each moment of a history: before a
call the old ones, during the call the old or the new ones, after its return the new ones only.
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
from tests import door

AFTER = "after"
QUEUES = ("a", "b", AFTER)
XID = Xid(4711, b"foreign", b"1")


@dataclass(frozen=True)
class Contents:
    """``queues``: bodies that can be browsed, per queue. ``held``: the number of messages that branches in doubt hold
    or would add, per queue. ``counts``: (enqueued, dequeued) since the beginning, per queue."""

    queues: tuple[tuple[str, ...], ...]
    in_doubt: tuple[str, ...] = ()
    held: tuple[int, ...] = (0,) * len(QUEUES)
    counts: tuple[tuple[int, int], ...] = ((0, 0),) * len(QUEUES)

    def put(self, queue: str, *bodies: str) -> "Contents":
        place = QUEUES.index(queue)
        enqueued, dequeued = self.counts[place]
        return self._with(place, self.queues[place] + bodies, (enqueued + len(bodies), dequeued))

    def got(self, queue: str, count: int = 1) -> "Contents":
        """Return these contents without the first ``count`` messages of the queue."""
        place = QUEUES.index(queue)
        enqueued, dequeued = self.counts[place]
        return self._with(place, self.queues[place][count:], (enqueued, dequeued + count))

    def doubting(self, queue: str, hidden: int, *, added: int = 0) -> "Contents":
        """A branch in doubt hides the first messages of the queue, and would add some."""
        place = QUEUES.index(queue)
        held = list(self.held)
        held[place] += hidden + added
        queues = self._with(place, self.queues[place][hidden:], self.counts[place])
        return replace(queues, held=tuple(held), in_doubt=(str(XID),))

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in vars(self).items()).replace(" " * 64, "")

    def _with(self, place: int, bodies: tuple[str, ...], counts: tuple[int, int]) -> "Contents":
        queues, all_counts = list(self.queues), list(self.counts)
        queues[place], all_counts[place] = bodies, counts
        return replace(self, queues=tuple(queues), counts=tuple(all_counts))


EMPTY = Contents(((),) * len(QUEUES))


class Expectation:
    """The contents that are allowed now. ``kept``: those after a kill without a power cut, if they are fewer."""

    def __init__(self, contents: Contents) -> None:
        self.contents = contents
        self.allowed = frozenset([contents])
        self.kept: frozenset[Contents] | None = None

    @property
    def after_kill(self) -> frozenset[Contents]:
        return self.allowed if self.kept is None else self.kept

    @contextmanager
    def becoming(self, contents: Contents, *, surely: bool = True, or_else: Iterable[Contents] = ()) -> Iterator[None]:
        """While the block runs, the old and the new contents are allowed, and those of ``or_else``; afterwards only the
        new ones, unless ``surely`` is False."""
        self.allowed = frozenset([self.contents, contents, *or_else])
        yield
        self.contents = contents
        if surely:
            self.allowed = frozenset([contents])


@dataclass(frozen=True)
class History:
    """The calls of one process.

    ``setup`` has ended and is durable when ``run`` begins; ``begin`` are the contents then. ``decided`` maps a decision
    on the branch in doubt to the contents after it. ``finish`` runs in each space that is opened after the cut, before
    the contents are read. ``survivors``: the most disks that a default run tries for each cut (long histories have many
    cuts). ``mirrored``: the space has a mirror. ``loses``: a power cut may take visible messages, if the expectation
    allows it."""

    name: str
    setup: Callable[[spool.Space], None]
    begin: Contents
    run: Callable[[spool.Space, Expectation], None]
    decided: Mapping[Contents, Mapping[str, Contents]] = field(default_factory=dict)
    may_return: frozenset[Contents] = frozenset()
    finish: Callable[[spool.Space], object] = lambda space: None
    survivors: int = 3
    mirrored: bool = False
    loses: bool = False


def look(space: spool.Space) -> Contents:
    """The contents that an application finds."""
    store = door.store(space)
    queues = tuple(tuple(str(message.body) for message in space.browse(queue)) for queue in QUEUES)
    totals = store.view.index.totals()
    return Contents(
        queues,
        tuple(sorted(map(str, store.view.prepared.branches))),
        tuple(_held(space).count(queue) for queue in QUEUES),
        tuple((counts[ENQUEUED], counts[DEQUEUED]) for counts in (totals.get(queue, [0] * 4) for queue in QUEUES)),
    )


def _held(space: spool.Space) -> list[str]:
    """The queue of each message that a branch in doubt holds, or would add."""
    store = door.store(space)
    images = store.view.prepared.branches.values()
    runs = [store.view.index.messages.find(place) for image in images for place in addressed_positions(image)]
    tables = [table for image in images for table in image.tables]
    added = [table.queues[place] for table in tables for place, _, count in table.runs for _ in range(count)]
    return [run.queue.name for run in runs if run is not None] + added


def decide(space: spool.Space, outcome: str, *, told: bool = False) -> None:
    """Commit or roll back the branch in doubt, as a coordinator that got its vote (``told``), or did not."""
    store = door.store(space)
    if outcome == "commit":
        commit_prepared(door.core(space), XID, vote_known=told)
    else:
        rollback_prepared(store, XID, deadline(space))


def in_doubt(before: Contents) -> Contents:
    """The contents after the vote of a branch that takes a message of queue a and puts a reply into b."""
    return before.doubting("a", 1).doubting("b", 0, added=1)


def prepare(space: spool.Space, expected: Expectation) -> None:
    """Prepare such a branch."""
    with expected.becoming(in_doubt(expected.contents)):
        tx = branch(space)
        tx.get("a")
        tx.put("b", "reply")
        assert tx.prepare()


def deadline(space: spool.Space) -> Deadline:
    return door.deadline(space)


def branch(space: spool.Space) -> CoordinatedTransaction:
    """A transaction that can be prepared."""
    return door.branch(space, xid=XID)
