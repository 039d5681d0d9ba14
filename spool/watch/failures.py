"""The tasks and messages that failed in the last day: messages of error queues, and stored results of failed tasks.

A task whose message lies in an error queue and whose result is stored, too, counts once. A message that was redriven,
deleted or has expired does not count any more, and neither does such a result. So the counts need no store of their
own, and agree with the lists of messages.

A call reads only the messages that were added since the last call, because a queue may have a million. The control
fields are in memory; a body is read only for the cause of a failed result.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from time import thread_time

from spool.admin.listing import READY, QueueEntry
from spool.admin.reads import peek
from spool.errors import CorruptedFile
from spool.index.browse import Cursor, Slice
from spool.index.run import Run
from spool.index.segment import Segment
from spool.model.message import failure_time
from spool.model.position import Position
from spool.model.settings import ERROR, STATE
from spool.model.text import one_line
from spool.store.store import Store
from spool.watch.body_text import BODY_PREVIEW
from spool.watch.tasks import FAILED_STATES, NAME, task_id, task_of
from spool.watch.tasks import STATE as STATE_HEADER

DAY_SECONDS = 86_400.0
_MOST_MESSAGES = 10_000  # of each queue
_MOST_SEGMENTS = 5  # of a queue, when it is read first; they have some 20,000 messages
_MOST_LISTED = 50
_MOST_CAUSES = 1_000  # of results, in one call; older ones are counted without their causes
_CHEAP_SECONDS, _MOST_SHARE, _LONGEST_SECONDS = 0.05, 0.02, 60.0  # of the time of a processor, if it is not cheap
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
class _Known:
    """The failures in one queue. segments: those that were read. last: the number of the last commit that was read.

    failed: by position, the oldest first, at most ``_MOST_MESSAGES``.
    """

    segments: set[Segment] = field(default_factory=set)
    last: int = -1
    failed: dict[Position, FailedTask] = field(default_factory=dict)


@dataclass(frozen=True)
class FailureReport:
    """The failures of the last day.

    failed: the newest, at most 50. groups: all of them, by task, queue and kind of cause. origins: for each error
    queue, the number of its failed messages by the queue in which they failed.
    """

    failed: tuple[FailedTask, ...] = ()
    groups: tuple[TaskFailures, ...] = ()
    origins: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


class RecentFailures:
    """The failures in one open space. One thread at a time may call an object.

    If very many messages have failed, the failures are up to a minute old, so that they cost little.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._found, self._until = FailureReport(), float("-inf")

    def find(self, store: Store, roles: Mapping[str, str]) -> FailureReport:
        """Return the failures of the last day. ``roles``: the role of each queue."""
        if store.clock.monotonic() >= self._until:
            begun = thread_time()
            self._found = self._find(store, roles)
            seconds = thread_time() - begun
            pause = min(_LONGEST_SECONDS, seconds / _MOST_SHARE) if seconds > _CHEAP_SECONDS else 0.0
            self._until = store.clock.monotonic() + pause
        return self._found

    def _find(self, store: Store, roles: Mapping[str, str]) -> FailureReport:
        found: dict[object, FailedTask] = {}
        origins: dict[str, Mapping[str, int]] = {}
        # Of a failed message and the result of the same task, the message counts.
        for name in sorted(roles, key=lambda name: roles[name] == STATE):
            if roles[name] in (ERROR, STATE):
                failed = self._read(store, name, is_error=roles[name] == ERROR)
                for each in failed:
                    found.setdefault((each.id if each.task else None) or each.message_id, each)
                if roles[name] == ERROR:
                    origins[name] = dict(Counter(each.queue for each in failed))
        self._known = {name: known for name, known in self._known.items() if name in roles}
        after = store.clock.now() - DAY_SECONDS
        recent = sorted((each for each in found.values() if each.at >= after), key=lambda each: -each.at)
        return FailureReport(tuple(recent[:_MOST_LISTED]), grouped(recent), origins)

    def _read(self, store: Store, queue: str, *, is_error: bool) -> Collection[FailedTask]:
        known = self._known.setdefault(queue, _Known())
        read = 0
        for run in _new_runs(store, queue, known, is_error=is_error):
            for ordinal in range(run.first, run.end):
                position = Position(run.number, ordinal)
                if is_error:
                    failed = _failed_message(store, queue, run, position)
                else:
                    failed = _failed_result(store, queue, run, position, with_cause=read < _MOST_CAUSES)
                    read += failed is not None
                if failed is not None:
                    known.failed[position] = failed
        with store.view.mutex:
            now = store.view.index.messages.find  # (a message that moves to another queue keeps its position)
            known.failed = {
                each: one for each, one in known.failed.items() if (there := now(each)) and there.queue.name == queue
            }
        if len(known.failed) > _MOST_MESSAGES:
            for position in sorted(known.failed)[:-_MOST_MESSAGES]:
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


