"""Read through a queue without claiming messages, and without turning segments into runs.

A cursor continues after the last sort key that it returned, even if messages were removed or compacted meanwhile. If a
message remains in the queue the whole time, the cursor returns the message exactly once. The cursor may miss a delayed
message that becomes due meanwhile, because the message then gets a new place, which the cursor may have passed.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple, Self

from spool.errors import Argument, CorruptedFile, InvalidArgument
from spool.index.index import Index
from spool.index.lookup import correlation_hash
from spool.index.queue import Queue
from spool.index.run import Run
from spool.index.segment import CORRELATIONS, Segment
from spool.model.checks import ValueCheck, check, seconds, text
from spool.model.message import PUT_OPTIONS, attributes_of, failure_time, parse_message_id
from spool.model.options import MessageFilters
from spool.model.order import Key
from spool.model.position import Position
from spool.model.text import LONGEST_REASON, shown


class Slice(NamedTuple):
    """Neighbouring messages with the same control fields; ``ordinals`` are in the order of delivery."""

    number: int
    ordinals: range
    attributes: Mapping[str, Any]
    committed_at: float


@dataclass(frozen=True, slots=True)
class Filter:
    """The conditions of a search: a message matches if it fulfils each given condition.

    ``message_id``: the message has one of the given ids, each as (branch id, ordinal in the branch). The other
    conditions are checked values of ``MessageFilters``.
    """

    message_id: tuple[tuple[bytes, int], ...] | None = None
    correlation_id: str | None = None
    headers: Mapping[str, str] | None = None
    reason: str | None = None
    since: float | None = None
    until: float | None = None
    older_than: float | None = None

    @classmethod
    def of(cls, filters: MessageFilters) -> Self:
        """Return a filter for a caller's keyword arguments.

        Raises:
            TypeError: no filter has the name of an argument.
            InvalidArgument, BadMessageId: a value can match no message.
        """
        for name in filters.keys() - MessageFilters.__annotations__.keys():
            known = ", ".join(MessageFilters.__annotations__)
            raise TypeError(f"there is no argument or filter {shown(name)}; the filters are {known}")
        given = {name: value for name, value in filters.items() if value is not None}
        found: dict[str, Any] = {key: check(key, given[key], kind) for key, kind in _CHECKS.items() if key in given}
        found |= attributes_of(**{name: given[name] for name in ("correlation_id", "headers") if name in given})
        if "message_id" in given:
            found["message_id"] = _parsed(given["message_id"])
        return cls(**found)

    def matches(self, attributes: Mapping[str, Any], committed_at: float, now: float) -> bool:
        """Return whether a message fulfils all conditions except ``message_id``."""
        return (
            self.correlation_id in (None, attributes.get("correlation_id"))
            and (not self.headers or self.headers.items() <= attributes.get("headers", {}).items())
            and (self.reason is None or self.reason in attributes.get("failure_reason", ""))
            and self._is_in_time(failure_time(attributes, committed_at) or committed_at, now)
        )

    def _is_in_time(self, time: float, now: float) -> bool:
        return (
            (self.since is None or time >= self.since)
            and (self.until is None or time < self.until)
            and (self.older_than is None or time < now - self.older_than)
        )


def _parsed(message_id: object) -> tuple[tuple[bytes, int], ...]:
    """Return the ids of a filter without duplicates. Raises BadMessageId for a value that is not a message id."""
    if isinstance(message_id, str):
        return (parse_message_id(message_id),)
    if not isinstance(message_id, Collection) or isinstance(message_id, Mapping | bytes):
        raise InvalidArgument(Argument("message_id"), f" is an id or a list of ids, not {shown(message_id)}")
    return tuple(dict.fromkeys(map(parse_message_id, message_id)))


_CHECKS = {
    "reason": ValueCheck(
        f"a part of a failure reason, 1 to {LONGEST_REASON} characters", partial(text, most=LONGEST_REASON), "TEXT"
    ),
    "since": PUT_OPTIONS["not_before"].check,
    "until": PUT_OPTIONS["not_before"].check,
    "older_than": ValueCheck("a number of seconds from 0", partial(seconds, most=1e12), "TIME"),
}


class Cursor:
    """A position in a queue. The cursor moves in the order of delivery, and finally through the delayed messages.

    ``unread``: for each segment with a damaged table, a text about the damage. The cursor does not return messages of
    these segments.
    """

    def __init__(self, queue: str, wanted: Filter) -> None:
        self._queue = queue
        self._wanted = wanted
        self._hashed = None if wanted.correlation_id is None else correlation_hash(wanted.correlation_id)
        self._delayed = False
        self._last: Key | None = None  # the last sort key that was returned
        self._newest: int | None = None  # messages of later commits are skipped, so that the cursor reaches an end
        self._ends: dict[Segment, Key] = {}  # for each segment that was read, the sort key of its last message
        self._places: deque[Position] | None = None  # the messages of the wanted ids that were not returned yet
        self.unread: dict[Segment, str] = {}

    def next(self, index: Index, now: float, count: int) -> list[Slice]:
        """Return the next slices, at most ``count``; [] at the end. The caller holds the mutex.

        ``now``: seconds since the epoch.
        """
        queue = index.messages.queue(self._queue)
        queue.promote_due(now)
        self._newest = index.applied if self._newest is None else self._newest
        if self._wanted.message_id is not None:
            return self._by_ids(index, now, count)
        while True:
            slices = list(islice(self._matching(index, queue, now), count))
            if slices or self._delayed:
                return slices
            self._delayed, self._last = True, None
            self._ends.clear()

    def _by_ids(self, index: Index, now: float, count: int) -> list[Slice]:
        """Return the next messages of the wanted ids. The first call determines the order of delivery."""
        if self._places is None:
            found = [index.messages.with_id(*id) for id in self._wanted.message_id or ()]
            there = [Position(run.number, ordinal) for run, ordinal in found if run is not None]
            runs = [(position, run) for position in there if (run := self._live(index, position, now))]
            runs.sort(key=lambda each: (each[1].due is not None, _sort_key(each[1]), each[0]))
            self._places = deque(position for position, _ in runs)
        slices: list[Slice] = []
        while self._places and len(slices) < count:
            position = self._places.popleft()
            if (run := self._live(index, position, now)) is not None:
                ordinals = range(position.ordinal, position.ordinal + 1)
                slices.append(Slice(position.number, ordinals, run.attributes, run.committed_at))
        return slices

    def _live(self, index: Index, position: Position, now: float) -> Run | None:
        """Return the run of a message if the message is in the queue and matches; otherwise None."""
        run = index.messages.find(position)
        if run is None or run.queue.name != self._queue or run.is_expired(now):
            return None
        return run if self._wanted.matches(run.attributes, run.committed_at, now) else None

    def _matching(self, index: Index, queue: Queue, now: float) -> Iterator[Slice]:
        for run in self._in_order(index, queue):
            self._last = _sort_key(run)
            assert self._newest is not None
            if (
                run.number <= self._newest
                and not run.is_expired(now)
                and self._wanted.matches(run.attributes, run.committed_at, now)
            ):
                yield Slice(run.number, run.ordinals, run.attributes, run.committed_at)

    def _in_order(self, index: Index, queue: Queue) -> Iterator[Run]:
        """Yield the queue's runs after the last key, merged from lists and segments. A segment is read only when its
        first key is the next key. With a correlation id, most other runs are left out."""
        last, hashed, correlation_id = self._last, self._hashed, self._wanted.correlation_id
        heap: list[_Entry] = []
        lists = [queue.delayed] if self._delayed else [queue.ready, queue.waiting]
        if correlation_id is not None and not self._delayed:
            found, lists = queue.correlated(correlation_id), []
            begin = 0 if last is None else bisect_right(found, last, key=attrgetter("key"))
            _push(heap, 0, (run for run in islice(found, begin, None) if run.due is None))
        for rank, runs in enumerate(lists):
            # The last key in the form of the list's keys.
            listed: Any = last if last is None or not self._delayed else (last[0], last[1:])
            _push(heap, -rank, iter(runs) if last is None else runs.irange_key(listed, None, (False, True)))
        behind: deque[Segment] = deque()
        for rank, segment in enumerate(queue.delayed_segments if self._delayed else queue.segments, 1):
            if hashed is not None and not segment.may_have(CORRELATIONS, hashed):
                continue
            if last is None or segment.key > last:
                behind.append(segment)
            elif self._ends.get(segment, _NO_END) > last:
                _push(heap, rank, self._runs_of(index, segment))
        opened = len(queue.all_segments())
        while heap or behind:
            while behind and (not heap or behind[0].key <= heap[0][0]):
                opened += 1
                _push(heap, opened, self._runs_of(index, behind.popleft()))
            if heap:
                _, rank, run, rest = heappop(heap)
                yield run
                _push(heap, rank, rest)

    def _runs_of(self, index: Index, segment: Segment) -> Iterator[Run]:
        """Return runs of a segment's live messages whose sort keys follow the last key. The segment does not change."""
        try:
            runs = index.messages.runs_of(segment, self._hashed)
        except (CorruptedFile, FileNotFoundError) as error:
            self.unread.setdefault(segment, str(error))  # a get drops the segment later, and ``check`` names the file
            return iter(())
        if not segment.delayed:
            for run in runs:
                run.due = None
        self._ends[segment] = _sort_key(runs[-1]) if runs else ()
        last = self._last
        return (run for run in runs if last is None or _sort_key(run) > last)


_Entry = tuple[Key, int, Run, Iterator[Run]]
_NO_END: Key = (float("inf"),)


def _push(heap: list[_Entry], rank: int, runs: Iterator[Run]) -> None:
    """Add the remaining ``runs`` to the heap. If two entries have equal keys, the entry with the lower ``rank`` is
    first."""
    if (run := next(runs, None)) is not None:
        heappush(heap, (_sort_key(run), rank, run, runs))


def _sort_key(run: Run) -> Key:
    """Return the sort key of a run. The key of a delayed run begins with the due time."""
    return run.key if run.due is None else (run.due, *run.key)
