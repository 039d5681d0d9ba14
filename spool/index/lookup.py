"""The live messages: runs and segments by position, queues in order, messages by id."""

from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from itertools import pairwise
from operator import attrgetter
from typing import TypeVar

from sortedcontainers import SortedKeyList

from spool.errors import CorruptedFile
from spool.format.table import CompactedTable
from spool.index.body_files import FileCache
from spool.index.queue import Queue
from spool.index.run import Run
from spool.index.segment import (
    CORRELATIONS,
    HASH_BYTES,
    IDS,
    LiveRun,
    Segment,
    find_correlation,
    find_id,
    key_prefixes,
    pack_position,
)
from spool.model.order import cuts
from spool.model.position import Position
from spool.model.settings import QueueConfig

_Read = TypeVar("_Read")
_FromSegment = Callable[[Segment, CompactedTable, LiveRun], Run]

REFILL_MESSAGES = 256  # the number of a segment's messages that become runs at once


MOST_PREFIXES = 1 << 21
"""The number of search keys of which all segments together keep a prefix of four bytes. The searches read the tables of
further segments."""


class MessageTable:
    """All live messages, by queue and by position.

    ``configs``: the options of the queues. ``drop_damaged``: a function that removes a segment whose table cannot be
    read any more. The arguments of the function are the segment and the reason.
    """

    def __init__(
        self, cache: FileCache, configs: Mapping[str, QueueConfig], drop_damaged: Callable[[Segment, str], None]
    ) -> None:
        self.queues: dict[str, Queue] = {}
        self._cache = cache
        self.runs: dict[int, list[Run]] = {}  # the runs of each commit, sorted by their first ordinals
        self.segments: SortedKeyList[Segment, int] = SortedKeyList(key=attrgetter("low"))
        self.segments_added = 0  # the number of segments that were added so far; each segment may have new messages
        # The branches of the messages that lie in runs: for each id, the commit, and the ordinal of the branch's first
        # message. A message's id is the id of its branch and its ordinal in the branch.
        self.branches: dict[bytes, tuple[int, int]] = {}
        self._configs = configs
        self._drop_damaged = drop_damaged

    # -- looking up ---------------------------------------------------------------------------------------------------

    def queue(self, name: str) -> Queue:
        """Return the queue of this name; create it if it does not exist."""
        if (queue := self.queues.get(name)) is None:
            queue = self.queues[name] = Queue(self._configs.get(name) or QueueConfig(name), self._refill)
        return queue

    def configure(self, configs: Mapping[str, QueueConfig]) -> None:
        """Apply new options of the queues. Of thousands of queues, most have no messages and need no work."""
        self._configs = configs
        for name, queue in list(self.queues.items()):
            if name in configs:
                queue.configure(configs[name])

    def find(self, position: Position) -> Run | None:
        """Return the run that holds a live message, or None."""
        return self.run_from(position.number, position.ordinal, position.ordinal + 1)[0]

    def run_from(
        self, number: int, ordinal: int, end: int, of_segment: _FromSegment | None = None
    ) -> tuple[Run | None, int]:
        """Find the run that holds a live message.

        If the message is in a segment, the caller gets a new run, and the message also remains in the segment. If
        ``of_segment`` is ``materialize``, the message moves from the segment to the new run.

        Returns:
            The run, and the smaller of ``end`` and the ordinal at which the run ends. If the message is not live, the
            first element is None, and the second is the ordinal at which the search can continue.
        """
        run, stop = self.run_at(number, ordinal, end)
        if run is not None or not self.segments:
            return run, stop
        segment, live, stop = self.live_run_at(number, ordinal, stop)
        if segment is None or live is None:
            return None, stop
        table = self.table_of(segment)
        return (of_segment or self._run_of)(segment, table, live), ordinal + live.length

    def live_runs(
        self, number: int, ordinal: int, end: int, of_segment: _FromSegment | None = None
    ) -> Iterator[tuple[Run, int, int]]:
        """Yield (run, first ordinal, end) of the live messages of a commit from ``ordinal`` up to ``end``.

        ``of_segment``: as for ``run_from``.
        """
        while ordinal < end:
            run, stop = self.run_from(number, ordinal, end, of_segment)
            if run is not None:
                yield run, ordinal, stop
            ordinal = stop

    def run_at(self, number: int, ordinal: int, end: int) -> tuple[Run | None, int]:
        """Search like ``run_from``, but only in runs."""
        runs = self.runs[number] if number in self.runs else None  # noqa: SIM401 (no call of a function)
        if not runs:
            return None, end  # (all at once, because a command may name a huge count)
        at = bisect_right(runs, ordinal, key=_first_of) - 1
        if at >= 0 and ordinal < (stop := runs[at].end):
            return runs[at], stop if stop < end else end
        return None, min(end, runs[at + 1].first) if at + 1 < len(runs) else end

    def live_run_at(self, number: int, ordinal: int, stop: int) -> tuple[Segment | None, LiveRun | None, int]:
        """Search like ``run_from``, but only in segments. ``stop``: the ordinal at which the search ends, not after the
        first ordinal of the next run."""
        first = pack_position(number, ordinal)
        for segment in self.segments.irange_key(None, pack_position(number, stop - 1), reverse=True):
            if segment.high > first:
                table = self.table_of(segment)
                live, after = segment.live_run_at(table, number, ordinal, stop)
                if live is not None:
                    return segment, live, after
                stop = min(stop, after)
        return None, None, stop

    def with_id(self, branch_id: bytes, ordinal: int) -> tuple[Run | None, int]:
        """Return the run that has the live message with this id, and the ordinal of the message in its commit.

        Return (None, 0) if no message has the id. ``ordinal``: the ordinal of the message in the branch.
        """
        number, begin = self.branches.get(branch_id, (0, 0))
        run = self.find(Position(number, begin + ordinal)) if number else None
        if run is not None and run.branch == branch_id:
            return run, begin + ordinal
        for segment in [segment for segment in self.segments if segment.may_have(IDS, branch_id)]:
            keys = self._or_dropped(partial(self._keys, kind=IDS), segment)
            at = None if keys is None else find_id(keys, branch_id, ordinal)
            if at is None:
                continue
            origins = self.table_of(segment).origins
            place = origins.ordinals[at] + ordinal - origins.places[at]
            run = self.find(Position(origins.numbers[at], place))
            if run is not None and (run.branch, place - run.begin) == (branch_id, ordinal):
                return run, place
        return None, 0

    def _or_dropped(self, read: Callable[[Segment], _Read], segment: Segment) -> _Read | None:
        """Read a part of a segment's table. If the table is damaged, drop the segment, and return None."""
        try:
            return read(segment)
        except (CorruptedFile, FileNotFoundError) as error:
            self._drop_damaged(segment, str(error))
            return None

    def _keys(self, segment: Segment, kind: int) -> bytes:
        """Read the search keys of a segment, and keep their prefixes for the next searches."""
        keys = self._cache.keys(segment.file, segment.entry)[kind]
        prefixes = (found for one in self.segments for found in one.prefixes.values())
        if kind not in segment.prefixes and sum(map(len, prefixes)) < MOST_PREFIXES:
            segment.prefixes[kind] = key_prefixes(keys, kind)
        return keys

    def in_order(self, queue: str, now: float) -> Iterable[Run]:
        """Return the runs that can be delivered now, in order."""
        known = self.queues.get(queue)
        return () if known is None else known.in_order(now)

    def runs_of(self, segment: Segment, hashed: bytes | None = None) -> list[Run]:
        """Return runs of a segment's live messages, in order. The segment does not change.

        ``hashed``: if given, only the runs whose correlation ids have this hash.
        """
        queue = self.queues[segment.queue.name]
        runs = []
        for table, live in self._live_runs(segment, hashed):
            run = self._run_of(segment, table, live)
            for ordinal in queue.cuts_in(run.number, run.first, run.end):
                rest = run.tail(ordinal)
                run.end = ordinal
                runs.append(run)
                run = rest
            runs.append(run)
        return runs

    def _live_runs(self, segment: Segment, hashed: bytes | None) -> list[tuple[CompactedTable, LiveRun]]:
        """Return a segment's live messages, each with the table. ``hashed``: as in ``runs_of``."""
        wanted = None if hashed is None else sorted(set(find_correlation(self._keys(segment, CORRELATIONS), hashed)))
        if wanted == []:
            return []
        table = self.table_of(segment)
        return [(table, live) for live in segment.live_runs(table, runs=wanted)]

    def correlated(self, queue: str, correlation_id: str) -> list[Run]:
        """Return all runs of the queue with this correlation id, even delayed runs, in order."""
        known, hashed = self.queue(queue), correlation_hash(correlation_id)
        for segment in known.correlated_segments(hashed):
            for table, live in self._or_dropped(partial(self._live_runs, hashed=hashed), segment) or ():
                self.materialize(segment, table, live)
        return known.correlated(correlation_id)

    def newest_correlated(self, queue: str, correlation_id: str, now: float) -> Position | None:
        """Return the position of the queue's newest message with this correlation id, or None.

        Expired messages do not count. No message moves from a segment to a run, so the search leaves nothing in memory.
        """
        if (known := self.queues.get(queue)) is None:
            return None
        runs, hashed = known.correlated(correlation_id), correlation_hash(correlation_id)
        for segment in known.correlated_segments(hashed):
            found = self._or_dropped(partial(self.runs_of, hashed=hashed), segment) or ()
            runs += [run for run in found if run.attributes.get("correlation_id") == correlation_id]
        return max((Position(run.number, run.end - 1) for run in runs if not run.is_expired(now)), default=None)

    def is_in_memory(self, queue: str, id: tuple[bytes, int] | None, correlation_id: str | None) -> bool:
        """Return whether a run of the queue has the message with this id, or a message with this correlation id. If
        both are None, return whether the queue has any message.

        Segments are not searched, so no file is read. ``id``: (branch id, ordinal in the branch)."""
        if id is not None:
            branch, ordinal = id
            number, begin = self.branches.get(branch, (0, 0))
            run, _ = self.run_at(number, begin + ordinal, begin + ordinal + 1)
            return run is not None and run.branch == branch and run.queue.name == queue
        if (known := self.queues.get(queue)) is None:
            return False
        return known.live > 0 if correlation_id is None else bool(known.correlated(correlation_id))

    def table_of(self, segment: Segment) -> CompactedTable:
        """Read the table of a segment. Raises CorruptedFile or FileNotFoundError if the file was changed or removed."""
        return self._cache.compacted_table(segment.file, segment.entry)

    # -- runs ---------------------------------------------------------------------------------------------------------

    def add(self, run: Run) -> None:
        """Add a run."""
        self.branches[run.branch] = run.number, run.begin
        insort(self.runs.setdefault(run.number, []), run, key=_first_of)
        queue = self.queues[run.queue.name]
        queue.add(run)
        if queue.cuts:
            self.keep_apart(queue, run)

    def keep_apart(self, queue: Queue, run: Run) -> None:
        """Split runs of the queue, because a message that was put before another message needs a place between two
        runs.

        First split ``run`` at each message before which another message was put. Then split other runs at each message
        before which a message of ``run`` was put.
        """
        for ordinal in queue.cuts_in(run.number, run.first, run.end):
            self._split_at(queue, run.number, ordinal)
        for number, ordinal in cuts(run.attributes):
            self._split_at(queue, number, ordinal)

    def _split_at(self, queue: Queue, number: int, ordinal: int) -> None:
        run, _ = self.run_at(number, ordinal, ordinal + 1)
        if run is None or run.queue is not queue.order:
            return
        if run.first == ordinal:  # earlier messages may be gone, so the run gets this message's key
            queue.remove(run)
            run.key = queue.order.key_of(number, ordinal, run.attributes, run.committed_at)
            queue.add(run)
        else:
            rest = run.tail(ordinal)
            run.end = ordinal
            insort(self.runs[number], rest, key=_first_of)
            queue.add(rest)

    def remove_range(self, queue: Queue, run: Run, ordinal: int, end: int) -> None:
        """Remove messages from a run of ``queue``. A removal from the middle of the run splits the run."""
        if run.first == ordinal and run.end == end:
            self.remove(queue, run)
        elif run.first == ordinal:
            run.first = end
        else:
            if end < run.end:
                rest = run.tail(end)
                insort(self.runs[run.number], rest, key=_first_of)
                queue.add(rest)
            run.end = ordinal

    def remove(self, queue: Queue, run: Run) -> None:
        """Remove a run from ``queue`` after its messages have left the queue."""
        if run.due is None and not (run.attributes or queue.order.ordered):
            queue.ready.remove(run)  # (like ``Queue.remove``, without a call)
        else:
            queue.remove(run)
        runs = self.runs[run.number]
        if len(runs) == 1:
            del self.runs[run.number]
        else:
            at = bisect_right(runs, run.first, key=_first_of) - 1
            del runs[at]
            for neighbour in runs[max(at - 1, 0) : at + 1]:  # the runs of a branch are neighbours
                if neighbour.branch == run.branch:
                    return
        self.branches.pop(run.branch, None)

    # -- time ---------------------------------------------------------------------------------------------------------

    def has_expired(self, queue: str, now: float) -> bool:
        """Return whether a run of the queue has expired messages, or a segment may have such messages."""
        known = self.queues.get(queue)
        return known is not None and bool(known.expiring) and (known.expiring[0].expires or 0.0) <= now

    def expired(self, queue: str, now: float) -> Iterator[Run]:
        """Yield runs of expired messages. First, expired messages of segments move to runs."""
        expiring = self.queue(queue).expiring
        at = 0
        while at < len(expiring):
            entry = expiring[at]
            if entry.expires is None or entry.expires > now:
                return
            if isinstance(entry, Segment):
                self._materialize_expired(entry, now)  # (the segment's expired runs take its place in the list)
            else:
                yield entry
                at += 1

    def _materialize_expired(self, segment: Segment, now: float) -> None:
        if (table := self._or_dropped(self.table_of, segment)) is None:
            return
        for live in list(segment.live_runs(table)):
            if self._run_of(segment, table, live).is_expired(now):
                self.materialize(segment, table, live)
        if segment.live:
            queue = self.queues[segment.queue.name]
            queue.remove_segment(segment)
            segment.expires = segment.next_expiry(table)
            queue.add_segment(segment)

    # -- segments -----------------------------------------------------------------------------------------------------

    def add_segment(self, segment: Segment) -> None:
        """Add a segment whose sort key is set."""
        queue = self.queues[segment.queue.name]
        queue.add_segment(segment)
        self.segments.add(segment)
        self.segments_added += 1
        for number, ordinal in segment.cuts:
            self._split_at(queue, number, ordinal)

    def oldest_in(self, segment: Segment) -> float:
        """Return the earliest commit time of a segment's live messages, in seconds since the epoch."""
        if segment.live != segment.counted:
            with suppress(CorruptedFile, FileNotFoundError):  # (the index may not have applied the file's removal yet)
                table = self.table_of(segment)
                times = (table.origins.times[live.run] for live in segment.live_runs(table))
                segment.oldest, segment.counted = min(times, default=segment.oldest), segment.live
        return segment.oldest

    def remove_segment(self, segment: Segment) -> None:
        self.queues[segment.queue.name].remove_segment(segment)
        self.segments.remove(segment)

    def set_sort_key(self, segment: Segment, table: CompactedTable) -> bool:
        """Set the sort key of a segment before the segment is added. Return False if the segment's messages are no
        longer in the queue's order."""
        keys, dues = [], []
        for live in segment.live_runs(table):
            run = self._run_of(segment, table, live)
            # When the file was written, the message was due or had no group. Since then the clock was put back, or the
            # queue became ordered, so the message must keep its group waiting. Only a run, not a segment, can keep its
            # group waiting.
            if run.blocks_group:
                return False
            keys.append(run.key)
            if run.due is not None:
                dues.append((run.due, *run.key))
        if len(dues) == len(keys) and _is_sorted(dues):
            segment.delayed, segment.key = True, dues[0]
            return True
        segment.key = keys[0]
        return _is_sorted(keys)

    def _refill(self, segment: Segment) -> None:
        """Turn the next messages of a segment into runs."""
        if (table := self._or_dropped(self.table_of, segment)) is None:
            return
        done = 0
        for live in list(segment.live_runs(table, segment.next_row)):
            self.materialize(segment, table, live)
            segment.next_row = live.row + live.length
            done += live.length
            if done >= REFILL_MESSAGES:
                break
        if segment.live:
            run = self._run_of(segment, table, next(segment.live_runs(table, segment.next_row)))
            queue = self.queues[segment.queue.name]
            queue.remove_segment(segment)
            segment.key = (run.due, *run.key) if segment.delayed and run.due is not None else run.key
            queue.add_segment(segment)

    def materialize(self, segment: Segment, table: CompactedTable, live: LiveRun) -> Run:
        """Move messages of a segment to a run."""
        self.remove_live_run(segment, live, sum(table.lengths[live.row : live.row + live.length]))
        return self.insert_live_run(segment, table, live)

    def insert_live_run(self, segment: Segment, table: CompactedTable, live: LiveRun) -> Run:
        """Add a run of messages that were never in the segment, or were removed from the segment."""
        run = self._run_of(segment, table, live)
        self.add(run)
        return run

    def remove_live_run(self, segment: Segment, live: LiveRun, size: int) -> None:
        """Remove messages from a segment; ``size``: the bytes of their bodies."""
        segment.remove(live.row, live.length, size)
        if not segment.live:
            self.remove_segment(segment)

    def _run_of(self, segment: Segment, table: CompactedTable, live: LiveRun) -> Run:
        """Return a live run of a segment as a run that is not in the table."""
        queue_at, attributes_at, _ = table.runs[live.run]
        lengths, origins = table.lengths[live.row] if live.length == 1 else table.lengths, table.origins
        return Run(
            self.queue(table.queues[queue_at]).order, segment.file, segment.entry, live.first - live.row,
            live.number, live.first, live.length, table.attributes[attributes_at], origins.times[live.run],
            lengths, origins.branches[live.run], origins.ordinals[live.run] - origins.places[live.run],
        )  # fmt: skip


def correlation_hash(correlation_id: str) -> bytes:
    """Return the hash of a correlation id. The search keys of compacted tables are sorted by this hash."""
    return blake2b(correlation_id.encode("utf-8", "surrogatepass"), digest_size=HASH_BYTES).digest()


def _is_sorted(keys: list[tuple[float, ...]]) -> bool:
    return all(one < two for one, two in pairwise(keys))


_first_of: Callable[[Run], int] = attrgetter("first")
