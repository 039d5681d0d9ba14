"""One queue in memory: runs and segments in the order of delivery."""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from operator import attrgetter
from typing import Any, NamedTuple

from sortedcontainers import SortedKeyList

from spool.index.run import QueueOrder, Run
from spool.index.segment import CORRELATIONS, Segment
from spool.model.message import due_time
from spool.model.order import Key, cuts
from spool.model.settings import QueueConfig

MOST_WAITING = 65_536  # the most runs in memory that wait for other runs of their groups


class ClaimedHead(NamedTuple):
    """The head of a queue, which this process has claimed: all ready runs before the run with this key, and the
    messages of that run before ``ordinal``. ``releases``: the count of ``ClaimLocks`` at that time."""

    key: Key
    ordinal: int
    releases: int


class Queue:
    """The live messages of one queue.

    Every run is in one of three lists. A run is in ``delayed`` until its due time, in ``waiting`` if it follows another
    run of its group, and otherwise in ``ready``. A failed run that waits for its next attempt keeps its group waiting.
    A run that was put with a delay joins its group when it is due. A segment is in ``delayed_segments`` until it is
    due, and then in ``segments``. ``expiring``: all runs and segments with an expiry time.

    ``refill``: the function of the message table that turns the next messages of a segment into runs.
    ``passed``: the head of the queue, if this process holds many messages. While the count of releases is the same, a
    search begins behind this head, so that n gets do not pass n claims.
    """

    passed: ClaimedHead | None = None

    def __init__(self, config: QueueConfig, refill: Callable[[Segment], None]) -> None:
        self.name = config.name
        self.order = QueueOrder(config)
        self.ready: SortedKeyList[Run, Any] = SortedKeyList(key=_by_key)
        self.waiting: SortedKeyList[Run, Any] = SortedKeyList(key=_by_key)
        self.delayed: SortedKeyList[Run, Any] = SortedKeyList(key=_by_due)
        self.segments: SortedKeyList[Segment, Any] = SortedKeyList(key=_by_key)
        self.delayed_segments: SortedKeyList[Segment, Any] = SortedKeyList(key=_by_key)
        self.expiring: SortedKeyList[Run | Segment, Any] = SortedKeyList(key=_by_expiry)
        self._beside = 0  # the number of runs and segments that are in neither ``ready`` nor ``waiting``
        self.may_expire = False  # whether ``expiring`` has entries
        self.live = 0
        self.bytes = 0
        self.served = 0  # the number of messages dequeued since the index was built; compaction compares two values
        # For each commit, the ordinals at which a run of the commit must end, because other messages were put before
        # the messages with these ordinals.
        self.cuts: dict[int, Counter[int]] = {}
        self._refill = refill
        self._groups: dict[str, SortedKeyList[Run, Any]] = {}
        self._correlated: dict[str, list[Run]] = {}
        self._promoted_until = float("-inf")  # the latest due time of a run that was promoted

    @property
    def entries(self) -> int:
        """The number of runs that the queue has in memory."""
        return len(self.ready) + len(self.waiting) + len(self.delayed)

    # -- runs -----------------------------------------------------------------------------------------------------

    def add(self, run: Run) -> None:
        if run.due is None and not (run.attributes or self.order.ordered):
            if self.passed is not None and run.key <= self.passed.key:
                self.passed = None
            self.ready.add(run)
            return
        self._link(run)
        self._add_keys(run)

    def remove(self, run: Run) -> None:
        if run.due is None and not (run.attributes or self.order.ordered):
            self.ready.remove(run)
            return
        self._unlink(run)
        self._remove_keys(run)

    def _link(self, run: Run) -> None:
        """Put a run into its list and into its group."""
        if run.due is not None:
            self.delayed.add(run)
            self._beside += 1
        if (group := self.order.group_of(run.attributes)) is not None:
            if run.due is None or run.attributes.get("attempts"):
                self._join_group(group, run)
        elif run.due is None:
            self._make_ready(run)

    def _make_ready(self, run: Run) -> None:
        if self.passed is not None and run.key <= self.passed.key:
            self.passed = None
        self.ready.add(run)

    def _unlink(self, run: Run) -> None:
        if run.due is not None:
            self.delayed.remove(run)
            self._beside -= 1
        if (group := self.order.group_of(run.attributes)) is not None:
            if run.due is None or run.attributes.get("attempts"):
                self._leave_group(group, run)
        elif run.due is None:
            self.ready.remove(run)

    def _join_group(self, group: str, run: Run) -> None:
        """Add a run to its group. Only the first run of a group is ready."""
        if (members := self._groups.get(group)) is None:
            members = self._groups[group] = SortedKeyList(key=_by_key)
        first = members[0] if members else None
        members.add(run)
        if members[0] is not run:
            first = run
        elif run.due is None:
            self._make_ready(run)
        if first is not None and first.due is None:
            if first is not run:
                self.ready.remove(first)
            self.waiting.add(first)

    def _leave_group(self, group: str, run: Run) -> None:
        members = self._groups[group]
        was_first = members[0] is run
        members.remove(run)
        if run.due is None:
            (self.ready if was_first else self.waiting).remove(run)
        if not members:
            del self._groups[group]
        elif was_first and members[0].due is None:
            self.waiting.remove(members[0])
            self._make_ready(members[0])

    def _add_keys(self, run: Run) -> None:
        """Index a run by its correlation id, its expiry time and the message before which it was put."""
        if (correlation := run.attributes.get("correlation_id")) is not None:
            insort(self._correlated.setdefault(correlation, []), run, key=_by_key)
        self._add_bounds(run, cuts(run.attributes))

    def _remove_keys(self, run: Run) -> None:
        if (correlation := run.attributes.get("correlation_id")) is not None:
            runs = self._correlated[correlation]
            del runs[bisect_left(runs, run.key, key=_by_key)]
            if not runs:
                del self._correlated[correlation]
        self._remove_bounds(run, cuts(run.attributes))

    def _add_bounds(self, entry: Run | Segment, cuts: Iterable[tuple[int, int]]) -> None:
        """Index a run or segment by its expiry time and by ``cuts``: the messages before which its messages were
        put."""
        if entry.expires is not None:
            self.expiring.add(entry)
            self.may_expire = True
        for number, ordinal in cuts:
            self.cuts.setdefault(number, Counter())[ordinal] += 1

    def _remove_bounds(self, entry: Run | Segment, cuts: Iterable[tuple[int, int]]) -> None:
        if entry.expires is not None:
            self.expiring.remove(entry)
            self.may_expire = bool(self.expiring)
        for number, ordinal in cuts:
            counts = self.cuts[number]
            counts[ordinal] -= 1
            if not counts[ordinal]:
                del counts[ordinal]
            if not counts:
                del self.cuts[number]

    def cuts_in(self, number: int, first: int, end: int) -> list[int]:
        """Return the ordinals between ``first`` and ``end`` at which a run of commit ``number`` must end."""
        counts = self.cuts.get(number)
        return [] if counts is None else sorted(ordinal for ordinal in counts if first < ordinal < end)

    def correlated(self, correlation_id: str) -> list[Run]:
        """Return all runs with this correlation id, even delayed runs, in order."""
        return list(self._correlated.get(correlation_id, ()))

    def in_order(self, now: float, releases: int | None = None) -> Iterable[Run]:
        """Return the runs that can be delivered now, in order.

        Args:
            now: seconds since the epoch.
            releases: the count of ``ClaimLocks``, to leave out the runs before ``passed``; None: all runs.
        """
        if self._beside or self.order.ordered or now < self._promoted_until:
            return self._in_order(now)
        if releases is None or self.passed is None:
            return self.ready
        if self.passed.releases != releases:
            self.passed = None
            return self.ready
        return self.ready.islice(self.ready.bisect_key_left(self.passed.key))

    def _in_order(self, now: float) -> Iterator[Run]:
        """Yield the runs that can be delivered now. When a segment is next, turn some of its messages into runs.

        At most MOST_WAITING runs wait in memory. When MOST_WAITING runs wait, the iteration ends, even if segments have
        further messages.
        """
        self.promote_due(now)
        last: Key | None = None
        while True:
            runs = self.ready if last is None else self.ready.irange_key(last, None, (False, True))
            for run in runs:
                if self.segments and self.segments[0].key < run.key:
                    break
                last = run.key
                yield run
                if self.order.ordered:
                    return
            else:
                if not self.segments:
                    return
            if len(self.waiting) >= MOST_WAITING:
                return
            self._refill(self.segments[0])
            self.promote_due(now)

    def in_group(self, group: str) -> Iterator[Run]:
        """Yield the group's runs in order. Stop before a run that waits for its next attempt, and when messages of a
        segment may come first."""
        for run in self._groups.get(group, ()):
            if run.due is not None or (self.segments and self.segments[0].key < run.key):
                return
            yield run

    def runs(self) -> Iterator[Run]:
        """Yield all runs, in order, the delayed runs last."""
        yield from merge(self.ready, self.waiting, key=_by_key)
        yield from self.delayed

    # -- segments -------------------------------------------------------------------------------------------------

    def add_segment(self, segment: Segment) -> None:
        (self.delayed_segments if segment.delayed else self.segments).add(segment)
        self._beside += 1
        self._add_bounds(segment, segment.cuts)

    def remove_segment(self, segment: Segment) -> None:
        (self.delayed_segments if segment.delayed else self.segments).remove(segment)
        self._beside -= 1
        self._remove_bounds(segment, segment.cuts)

    def all_segments(self) -> list[Segment]:
        return [*self.segments, *self.delayed_segments]

    def correlated_segments(self, hashed: bytes) -> list[Segment]:
        """Return the segments that may have a correlation id with this hash."""
        return [segment for segment in self.all_segments() if segment.may_have(CORRELATIONS, hashed)]

    # -- time -----------------------------------------------------------------------------------------------------

    def promote_due(self, now: float) -> None:
        """End the delay of the runs that have become due."""
        if now < self._promoted_until:
            self._demote(now)
        while self.delayed_segments and self.delayed_segments[0].key[0] <= now:
            self._refill(self.delayed_segments[0])
        while self.delayed and (due := self.delayed[0].due) is not None and due <= now:
            run = self.delayed[0]
            self._promoted_until = max(self._promoted_until, due)
            self._unlink(run)
            run.due = None
            self._link(run)

    def _demote(self, now: float) -> None:
        """The clock may be put back: delay promoted runs again if they are no longer due."""
        self._promoted_until = now
        for run in [*self.ready, *self.waiting]:
            due = due_time(run.attributes, run.committed_at)
            if due is not None and due > now:
                self._unlink(run)
                run.due = due
                self._link(run)

    def next_due(self) -> float | None:
        """Return when the next delayed message becomes due, in seconds since the epoch; None if no message is
        delayed."""
        dues = [run.due for run in self.delayed[:1]] + [segment.key[0] for segment in self.delayed_segments[:1]]
        return min((due for due in dues if due is not None), default=None)

    # -- options --------------------------------------------------------------------------------------------------

    def configure(self, config: QueueConfig) -> None:
        """Sort all runs again if the queue's new options require another order.

        Segments are sorted by the old order, so their messages become runs.
        """
        if not self.order.differs(config):
            return
        for segment in self.all_segments():
            while segment.live:
                self._refill(segment)
        runs = list(self.runs())
        for kept in (self.ready, self.waiting, self.delayed, self.expiring, self._groups, self._correlated, self.cuts):
            kept.clear()
        self._beside, self.may_expire, self.passed = 0, False, None
        self.order = QueueOrder(config)
        for run in runs:
            run.queue = self.order
            run.key = self.order.key_of(run.number, run.first, run.attributes, run.committed_at)
            self.add(run)


def _by_expiry(entry: Run | Segment) -> tuple[float, Key]:
    assert entry.expires is not None
    return entry.expires, entry.key


_by_key: Callable[[Run | Segment], Key] = attrgetter("key")


def _by_due(run: Run) -> tuple[float, Key]:
    assert run.due is not None
    return run.due, run.key
