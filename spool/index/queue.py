"""One queue in memory: its front as runs, its swept bulk as segments, in the order in which messages are delivered."""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from heapq import merge
from typing import Any

from sortedcontainers import SortedKeyList

from spool.index.run import Run
from spool.index.segment import Segment
from spool.model.message import due_time
from spool.model.order import Key, cuts, order_key
from spool.model.settings import FIFO, QueueConfig

_FIFO = (FIFO,)
_ALL = ""  # the group that an ordered queue is; a group's own name has a character at least
MOST_WAITING = 65_536  # runs behind others of their groups, in memory


class Line:
    """One queue's messages. ``refill`` turns the next messages of a segment into runs; it is the index's.

    Every run is in one of three lists: ``ready``, ``delayed``, or ``waiting``, behind the first one of its group. One
    that failed and waits for its next try keeps its group waiting; one that was put with a delay takes its place when
    it is due.
    """

    def __init__(self, config: QueueConfig, refill: Callable[[Segment], None]) -> None:
        self.name = config.name
        self._set(config)
        self.ready: SortedKeyList[Run, Any] = SortedKeyList(key=_by_key)
        self.waiting: SortedKeyList[Run, Any] = SortedKeyList(key=_by_key)
        self.delayed: SortedKeyList[Run, Any] = SortedKeyList(key=_by_due)
        self.swept: SortedKeyList[Segment, Any] = SortedKeyList(key=_by_key)
        self.swept_delayed: SortedKeyList[Segment, Any] = SortedKeyList(key=_by_key)
        self.expiring: SortedKeyList[Run | Segment, Any] = SortedKeyList(key=_by_expiry)
        self.live = 0
        self.bytes = 0
        self.served = 0  # dequeued since this index began: what a sweep compares with
        self._refill = refill
        self._groups: dict[str, SortedKeyList[Run, Any]] = {}
        self._correlated: dict[str, list[Run]] = {}
        self.cuts: dict[int, Counter[int]] = {}  # by commit, where runs end for messages that were put before another
        self._ripe_until = float("-inf")  # the latest due time of those that were made ready

    def _set(self, config: QueueConfig) -> None:
        self.order = config.order
        self.ordered = config.ordered
        # Whether messages without any field of their own are of no group, and stand as they were put.
        self.is_plain = not config.ordered and config.order[-1] == FIFO

    @property
    def entries(self) -> int:
        """What the queue's messages take in memory: one for each run."""
        return len(self.ready) + len(self.waiting) + len(self.delayed)

    def key_of(self, number: int, first: int, attributes: Mapping[str, Any], committed_at: float) -> Key:
        if self.order == _FIFO and "top" not in attributes and "before" not in attributes:
            return (number, first)
        return order_key(self.order, number, first, attributes, committed_at)

    def group_of(self, attributes: Mapping[str, Any]) -> str | None:
        """Of a message with these fields."""
        return _ALL if self.ordered else attributes.get("group")

    # -- runs -----------------------------------------------------------------------------------------------------

    def add(self, run: Run) -> None:
        if run.due is None and not (run.attributes or self.ordered):
            self.ready.add(run)
            return
        self._seat(run)
        self._add_keys(run)

    def drop(self, run: Run) -> None:
        if run.due is None and not (run.attributes or self.ordered):
            self.ready.remove(run)
            return
        self._unseat(run)
        self._drop_keys(run)

    def _seat(self, run: Run) -> None:
        if run.due is not None:
            self.delayed.add(run)
        group = self.group_of(run.attributes)
        if group is not None:
            if run.due is None or run.attributes.get("attempts"):
                self._join(group, run)
        elif run.due is None:
            self.ready.add(run)

    def _unseat(self, run: Run) -> None:
        if run.due is not None:
            self.delayed.remove(run)
        group = self.group_of(run.attributes)
        if group is not None:
            if run.due is None or run.attributes.get("attempts"):
                self._quit(group, run)
        elif run.due is None:
            self.ready.remove(run)

    def _join(self, group: str, run: Run) -> None:
        """A run takes its place in its group; only the first of a group is ready."""
        members = self._groups.get(group)
        if members is None:
            members = self._groups[group] = SortedKeyList(key=_by_key)
        first = members[0] if members else None
        members.add(run)
        if members[0] is not run:
            first = run
        elif run.due is None:
            self.ready.add(run)
        if first is not None and first.due is None:
            if first is not run:
                self.ready.remove(first)
            self.waiting.add(first)

    def _quit(self, group: str, run: Run) -> None:
        members = self._groups[group]
        was_first = members[0] is run
        members.remove(run)
        if run.due is None:
            (self.ready if was_first else self.waiting).remove(run)
        if not members:
            del self._groups[group]
        elif was_first and members[0].due is None:
            self.waiting.remove(members[0])
            self.ready.add(members[0])

    def _add_keys(self, run: Run) -> None:
        """By which it is found, or found to be past its time."""
        if (correlation := run.attributes.get("correlation_id")) is not None:
            insort(self._correlated.setdefault(correlation, []), run, key=_by_key)
        if run.expires is not None:
            self.expiring.add(run)
        for number, ordinal in cuts(run.attributes):
            self.cuts.setdefault(number, Counter())[ordinal] += 1

    def _drop_keys(self, run: Run) -> None:
        if (correlation := run.attributes.get("correlation_id")) is not None:
            runs = self._correlated[correlation]
            del runs[bisect_left(runs, run.key, key=_by_key)]
            if not runs:
                del self._correlated[correlation]
        if run.expires is not None:
            self.expiring.remove(run)
        for number, ordinal in cuts(run.attributes):
            counts = self.cuts[number]
            counts[ordinal] -= 1
            if not counts[ordinal]:
                del counts[ordinal]
            if not counts:
                del self.cuts[number]

    def cuts_in(self, number: int, first: int, end: int) -> list[int]:
        """The ordinals between ``first`` and ``end`` at which a run of that commit must end, for the sake of messages
        that were put before one of its own."""
        found = self.cuts.get(number)
        return [] if found is None else sorted(ordinal for ordinal in found if first < ordinal < end)

    def correlated(self, correlation_id: str) -> list[Run]:
        """The runs with that correlation id, in order, delayed ones among them."""
        return list(self._correlated.get(correlation_id, ()))

    def in_order(self, now: float) -> Iterator[Run]:
        """Runs that can be delivered now, first to last; segments are turned into runs as their turn comes."""
        self.ripen(now)
        last: Key | None = None
        while True:
            runs = self.ready if last is None else self.ready.irange_key(last, None, (False, True))
            for run in runs:
                if self.swept and self.swept[0].key < run.key:
                    break
                last = run.key
                yield run
                if self.ordered:
                    return
            else:
                if not self.swept:
                    return
            if len(self.waiting) >= MOST_WAITING:
                return  # the groups in front are busy, and memory is bounded: those behind have their turn later
            self._refill(self.swept[0])
            self.ripen(now)

    def in_group(self, group: str) -> Iterator[Run]:
        """The group's runs, in order, as far as nothing of it may lie between them, swept or waiting for a try."""
        for run in self._groups.get(group, ()):
            if run.due is not None or (self.swept and self.swept[0].key < run.key):
                return
            yield run

    def runs(self) -> Iterator[Run]:
        """All that are in memory, in order, the delayed ones last."""
        yield from merge(self.ready, self.waiting, key=_by_key)
        yield from self.delayed

    # -- segments -------------------------------------------------------------------------------------------------

    def add_segment(self, segment: Segment) -> None:
        (self.swept_delayed if segment.delayed else self.swept).add(segment)
        if segment.expires is not None:
            self.expiring.add(segment)

    def drop_segment(self, segment: Segment) -> None:
        (self.swept_delayed if segment.delayed else self.swept).remove(segment)
        if segment.expires is not None:
            self.expiring.remove(segment)

    def segments(self) -> list[Segment]:
        return [*self.swept, *self.swept_delayed]

    # -- time -----------------------------------------------------------------------------------------------------

    def ripen(self, now: float) -> None:
        """Move what has become due among the ready ones."""
        if now < self._ripe_until:
            self._unripen(now)
        while self.swept_delayed and self.swept_delayed[0].key[0] <= now:
            self._refill(self.swept_delayed[0])
        while self.delayed and (due := self.delayed[0].due) is not None and due <= now:
            run = self.delayed[0]
            self._ripe_until = max(self._ripe_until, due)
            self._unseat(run)
            run.due = None
            self._seat(run)

    def _unripen(self, now: float) -> None:
        """The clock was put back: what is not due any more waits again."""
        self._ripe_until = now
        for run in [*self.ready, *self.waiting]:
            due = due_time(run.attributes, run.committed_at)
            if due is not None and due > now:
                self._unseat(run)
                run.due = due
                self._seat(run)

    def next_due(self) -> float | None:
        dues = [run.due for run in self.delayed[:1]] + [segment.key[0] for segment in self.swept_delayed[:1]]
        return min((due for due in dues if due is not None), default=None)

    # -- order ----------------------------------------------------------------------------------------------------

    def differs(self, config: QueueConfig) -> bool:
        return (config.order, config.ordered) != (self.order, self.ordered)

    def configure(self, config: QueueConfig) -> None:
        """The queue's options may have changed. Segments are sorted by the old order: all they hold becomes runs."""
        if not self.differs(config):
            return
        for segment in self.segments():
            while segment.live:
                self._refill(segment)
        runs = list(self.runs())
        for kept in (self.ready, self.waiting, self.delayed, self.expiring, self._groups, self._correlated, self.cuts):
            kept.clear()
        self._set(config)
        for run in runs:
            run.key = self.key_of(run.number, run.first, run.attributes, run.committed_at)
            self.add(run)


def _by_expiry(entry: Run | Segment) -> tuple[float, Key]:
    assert entry.expires is not None
    return entry.expires, entry.key


def _by_key(entry: Run | Segment) -> Key:
    return entry.key


def _by_due(run: Run) -> tuple[float, Key]:
    assert run.due is not None
    return run.due, run.key
