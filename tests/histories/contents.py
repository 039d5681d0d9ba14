"""The contents of a space that an application may find: the messages of each queue in order, the branches in doubt with
the messages that they hold, and the counts since the beginning."""

from dataclasses import dataclass, replace

import spool
from spool.index.index import DEQUEUED, ENQUEUED
from spool.model.xid import Xid
from spool.store.parts import addressed_positions
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

    def without(self, queue: str, body: str) -> "Contents":
        """Return these contents without that message, which does not count as dequeued: it was replaced or rejected."""
        return self.ordered(queue, *(other for other in self.queues[QUEUES.index(queue)] if other != body))

    def ordered(self, queue: str, *bodies: str) -> "Contents":
        """Return these contents with those messages in the queue; the counts stay."""
        place = QUEUES.index(queue)
        return self._with(place, bodies, self.counts[place])

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
