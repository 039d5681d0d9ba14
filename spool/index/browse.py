"""Looking through a queue without taking anything, and without bringing what is swept back into memory.

A look goes on where it was, by the place of what it saw last: messages may go and be swept meanwhile, and what was
there at its begin and stays is seen once. (A delayed one whose time comes meanwhile may be missed: it takes a place
that the look has passed.)
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import islice
from typing import Any, NamedTuple, Self

from spool.errors import CorruptedFile, InvalidArgument
from spool.index.index import Index
from spool.index.queue import Line
from spool.index.run import Run
from spool.index.segment import Segment
from spool.model.message import attributes_of, parse_message_id
from spool.model.options import MessageFilters
from spool.model.order import Key
from spool.shown import shown


class Seen(NamedTuple):
    """Neighbouring messages with the same control fields, ``ordinals`` in the order of delivery."""

    number: int
    ordinals: range
    attributes: Mapping[str, Any]
    committed_at: float


@dataclass(frozen=True, slots=True)
class Filter:
    """Which messages are meant: all of these must hold. ``headers``: at least these; ``older_than``: seconds since the
    commit of its put."""

    message_id: str | None = None
    correlation_id: str | None = None
    headers: Mapping[str, str] | None = None
    older_than: float | None = None

    @classmethod
    def of(cls, filters: MessageFilters) -> Self:
        """As a caller named them; TypeError for a name that is none of a filter."""
        for name in filters.keys() - MessageFilters.__annotations__.keys():
            known = ", ".join(MessageFilters.__annotations__)
            raise TypeError(f"there is no argument or filter {shown(name)}; the filters are {known}")
        return cls(**filters).checked()

    def checked(self) -> Self:
        """InvalidArgument or BadMessageId for what can never match anything."""
        if self.message_id is not None:
            parse_message_id(self.message_id)
        if self.older_than is not None and not (isinstance(self.older_than, int | float) and self.older_than >= 0):
            raise InvalidArgument(f"older_than is a number of seconds from 0, not {shown(self.older_than)}")
        attributes_of(correlation_id=self.correlation_id, headers=self.headers)
        return self

    def matches(self, attributes: Mapping[str, Any], committed_at: float, now: float) -> bool:
        return (
            self.correlation_id in (None, attributes.get("correlation_id"))
            and (not self.headers or self.headers.items() <= attributes.get("headers", {}).items())
            and (self.older_than is None or committed_at < now - self.older_than)
        )


class Look:
    """One look through a queue, in the order of delivery, delayed messages last."""

    def __init__(self, queue: str, wanted: Filter) -> None:
        self._queue = queue
        self._wanted = wanted
        self._delayed = False
        self._last: Key | None = None  # the place of what was seen last
        self._newest: int | None = None  # the last commit that counts: a look has an end, whoever puts meanwhile
        self._ends: dict[Segment, Key] = {}  # of segments that were read: the place of their last message
        self.unread: dict[Segment, str] = {}  # whose tables are damaged, and how: their messages are not seen

    def next(self, index: Index, now: float, count: int) -> list[Seen]:
        """The next ``count`` or fewer pieces; [] at the end. The caller holds the mutex."""
        line = index.queue(self._queue)
        line.ripen(now)
        self._newest = index.applied if self._newest is None else self._newest
        if self._wanted.message_id is not None:
            return self._the_one(index, now, self._wanted.message_id)
        while True:
            found = list(islice(self._matching(index, line, now), count))
            if found or self._delayed:
                return found
            self._delayed, self._last = True, None
            self._ends.clear()

    def _the_one(self, index: Index, now: float, message_id: str) -> list[Seen]:
        """The message with that id, once."""
        position = None if self._delayed else index.position_of(*parse_message_id(message_id))
        run = None if position is None else index.find(position)
        self._delayed = True
        if position is None or run is None or run.queue.name != self._queue or run.is_past(now):
            return []
        if not self._wanted.matches(run.attributes, run.committed_at, now):
            return []
        ordinals = range(position.ordinal, position.ordinal + 1)
        return [Seen(position.number, ordinals, run.attributes, run.committed_at)]

    def _matching(self, index: Index, line: Line, now: float) -> Iterator[Seen]:
        for run in self._in_order(index, line):
            self._last = _standing(run)
            assert self._newest is not None
            if (
                run.number <= self._newest
                and not run.is_past(now)
                and self._wanted.matches(run.attributes, run.committed_at, now)
            ):
                yield Seen(run.number, run.ordinals, run.attributes, run.committed_at)

    def _in_order(self, index: Index, line: Line) -> Iterator[Run]:
        """What stands behind what was seen last. Segments are read when it is their turn."""
        last = self._last
        heap: list[_Entry] = []
        for place, runs in enumerate([line.delayed] if self._delayed else [line.ready, line.waiting]):
            listed = None if last is None else self._as_listed(last)
            _push(heap, -place, iter(runs) if last is None else runs.irange_key(listed, None, (False, True)))
        behind: deque[Segment] = deque()
        for place, segment in enumerate(line.swept_delayed if self._delayed else line.swept, 1):
            if last is None or segment.key > last:
                behind.append(segment)
            elif self._ends.get(segment, _NO_END) > last:
                _push(heap, place, self._pieces(index, segment))
        opened = len(line.segments())
        while heap or behind:
            while behind and (not heap or behind[0].key <= heap[0][0]):
                opened += 1
                _push(heap, opened, self._pieces(index, behind.popleft()))
            if heap:
                _, place, run, rest = heappop(heap)
                yield run
                _push(heap, place, rest)

    def _as_listed(self, place: Key) -> Any:
        """By which the line's own list is sorted."""
        return (place[0], place[1:]) if self._delayed else place

    def _pieces(self, index: Index, segment: Segment) -> Iterator[Run]:
        """What is left of a segment behind what was seen last; it stays there."""
        try:
            found = index.runs_of(segment)
        except (CorruptedFile, FileNotFoundError) as error:
            self.unread.setdefault(segment, str(error))  # it stays: a get loses it, check names it
            return iter(())
        if not segment.delayed:
            for run in found:
                run.due = None
        self._ends[segment] = _standing(found[-1]) if found else ()
        last = self._last
        return (run for run in found if last is None or _standing(run) > last)


_Entry = tuple[Key, int, Run, Iterator[Run]]
_NO_END: Key = (float("inf"),)


def _push(heap: list[_Entry], place: int, runs: Iterator[Run]) -> None:
    run = next(runs, None)
    if run is not None:
        heappush(heap, (_standing(run), place, run, runs))


def _standing(run: Run) -> Key:
    """By which runs and segments stand in their line."""
    return run.key if run.due is None else (run.due, *run.key)
