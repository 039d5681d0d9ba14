"""The tasks and messages that failed in the last day: messages of error queues, and stored results of failed tasks.

A task whose message lies in an error queue and whose result is stored, too, counts once. A message that was redriven,
deleted or has expired does not count any more, and neither does such a result. So the counts need no store of their
own, and agree with the lists of messages.

An error queue is read again when its counts have changed. Of a state queue, only new results are read: it may have a
million. The control fields are in memory; a body is read only for the cause of a failed result.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

from spool.admin.listing import READY, QueueEntry
from spool.admin.stats import QueueStats
from spool.errors import CorruptedFile
from spool.index.browse import Cursor, Filter, Slice
from spool.index.run import Run
from spool.index.segment import Segment
from spool.model.message import failure_time, message_id
from spool.model.position import Position
from spool.model.settings import ERROR, STATE
from spool.model.text import one_line
from spool.store.store import Store
from spool.transactions.delivery import peek
from spool.watch.bodies import BODY_PREVIEW
from spool.watch.tasks import FAILED_STATES, NAME, task_id, task_of
from spool.watch.tasks import STATE as STATE_HEADER

DAY_SECONDS = 86_400.0
_AGAIN_SECONDS = 60.0  # an error queue without changes is read again after this time, because messages grow old
_MOST_MESSAGES = 10_000  # of each queue
_MOST_SEGMENTS = 20  # of a state queue, when it is read first; they have some 80,000 results
MOST_LISTED = 50
_MOST_GROUPS = 200
_MOST_KIND = 60  # characters
_AT_ONCE = 256
OTHER = "other"


@dataclass(frozen=True, slots=True)
class FailedTask:
    """A task or another message that failed.

    message_id: the message of the error queue, or the stored result.
    id, task: the id and the name of the task; None and "" if the message is no task.
    queue: the queue in which the task failed, or the queue of the result.
    kept_in: the queue that has the message.
    at: the time of the failure, in seconds since the epoch.
    """

    message_id: str
    id: str | None
    task: str
    queue: str
    kept_in: str
    cause: str
    at: float


@dataclass(frozen=True, slots=True)
class TaskFailures:
    """The failures of one task in one queue with one kind of cause.

    task, queue: as in ``FailedTask``; "other" for the rest, if there are too many kinds of failures.
    kept_in: the queue that has the messages.
    kind: the beginning of the causes: the type of the exception, or the first characters.
    cause: the latest cause.
    last_at: the time of the latest failure, in seconds since the epoch.
    """

    task: str
    queue: str
    kept_in: str
    kind: str
    cause: str
    count: int
    last_at: float


@dataclass
class _ErrorQueue:
    counts: tuple[int, ...] = ()
    read_at: float = float("-inf")
    failed: list[FailedTask] = field(default_factory=list)


@dataclass
class _StateQueue:
    """seen: the segments that were read. last: the number of the last commit that was read."""

    seen: set[Segment] = field(default_factory=set)
    last: int = -1
    failed: dict[Position, FailedTask] = field(default_factory=dict)


class RecentFailures:
    """The failures of the last day in one open space. One thread at a time may call an object."""

    def __init__(self) -> None:
        self._errors: dict[str, _ErrorQueue] = {}
        self._states: dict[str, _StateQueue] = {}

    def find(self, store: Store, queues: Mapping[str, QueueStats], roles: Mapping[str, str]) -> list[FailedTask]:
        """Return the failures, the newest first. ``queues``, ``roles``: of the metrics."""
        found: dict[object, FailedTask] = {}
        for name, stats in queues.items():
            if roles[name] == STATE:
                for each in self._results(store, name):
                    found.setdefault(each.id or each.message_id, each)
            elif roles[name] == ERROR:
                for each in self._messages(store, name, stats):
                    found[each.id or each.message_id] = each
        for kept in (self._errors, self._states):
            for name in kept.keys() - queues.keys():
                del kept[name]
        after = store.clock.now() - DAY_SECONDS
        return sorted((each for each in found.values() if each.at >= after), key=lambda each: -each.at)

    def _messages(self, store: Store, queue: str, stats: QueueStats) -> list[FailedTask]:
        known = self._errors.setdefault(queue, _ErrorQueue())
        counts = (stats.enqueued, stats.dequeued, stats.failed, stats.expired, stats.deleted)
        now = store.clock.monotonic()
        if counts != known.counts or now - known.read_at > _AGAIN_SECONDS:
            wanted = Filter(since=store.clock.now() - DAY_SECONDS)
            slices = slices_of(store, Cursor(queue, wanted))
            known.failed = list(islice(_failed_in(store, queue, slices), _MOST_MESSAGES))
            known.counts, known.read_at = counts, now
        return known.failed

    def _results(self, store: Store, queue: str) -> Iterable[FailedTask]:
        known = self._states.setdefault(queue, _StateQueue())
        for position in list(_new_results(store, queue, known)):
            if (failed := _failed_result(store, queue, position)) is not None:
                known.failed[position] = failed
        with store.view.mutex:
            messages = store.view.index.messages
            known.failed = {each: one for each, one in known.failed.items() if messages.find(each) is not None}
        for position in list(known.failed)[:-_MOST_MESSAGES]:
            del known.failed[position]
        return known.failed.values()


def slices_of(store: Store, cursor: Cursor) -> Iterator[Slice]:
    """Yield the slices of a cursor. The mutex of the index is free between two steps."""
    while True:
        with store.view.mutex:
            some = cursor.next(store.view.index, store.clock.now(), _AT_ONCE)
        if not some:
            return
        yield from some


def _failed_in(store: Store, queue: str, slices: Iterable[Slice]) -> Iterator[FailedTask]:
    for each in slices:
        attributes = each.attributes
        at = failure_time(attributes, each.committed_at)
        if at is None:
            continue
        with store.view.mutex:
            ids = [
                message_id(*store.view.index.messages.branch_of(position))
                for ordinal in each.ordinals
                if store.view.index.messages.find(position := Position(each.number, ordinal)) is not None
            ]
        task = one_line(attributes.get("headers", {}).get(NAME, ""))
        origin, cause = attributes.get("origin_queue") or queue, one_line(attributes["failure_reason"])
        for id_ in ids:
            yield FailedTask(id_, attributes.get("correlation_id"), task, origin, queue, cause, at)


def _new_results(store: Store, name: str, known: _StateQueue) -> Iterator[Position]:
    """Yield the positions of the results of failed tasks that were added since the last call."""
    with store.view.mutex:
        index = store.view.index
        queue = index.messages.queue(name)
        segments = [each for each in queue.segments if each not in known.seen]
        runs: list[Run] = [run for run in queue.ready if run.number > known.last]
        known.seen = set(queue.segments)
        for segment in segments if known.last >= 0 else segments[-_MOST_SEGMENTS:]:
            try:
                runs += index.messages.runs_of(segment, None)
            except (CorruptedFile, FileNotFoundError):
                continue  # a check reports the damage
        known.last = index.applied
    for run in runs:
        if run.attributes.get("headers", {}).get(STATE_HEADER) in FAILED_STATES:
            for ordinal in range(run.first, run.end):
                position = Position(run.number, ordinal)
                if position not in known.failed:
                    yield position


def _failed_result(store: Store, queue: str, position: Position) -> FailedTask | None:
    """Read the result of a failed task. None: it was removed, or is damaged."""
    try:
        seen = peek(store, position, BODY_PREVIEW)
    except CorruptedFile:
        return None
    if seen is None:
        return None
    message = seen.message
    entry = QueueEntry(message.id, position, READY, message, None, None, seen.body_bytes, seen.is_cut)
    task = task_of(entry, store.clock.now())
    name, cause = ("", None) if task is None else (task.name, task.cause)
    return FailedTask(message.id, task_id(message), name, queue, queue, cause or "", message.enqueued_at)


# -- groups ------------------------------------------------------------------------------------------------------------


def kind_of(cause: str) -> str:
    """Return the kind of a cause: the type of an exception, e.g. ``ValueError``, or the first characters."""
    kind, colon, _ = cause.partition(":")
    if colon and kind.replace(".", "").replace("_", "").isalnum() and len(kind) <= _MOST_KIND:
        return kind
    return cause[:_MOST_KIND]


def grouped(failed: Iterable[FailedTask], most: int = _MOST_GROUPS) -> tuple[TaskFailures, ...]:
    """Return failures by task, queue and kind of cause, the most frequent first. ``failed``: the newest first.

    If more than ``most`` groups exist, the last one is "other".
    """
    return _merged(
        (
            TaskFailures(each.task, each.queue, each.kept_in, kind_of(each.cause), each.cause, 1, each.at)
            for each in failed
        ),
        lambda one: (one.task, one.queue, one.kept_in, one.kind),
        most,
    )


def by_task(failures: Iterable[TaskFailures], most: int) -> tuple[TaskFailures, ...]:
    """Return the failures by task and queue, without their causes."""
    without = (replace(each, kept_in="", kind="", cause="") for each in failures)
    return _merged(without, lambda one: (one.task, one.queue), most)


def _merged(
    failures: Iterable[TaskFailures], key: Callable[[TaskFailures], tuple[str, ...]], most: int
) -> tuple[TaskFailures, ...]:
    counts, latest = Counter[tuple[str, ...]](), dict[tuple[str, ...], TaskFailures]()
    for each in failures:
        counts[key(each)] += each.count
        if key(each) not in latest or latest[key(each)].last_at < each.last_at:
            latest[key(each)] = each
    found = [replace(latest[name], count=count) for name, count in counts.most_common()]
    if len(found) > most:
        rest = found[most - 1 :]
        last = max(each.last_at for each in rest)
        found[most - 1 :] = [TaskFailures(OTHER, OTHER, "", "", "", sum(each.count for each in rest), last)]
    return tuple(found)
