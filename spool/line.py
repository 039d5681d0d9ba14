"""One queue in memory: its front as runs, its swept bulk as segments, in the order in which messages are delivered."""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sortedcontainers import SortedKeyList

from spool.message import DEFAULT_PRIORITY, due_time
from spool.runs import Run
from spool.segments import Segment

Key = tuple[float, ...]


def order_key(
    order: tuple[str, ...], number: int, first: int, attributes: Mapping[str, Any], committed_at: float
) -> Key:
    """Where a message stands: by each criterion in turn, the most significant first (DESIGN §6)."""
    key: list[float] = []
    for criterion in order:
        if criterion == "priority":
            key.append(-attributes.get("priority", DEFAULT_PRIORITY))
        elif criterion == "time":
            due = due_time(attributes, committed_at)
            key.append(committed_at if due is None else due)
    sign = -1 if order[-1] == "lifo" else 1
    return (*key, sign * number, sign * first)


class Line:
    """One queue's messages. ``refill`` turns the next messages of a segment into runs; it is the index's."""

    def __init__(self, name: str, order: tuple[str, ...], refill: Callable[[Segment], None]) -> None:
        self.name = name
        self.order = order
        self.ready: SortedKeyList[Run, Any] = SortedKeyList(key=_by_key)
        self.delayed: SortedKeyList[Run, Any] = SortedKeyList(key=_by_due)
        self.swept: SortedKeyList[Segment, Any] = SortedKeyList(key=_by_key)
        self.swept_delayed: SortedKeyList[Segment, Any] = SortedKeyList(key=_by_key)
        self.live = 0
        self.bytes = 0
        self.served = 0  # dequeued since this index began: what a sweep compares with
        self._refill = refill
        self._correlated: dict[str, list[Run]] = {}
        self._ripe_until = float("-inf")  # the latest due time of those that were made ready

    @property
    def entries(self) -> int:
        """What the queue's messages take in memory: one for each run."""
        return len(self.ready) + len(self.delayed)

    def key_of(self, number: int, first: int, attributes: Mapping[str, Any], committed_at: float) -> Key:
        if self.order == ("fifo",):
            return (number, first)
        return order_key(self.order, number, first, attributes, committed_at)

    # -- runs -----------------------------------------------------------------------------------------------------

    def add(self, run: Run) -> None:
        (self.ready if run.due is None else self.delayed).add(run)
        if (correlation := run.attributes.get("correlation_id")) is not None:
            insort(self._correlated.setdefault(correlation, []), run, key=_by_key)

    def drop(self, run: Run) -> None:
        (self.ready if run.due is None else self.delayed).remove(run)
        if (correlation := run.attributes.get("correlation_id")) is not None:
            runs = self._correlated[correlation]
            del runs[bisect_left(runs, run.key, key=_by_key)]
            if not runs:
                del self._correlated[correlation]

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
            else:
                if not self.swept:
                    return
            self._refill(self.swept[0])
            self.ripen(now)

    # -- segments -------------------------------------------------------------------------------------------------

    def add_segment(self, segment: Segment) -> None:
        (self.swept_delayed if segment.delayed else self.swept).add(segment)

    def drop_segment(self, segment: Segment) -> None:
        (self.swept_delayed if segment.delayed else self.swept).remove(segment)

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
            run = self.delayed.pop(0)
            self._ripe_until = max(self._ripe_until, due)
            run.due = None
            self.ready.add(run)

    def _unripen(self, now: float) -> None:
        """The clock was put back: what is not due any more waits again."""
        self._ripe_until = now
        for run in list(self.ready):
            due = due_time(run.attributes, run.committed_at)
            if due is not None and due > now:
                self.ready.remove(run)
                run.due = due
                self.delayed.add(run)

    def next_due(self) -> float | None:
        dues = [run.due for run in self.delayed[:1]] + [segment.key[0] for segment in self.swept_delayed[:1]]
        return min((due for due in dues if due is not None), default=None)

    # -- order ----------------------------------------------------------------------------------------------------

    def reorder(self, order: tuple[str, ...]) -> None:
        """The queue's order was changed. Segments are sorted by the old one, so all they hold becomes runs."""
        if order == self.order:
            return
        for segment in self.segments():
            while segment.live:
                self._refill(segment)
        self.order = order
        for runs in (self.ready, self.delayed):
            found = list(runs)
            runs.clear()
            for run in found:
                run.key = self.key_of(run.number, run.first, run.attributes, run.committed_at)
            runs.update(found)
        for correlated in self._correlated.values():
            correlated.sort(key=_by_key)


def _by_key(entry: Run | Segment) -> Key:
    return entry.key


def _by_due(run: Run) -> tuple[float, Key]:
    assert run.due is not None
    return run.due, run.key
