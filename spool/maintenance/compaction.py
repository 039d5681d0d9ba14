"""Compaction: move a backlog out of memory, and from many small files into a few large files.

A compaction writes live messages of many files into one numbered file. Afterwards each message is in another file, but
keeps its position, its place in the order, and the byte that a claim locks. So a compaction does not affect a process
that has claimed a message. After the compaction has chosen messages, other processes may remove, change or move some of
these messages. The compaction finds such messages while it holds the number lock, and lists them in its file as *left*.
So the file is correct when the file gets its number. Messages that a process has claimed, or that a prepared branch
holds, are not moved. The caller holds the reclaim lock.
"""

import logging
import os
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TypeVar

from spool.errors import CorruptedFile
from spool.format.table import CompactedTable
from spool.index.body_files import FileCache
from spool.index.commit import Retention
from spool.index.index import Index
from spool.index.lookup import correlation_hash
from spool.index.queue import Queue
from spool.index.run import Run
from spool.index.segment import pack_correlations, pack_ids
from spool.log.engine_commit import commit, own_file
from spool.log.settled_lock import Overtaken
from spool.log.visibility import catch_up, list_prepared
from spool.log.write_set import WriteSet
from spool.maintenance import tombstones
from spool.model.position import Position
from spool.model.xid import BRANCH_ID_BYTES
from spool.store.parts import View
from spool.store.store import Store

log = logging.getLogger("spool")
_Item = TypeVar("_Item")
_Choose = Callable[[Mapping[int, Retention], int], set[int]]

EVERY_SECONDS = 5.0
KEPT_MESSAGES = 5  # so many messages remain in memory, in addition to the number served since the last round
MIN_MESSAGES = 64  # a compaction of fewer messages would cost more than it saves
SMALL_RUN = 64  # a longer run takes as little memory as a segment, and the run's file is large enough
SEGMENT_MESSAGES = 4_096
SEGMENT_BYTES = 16 << 20  # the most bytes of a segment, and of a whole file
WASTED_BYTES = 1 << 20  # idle files with fewer bytes are not merged just to free room
WASTED_BYTES_WHEN_SHORT = 64 << 10  # the same limit for a disk that is short of room
MAX_WASTE = 0.10  # wasted bytes up to this share of the live bytes, plus one segment, are allowed
MAX_EXTENTS = 1 << 14  # the most extents of one step; this limits the memory
STEP_BYTES = 256 << 20  # the most bytes of one step; this limits the time for which an export or a repair waits
SMALL_FILE = 1_024  # a file with fewer live messages counts as small
SMALL_FILES = 16
_FILE_SEGMENTS = 8


@dataclass(frozen=True, slots=True)
class Extent:
    """Neighbouring messages that the compaction will move, in their present state."""

    run: Run
    first: int
    count: int
    bytes: int


# -- deciding ---------------------------------------------------------------------------------------------------------


def is_slow(entries: int, served: int) -> bool:
    """Return whether memory has more than ``2 * served`` entries. ``served``: the messages served since the last
    round."""
    return entries > 2 * served


def select_runs(queue: Queue, files: Mapping[int, Retention], served: int, held: Collection[Position]) -> list[Run]:
    """Return the runs that a compaction moves out of a slow queue: at most ``MAX_EXTENTS`` runs, in order.

    The compaction moves the small runs after the front of the queue. Messages at the front remain, because they are
    taken soon. Large runs remain, because they take as little memory as a segment. Messages in the file of an earlier
    compaction are not moved.
    """
    runs, skipped = list[Run](), 0
    for run in queue.runs():
        if len(runs) == MAX_EXTENTS:
            break
        if run.due is None and skipped < served + KEPT_MESSAGES:
            skipped += run.live
        elif run.live < SMALL_RUN and files[run.file.number].span is None and not _must_stay(run, held):
            runs.append(run)
    return runs


def _must_stay(run: Run, held: Collection[Position]) -> bool:
    """Return whether a run cannot become part of a segment: one of its messages is held, or the run keeps its group
    waiting."""
    if run.blocks_group:
        return True
    return bool(held) and any(Position(run.number, ordinal) in held for ordinal in range(run.first, run.end))


