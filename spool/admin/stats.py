"""Count a queue's messages at one moment, from the index, the claims of all processes, and the prepared branches."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from spool.admin.quarantined import count_by_queue
from spool.index.commit import DEQUEUED, ENQUEUED, EXPIRED, FAILED
from spool.index.lookup import MessageTable
from spool.index.queue import Queue
from spool.index.run import QueueOrder, Run
from spool.log.quota import Usage, prepared_usage
from spool.log.visibility import catch_up, list_prepared
from spool.model.message import due_time
from spool.model.position import Position
from spool.model.settings import QueueConfig
from spool.store.parts import View
from spool.store.store import Store


@dataclass(frozen=True)
class QueueStats:
    """The figures of a queue at one moment.

    bytes: the size of all bodies in the queue.
    oldest_age: how long a message has been ready, at the most, in seconds: since its put, or since it was due. None if
        no message is ready.
    quarantined: the number of files in ``quarantine/`` that have a damaged message of the queue, or that the queue's
        intake refused.

    ``enqueued``, ``dequeued``, ``failed``, ``expired`` and ``deleted`` count since the space was created. ``deleted``
    counts the messages that were deleted, purged, moved to another queue or redriven. The queue to which a message is
    moved counts the message as enqueued. So enqueued = ready + delayed + claimed + in_doubt + dequeued + failed +
    expired + deleted, with one exception. The messages put by transactions in doubt are counted in ``in_doubt``, but
    not yet in ``enqueued``.
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
    deleted: int
    quarantined: int


def queue_stats(store: Store, queues: Iterable[str]) -> dict[str, QueueStats]:
    """Return the current figures of the named queues."""
    catch_up(store, list_prepared(store))  # the branches first, so that a branch that commits meanwhile is counted once
    return last_stats(store, queues)


def last_stats(store: Store, queues: Iterable[str]) -> dict[str, QueueStats]:
    """Return the figures of the named queues after the commits that this process has applied."""
    quarantined = count_by_queue(store.files.disk)
    with store.view.mutex:
        now, index, table = store.clock.now(), store.view.index, store.view.index.messages
        claimed = _per_queue(store.view, store.shared.claims.positions())
        held = _per_queue(store.view, store.view.prepared.held)
        added = prepared_usage(store.view.prepared)
        totals = index.totals()
        figures, empty = {}, Queue(QueueConfig(""), lambda segment: None)
        for name in queues:
            queue = table.queues.get(name, empty)  # (of thousands of queues, most may have no messages)
            taken, doubtful = claimed.get(queue.order, _NONE), held.get(queue.order, _NONE)
            ready, delayed, oldest = _waiting(table, queue, now, taken + doubtful) if queue.live else (0, 0, None)
            counts = totals.get(name, _NO_COUNTS)
            gone = counts[DEQUEUED] + counts[FAILED] + counts[EXPIRED]
            figures[name] = QueueStats(
                ready=ready, delayed=delayed, claimed=taken.total(),
                in_doubt=doubtful.total() + added.get(name, _NO_USAGE).messages,
                bytes=queue.bytes, oldest_age=None if oldest is None else max(0.0, now - oldest),
                enqueued=counts[ENQUEUED], dequeued=counts[DEQUEUED], failed=counts[FAILED],
                expired=counts[EXPIRED], deleted=max(0, counts[ENQUEUED] - gone - queue.live),
                quarantined=quarantined[name],
            )  # fmt: skip
    return figures


_NONE, _NO_COUNTS, _NO_USAGE = Counter[Run](), (0, 0, 0, 0), Usage()


def _waiting(table: MessageTable, queue: Queue, now: float, taken: Counter[Run]) -> tuple[int, int, float | None]:
    """Return the number of ready messages, the number of delayed messages, and the time since which one is ready.

    ``taken``: the number of messages that transactions hold, by run.
    """
    queue.promote_due(now)
    delayed = sum(run.live for run in queue.delayed) + sum(segment.live for segment in queue.delayed_segments)
    delayed -= sum(count for run, count in taken.items() if run.due is not None and run.due > now)
    ready = queue.live - delayed - taken.total()
    ready_runs = [run for run in (*queue.ready, *queue.waiting) if run.live > taken.get(run, 0)]
    times = [max(run.committed_at, due_time(run.attributes, run.committed_at) or 0.0) for run in ready_runs]
    oldest = min([*times, *map(table.oldest_in, [*queue.segments])], default=None)
    return max(0, ready), max(0, delayed), oldest


def first_due(store: Store, name: str) -> float | None:
    """Return the time when a queue's first delayed message is due, in seconds since the epoch, or None if no message is
    delayed."""
    catch_up(store)
    with store.view.mutex:
        queue = store.view.index.messages.queue(name)
        queue.promote_due(store.clock.now())
        times = [run.due for run in queue.delayed[:1]] + [segment.key[0] for segment in queue.delayed_segments[:1]]
    return min((due for due in times if due is not None), default=None)


def _per_queue(view: View, positions: Iterable[Position]) -> dict[QueueOrder, Counter[Run]]:
    """Return how many messages at the positions each run has, grouped by the order of the run's queue."""
    found: dict[QueueOrder, Counter[Run]] = {}
    for run in filter(None, map(view.index.messages.find, positions)):
        found.setdefault(run.queue, Counter())[run] += 1
    return found
