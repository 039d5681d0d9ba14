"""A queue's figures at one moment: from the index, the claims of all processes, and the prepared branches."""

from collections.abc import Iterable
from dataclasses import dataclass

from spool.index import DEQUEUED, ENQUEUED, EXPIRED, FAILED
from spool.message import Position
from spool.store import Store
from spool.visibility import catch_up, list_prepared


@dataclass(frozen=True)
class QueueStats:
    """A queue at one moment. ``bytes``: bodies that live; ``oldest_age``: seconds, None if nothing is ready.

    ``enqueued``, ``dequeued``, ``failed`` and ``expired`` count since the space was created.
    """

    ready: int
    delayed: int
    claimed: int
    in_doubt: int
    bytes: int
    oldest_age: float | None
    enqueued: int
    dequeued: int
    failed: int
    expired: int


def queue_stats(store: Store, queues: Iterable[str]) -> dict[str, QueueStats]:
    """The figures of the named queues, as of now."""
    catch_up(store)
    list_prepared(store)
    with store.mutex:
        now = store.clock.now()
        claimed, in_doubt = _claimed(store), _in_doubt(store)
        totals = store.index.totals()
        found = {}
        for name in queues:
            line = store.index.queue(name)
            line.ripen(now)
            delayed = sum(run.live for run in line.delayed)
            held = in_doubt.get(name, (0, 0))
            ready = line.live - delayed - claimed.get(name, 0) - held[0]
            oldest = min((run.committed_at for run in line.ready), default=None)
            counts = totals.get(name, [0, 0, 0, 0])
            found[name] = QueueStats(
                ready=max(0, ready), delayed=delayed, claimed=claimed.get(name, 0), in_doubt=sum(held),
                bytes=line.bytes, oldest_age=None if oldest is None else max(0.0, now - oldest),
                enqueued=counts[ENQUEUED], dequeued=counts[DEQUEUED], failed=counts[FAILED],
                expired=counts[EXPIRED],
            )  # fmt: skip
    return found


def _claimed(store: Store) -> dict[str, int]:
    """Claimed messages per queue, ours and others'."""
    counts: dict[str, int] = {}
    places = store.claims.held_ranges()
    places += [(n, o) for n, first, count in store.claims.held_elsewhere() for o in range(first, first + count)]
    for number, ordinal in places:
        run = store.index.find(Position(number, ordinal))
        if run is not None:
            counts[run.queue.name] = counts.get(run.queue.name, 0) + 1
    return counts


def _in_doubt(store: Store) -> dict[str, tuple[int, int]]:
    """Per queue: (messages that prepared branches hold, messages that they would add)."""
    counts: dict[str, tuple[int, int]] = {}
    for position in store.prepared.held:
        run = store.index.find(position)
        if run is not None:
            held, added = counts.get(run.queue.name, (0, 0))
            counts[run.queue.name] = (held + 1, added)
    for image in store.prepared.images.values():
        for table in image.tables:
            for place, _, count in table.runs:
                held, added = counts.get(table.queues[place], (0, 0))
                counts[table.queues[place]] = (held, added + count)
    return counts