def fragmented(files: Mapping[int, Retention], newest: int) -> set[int]:
    """Return the numbers of commits whose files need compaction even if their queues are fast.

    If all files together waste too much space, the result includes the files with the largest wasted share. If earlier
    compactions left many small files, the result also includes these files.

    Args:
        newest: the newest number at the beginning of the round. Files that the round itself wrote do not count.
            Otherwise the round might never end, because a small file remains while one of its messages is held.
    """
    small = {
        number
        for number, state in files.items()
        if number <= newest and state.span is not None and 0 < state.live < SMALL_FILE
    }
    found = small if len(small) >= SMALL_FILES else set()
    alive = [(state.live_bytes / state.body_bytes, number) for number, state in files.items() if state.live_bytes]
    live = sum(state.live_bytes for state in files.values())
    waste = sum(files[number].body_bytes - files[number].live_bytes for _, number in alive)
    if waste > MAX_WASTE * live + SEGMENT_BYTES:
        for share, number in sorted(alive):
            if share > 0.5 or waste <= MAX_WASTE * live:
                break
            waste -= files[number].body_bytes - files[number].live_bytes
            found.add(number)
    return found


def wasteful(files: Mapping[int, Retention], newest: int, room: int) -> set[int]:
    """Return the numbers of files that waste more than ``MAX_WASTE`` of their bytes. The most wasteful files are chosen
    first.

    Args:
        newest: see ``fragmented``.
        room: the limit for the live bytes of all returned files together, so that the copies fit on the disk.
    """
    found = set[int]()
    alive = [(state.live_bytes / state.body_bytes, number) for number, state in files.items() if state.live_bytes]
    for share, number in sorted(alive):
        if share >= 1 - MAX_WASTE:
            break
        if number <= newest and files[number].live_bytes <= room:
            room -= files[number].live_bytes
            found.add(number)
    return found


# -- doing ------------------------------------------------------------------------------------------------------------