def _new_runs(store: Store, name: str, known: _Known, *, is_error: bool) -> list[Run]:
    """Return the runs of a queue that were added since the last call, the newest first.

    A message that moves to an error queue keeps the number of its commit, so there all runs in memory are compared.
    """
    with store.view.mutex:
        index = store.view.index
        queue = index.messages.queue(name)
        held = (*queue.segments, *queue.delayed_segments)
        new = [each for each in held if each not in known.segments]
        runs = [run for run in (*queue.ready, *queue.waiting, *queue.delayed) if is_error or run.number > known.last]
        for segment in new if known.last >= 0 else new[-_MOST_SEGMENTS:]:
            try:
                runs += index.messages.runs_of(segment, None)
            except (CorruptedFile, FileNotFoundError):
                continue  # a check reports the damage
        known.segments, known.last = set(held), index.applied
    new_runs = [run for run in runs if Position(run.number, run.first) not in known.failed]
    return sorted(new_runs, key=lambda run: -run.number)


def _failed_message(store: Store, queue: str, run: Run, position: Position) -> FailedTask | None:
    """Return a failed message of an error queue. None: the message has not failed, or was removed."""
    attributes = run.attributes
    if (at := failure_time(attributes, run.committed_at)) is None:
        return None
    with store.view.mutex:
        if store.view.index.messages.find(position) is None:
            return None
    task = one_line(attributes.get("headers", {}).get(NAME, ""))
    origin, cause = attributes.get("origin_queue") or queue, one_line(attributes["failure_reason"])
    return FailedTask(run.id_of(position.ordinal), attributes.get("correlation_id"), task, origin, queue, cause, at)


def _failed_result(store: Store, queue: str, run: Run, position: Position, *, with_cause: bool) -> FailedTask | None:
    """Read the result of a failed task. None: the task has not failed, or the result was removed or is damaged.

    ``with_cause``: whether to read the body, which has the cause.
    """
    if run.attributes.get("headers", {}).get(STATE_HEADER) not in FAILED_STATES:
        return None
    try:
        seen = peek(store, position, BODY_PREVIEW if with_cause else 0)
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
    """Return the kind of a cause: the type of an exception, e.g. ``ValueError``, or the first characters without
    numbers."""
    kind, colon, _ = cause.partition(":")
    if colon and kind.replace(".", "").replace("_", "").isalnum() and len(kind) <= _MOST_KIND:
        return kind
    return re.sub(r"\b(?<!HTTP )[0-9]+", "…", cause)[:_MOST_KIND]


def grouped(failed: Iterable[FailedTask]) -> tuple[TaskFailures, ...]:
    """Return failures by task, queue and kind of cause, the most frequent first. ``failed``: the newest first.

    If more than 200 groups exist, the last one is "other".
    """
    found = (TaskFailures(one.task, one.queue, one.kept_in, kind_of(one.cause), one.cause, 1, one.at) for one in failed)
    return _merged(found, lambda one: (one.task, one.queue, one.kept_in, one.kind), _MOST_GROUPS)


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