class Compactor:
    """Compacts a space's slow queues. Remembers how many messages each queue had served at the last round."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._served: dict[str, int] = {}

    def steps(self) -> Iterator[int]:
        """Compact slow queues and fragmented files, and merge tombstones, in steps. Yield how many files a step wrote.

        The caller holds the reclaim lock during each step, and may release it after a step.
        """
        self._catch_up()
        served = self._served_since()
        yield from self._merge_all()
        yield from self._compact_all(served)

    def has_work(self) -> bool:
        """Return whether ``steps`` may write a file. A round that finds no work need not take the reclaim lock."""
        index = self.store.view.index
        with self.store.view.mutex:
            entries = sum(queue.entries for queue in index.messages.queues.values())
            many = entries >= MIN_MESSAGES or len(index.idle) >= tombstones.MERGED_COMMITS
            return many or bool(fragmented(index.files, index.applied))

    def rewrite_wasteful(self, most: int) -> Iterator[int]:
        """Rewrite files that are kept for a few messages or facts, without the wasted bytes. The steps are as in
        ``steps``.

        A backlog that wastes no bytes is not copied, because the disk may be full.

        Args:
            most: the greatest number of commits that one file merges.
        """
        self._catch_up()
        yield from self._merge_all(most, WASTED_BYTES)
        yield from self._compact_all(None)

    def rewrite_all_waste(self) -> Iterator[int]:
        """If the disk is short of room, rewrite files that waste more than ``MAX_WASTE`` of their bytes. The steps are
        as in ``steps``.

        The copies of a step take at most half of the free room. The caller removes the old files after each step.
        """
        self._catch_up()
        yield from self._merge_all(wasted=WASTED_BYTES_WHEN_SHORT)
        disk = self.store.files.disk
        yield from self._compact_all(
            None, lambda files, newest: wasteful(files, newest, disk.file_system().free_bytes // 2)
        )

    def _merge_all(self, most: int = tombstones.MOST_MERGED, wasted: int | None = None) -> Iterator[int]:
        while merged := tombstones.merge_tombstones(self.store, most, wasted):
            yield merged
            self._catch_up()

    def _compact_all(self, served: Mapping[str, int] | None, choose: _Choose = fragmented) -> Iterator[int]:
        newest = self.store.view.index.applied
        with suppress(Overtaken):
            while written := self._compact(served, newest, choose):
                yield written
                self._catch_up()

    def _catch_up(self) -> None:
        catch_up(self.store, list_prepared(self.store))

    def _served_since(self) -> dict[str, int]:
        """Return how many messages each queue has delivered since the last round."""
        with self.store.view.mutex:
            now = {name: queue.served for name, queue in self.store.view.index.messages.queues.items()}
        before, self._served = self._served, now
        return {name: max(0, count - before.get(name, 0)) for name, count in now.items()}

    def _compact(self, served: Mapping[str, int] | None, newest: int, choose: _Choose) -> int:
        """Compact at most ``MAX_EXTENTS`` extents and ``STEP_BYTES`` bytes. Return how many files were written.

        Args:
            served: how many messages each queue has delivered since the last round. None: compact only the chosen
                files, and no slow queues.
            newest: see ``fragmented``.
            choose: a function that returns the numbers of the files to compact even if their queues are fast.
        """
        with self.store.view.mutex:
            index = self.store.view.index
            fragmented_files = choose(index.files, newest)
            if not fragmented_files and served is None:
                return 0
            held = self._held()
            queues = list(index.messages.queues.values())
            extents = list[Extent]()
            for queue in queues:
                if len(extents) >= MAX_EXTENTS:
                    break
                count = queue.entries if served is None else served.get(queue.name, 0)
                extents += _extents(index, queue, count, held, fragmented_files)
            extents = next(_grouped(extents, MAX_EXTENTS, lambda extent: (1, extent.bytes), STEP_BYTES), [])
            index.changed_since = []
        try:
            if sum(extent.count for extent in extents) < MIN_MESSAGES and not fragmented_files:
                return 0
            return sum(_write(self.store, index, sections) for sections in _grouped_into_files(extents))
        finally:
            index.changed_since = None

    def _held(self) -> set[Position]:
        """Return the messages that a process has claimed or a prepared branch holds."""
        return self.store.shared.claims.positions() | set(self.store.view.prepared.held)


def _extents(
    index: Index, queue: Queue, served: int, held: Collection[Position], fragmented_files: set[int]
) -> list[Extent]:
    runs = select_runs(queue, index.files, served, held) if is_slow(queue.entries, served) else []
    if fragmented_files:
        runs = _with_fragmented(index, queue, runs, fragmented_files, held)
    return [extent for run in runs for extent in _extents_of(run)]


def _with_fragmented(
    index: Index, queue: Queue, runs: list[Run], fragmented_files: set[int], held: Collection[Position]
) -> list[Run]:
    """Return, in order, ``runs`` and the other runs of the queue that are in fragmented files."""
    chosen = {id(run) for run in runs}
    others = (run for run in queue.runs() if run.file.number in fragmented_files and id(run) not in chosen)
    found = [*runs, *(run for run in others if not _must_stay(run, held))]
    for segment in queue.all_segments():
        if segment.file.number in fragmented_files:
            found += index.messages.runs_of(segment)
    return sorted(found, key=lambda run: (run.due is not None, run.due or 0.0, run.key))


def _extents_of(run: Run) -> Iterator[Extent]:
    """Yield a run as extents in the order of delivery: one extent, or, if the last message is delivered first, one for
    each message."""
    if not run.is_backwards:
        yield Extent(run, run.first, run.live, run.bytes_of(run.first, run.live))
        return
    for ordinal in reversed(range(run.first, run.end)):
        yield Extent(run, ordinal, 1, run.bytes_of(ordinal))


def _grouped_into_files(extents: Iterable[Extent]) -> Iterator[list[list[Extent]]]:
    """Yield the sections of each file, one file after another.

    All messages of a section belong to one queue, and are either all due or all delayed.
    """
    sections = (
        section
        for _, alike in groupby(extents, key=lambda extent: (extent.run.queue.name, extent.run.due is None))
        for section in _grouped(alike, SEGMENT_MESSAGES, lambda extent: (extent.count, extent.bytes))
    )
    yield from _grouped(sections, _FILE_SEGMENTS, lambda section: (1, sum(extent.bytes for extent in section)))


def _grouped(
    items: Iterable[_Item], most: int, measure: Callable[[_Item], tuple[int, int]], most_bytes: int = SEGMENT_BYTES
) -> Iterator[list[_Item]]:
    """Yield neighbouring items in groups. ``measure`` returns the count and the bytes of an item. The sums in a group
    are at most ``most`` and ``most_bytes``."""
    group: list[_Item] = []
    count = size = 0
    for item in items:
        number, weight = measure(item)
        if group and (count + number > most or size + weight > most_bytes):
            yield group
            group, count, size = [], 0, 0
        group.append(item)
        count, size = count + number, size + weight
    if group:
        yield group


def _write(store: Store, index: Index, sections: list[list[Extent]]) -> int:
    """Write and commit one file; return 1, or 0 if no message can be moved."""
    store.guard.check()  # so that a closing process waits for at most one file
    sources = {extent.run.file.number for section in sections for extent in section}
    written: list[Extent] = []  # in the order of the file
    reading = FileCache(store.files.disk)  # not the store's cache, which gets use under the mutex
    with own_file(store, store.deadline(), len(sources)) as file:
        batch = WriteSet()
        batch.begin_branch(file.xid, os.urandom(BRANCH_ID_BYTES))
        try:
            for section in sections:
                written += _add(batch, section, reading)
                file.stream(batch)
        finally:
            reading.close()
        if file.handle is None:
            return 0
        store.files.disk.flush(file.handle)  # flush most bytes now, before the number lock makes other processes wait
        batch.supersedes = tuple(sorted({extent.run.file.number for extent in written}))
        changed = _Changes(index, written)
        check = partial(changed.exclude_from, batch, store.view)
        commit(store, file, batch, check=check, on_applied=changed.follow)
    return 1


def _add(batch: WriteSet, section: list[Extent], reading: FileCache) -> list[Extent]:
    """Add one whole section to the batch, and return the section's extents. An unreadable message remains in its
    file."""
    table = CompactedTable(queues=[section[0].run.queue.name])
    bodies: list[bytes] = []
    kept: list[Extent] = []
    for extent in section:
        try:
            found = reading.bodies(extent.run, extent.first, extent.count, bytes)
        except (CorruptedFile, FileNotFoundError) as error:
            log.warning("a message that cannot be read is not compacted: %s", error)
            continue
        _add_row(table, extent)
        bodies += found
        kept.append(extent)
    if bodies:
        table.lengths = array("I", map(len, bodies))
        table.checksums = array("I", map(zlib.crc32, bodies))
        _make_searchable(table, kept)
        batch.add_section(table, bodies)
    return kept


class _Changes:
    """The messages of a new file that were removed, changed or moved since the compaction began.

    ``follow`` reads only the changes since its last call. For each change, it searches in a sorted list.
    """

    def __init__(self, index: Index, extents: list[Extent]) -> None:
        """``extents``: the messages of the file, in order."""
        self._index = index
        self._begins: dict[int, list[tuple[int, int, int]]] = {}  # by commit: first ordinal, end, place in the file
        place = 0
        for extent in extents:
            ranges = self._begins.setdefault(extent.run.number, [])
            ranges.append((extent.first, extent.first + extent.count, place))
            place += extent.count
        for ranges in self._begins.values():
            ranges.sort()
        self._marks = bytearray(place)  # a byte for each message of the file: 1 if the message has changed
        self._followed = 0
        self.follow()  # read the moves to earlier files of this step now, not under the number lock

    def follow(self) -> None:
        """Mark the messages that changed since the last call."""
        changes = self._index.changed_since or []
        while self._followed < len(changes):
            number, first, count = changes[self._followed]
            self._followed += 1
            ranges, end = self._begins.get(number, ()), first + count
            for at in range(max(0, bisect_right(ranges, (first, end, 0)) - 1), len(ranges)):
                begin, stop, place = ranges[at]
                if begin >= end:
                    break
                start, length = max(first, begin), min(end, stop) - max(first, begin)
                if length > 0:
                    place += start - begin
                    self._marks[place : place + length] = b"\1" * length

    def exclude_from(self, batch: WriteSet, view: View, _: object) -> None:
        """Record the changed messages in the file, as *left* (Rule 5). The caller holds the number lock."""
        if view.index is not self._index:
            raise Overtaken
        self.follow()
        if 0 not in self._marks:
            raise Overtaken
        first = self._marks.find(1)
        while first >= 0:
            end = self._marks.find(0, first)
            end = len(self._marks) if end < 0 else end
            batch.leave(first, end - first)
            first = self._marks.find(1, end)


def _add_row(table: CompactedTable, extent: Extent) -> None:
    run = extent.run
    attributes = dict(run.attributes)
    if not table.attributes or table.attributes[-1] != attributes:
        table.attributes.append(attributes)
    table.runs.append([0, len(table.attributes) - 1, extent.count])
    origins = table.origins
    origins.numbers.append(run.number)
    origins.ordinals.append(extent.first)
    origins.times.append(run.committed_at)
    origins.branches.append(run.branch)
    origins.places.append(extent.first - run.begin)


def _make_searchable(table: CompactedTable, extents: list[Extent]) -> None:
    table.ids = pack_ids(list(zip(table.origins.branches, table.origins.places, range(len(extents)), strict=True)))
    ids = [extent.run.attributes.get("correlation_id") for extent in extents]
    hashes = [(correlation_hash(id_), run) for run, id_ in enumerate(ids) if id_ is not None]
    table.correlations = pack_correlations(hashes)
