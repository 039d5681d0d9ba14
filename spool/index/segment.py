"""Segments: thousands of messages as one entry of the index. The table of a segment is read from the file when needed.

A segment is one section of a file that a compaction wrote: messages of one queue in the order of delivery. Each message
keeps the position from its original commit. The memory has only the segment's bounds, its counts, and one bit for each
message. After a search by id or correlation id, the memory also has four bytes of each search key, so that the next
searches need not read the table of a segment without the key.
"""

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from spool.format.header import SectionEntry
from spool.format.table import CompactedTable
from spool.index.commit import FileRef
from spool.index.run import QueueOrder
from spool.model.layout import MAX_ORDINAL, ORDINAL_BITS
from spool.model.message import expiry_time
from spool.model.order import Key, cuts
from spool.model.xid import BRANCH_ID_BYTES


class LiveRun(NamedTuple):
    """``length`` neighbouring live messages of a segment, from position ``number``/``first`` on. ``run``: their run in
    the table. ``row``: the row of the first message."""

    run: int
    row: int
    number: int
    first: int
    length: int


class Segment:
    """One compacted section.

    queue: the order of the segment's queue.
    file, entry: the file, and the entry of the section in the header.
    live, bytes: the number of live messages, and the bytes of their bodies.
    removed: one bit for each row; the bit is set if the message was removed.
    next_row: the row before which all messages were removed.
    low, high: the lowest position, and the end of the highest range of positions, both packed by ``pack_position``.
    expires: the next expiry time, in seconds since the epoch.
    oldest: the earliest commit time, when ``counted`` messages were live: see ``MessageTable.oldest_in``.
    key: the sort key of the next message. If ``delayed`` is true, the key begins with the message's due time.
    prefixes: for IDS and CORRELATIONS, the sorted prefixes of the search keys; added by the first search.
    cuts: the positions (number, ordinal) before which messages of this segment were put; a run must end before each
        position.
    """

    __slots__ = (
        "bytes", "correlated", "counted", "cuts", "delayed", "entry", "expires", "file", "high", "key", "live", "low",
        "next_row", "oldest", "prefixes", "queue", "removed", "rows",
    )  # fmt: skip

    def __init__(self, queue: QueueOrder, file: FileRef, entry: SectionEntry, table: CompactedTable) -> None:
        places = table.places()
        self.queue = queue
        self.file = file
        self.entry = entry
        self.rows = len(table.lengths)
        self.live = self.rows
        self.bytes = sum(table.lengths)
        self.removed = bytearray((self.rows + 7) // 8)
        self.next_row = 0
        self.oldest, self.counted = min(table.origins.times), self.rows
        self.low, self.high = places.starts[0], max(places.ends)
        self.correlated = bool(table.correlations)
        self.prefixes: dict[int, array[int]] = {}
        self.cuts = [cut for attributes in table.attributes for cut in cuts(attributes)]
        self.expires = self.next_expiry(table)
        self.delayed = False
        self.key: Key = ()

    def next_expiry(self, table: CompactedTable) -> float | None:
        """Return the earliest expiry time of the live messages, in seconds since the epoch; None if no message
        expires."""
        if not any("expires_at" in fields or "time_to_live" in fields for fields in table.attributes):
            return None
        times = (
            expiry_time(table.attributes[table.runs[live.run][1]], table.origins.times[live.run])
            for live in self.live_runs(table)
        )
        return min((time for time in times if time is not None), default=None)

    def may_have(self, kind: int, key: bytes) -> bool:
        """Return False if the prefixes in memory show that no message of the segment has this search key."""
        if (prefixes := self.prefixes.get(kind)) is None:
            return kind == IDS or self.correlated
        (prefix,) = _PREFIX.unpack_from(key)
        at = bisect_left(prefixes, prefix)
        return at < len(prefixes) and prefixes[at] == prefix

    def remove(self, row: int, count: int, size: int) -> None:
        """Remove ``count`` live messages, whose bodies have ``size`` bytes in total."""
        for one in range(row, row + count):
            self.removed[one >> 3] |= 1 << (one & 7)
        self.live -= count
        self.bytes -= size

    def live_runs(self, table: CompactedTable, row: int = 0, runs: Iterable[int] | None = None) -> Iterator[LiveRun]:
        """Yield the live messages from ``row`` on, in order; or those of some runs of the table."""
        return live_runs(table, self.removed, row, runs)

    def live_run_at(self, table: CompactedTable, number: int, ordinal: int, end: int) -> tuple[LiveRun | None, int]:
        """Find the live messages from position ``number``/``ordinal`` on, up to but not including ordinal ``end``.

        Returns:
            The messages, and the ordinal after the last message. If the first message is not live, the first element is
            None, and the second is the ordinal at which the search can continue.
        """
        places = table.places()
        wanted = pack_position(number, ordinal)
        at = bisect_right(places.starts, wanted) - 1
        if at >= 0 and wanted < places.ends[at]:
            run = places.order[at]
            stop = min(end, places.ends[at] - pack_position(number, 0))
            row = places.rows[run] + ordinal - table.origins.ordinals[run]
            if (span := next(_live_spans(self.removed, row, row + stop - ordinal), None)) is None:
                return None, stop
            if span[0] > row:
                return None, ordinal + span[0] - row
            return LiveRun(run, row, number, ordinal, span[1]), ordinal + span[1]
        if at + 1 < len(places.starts) and places.starts[at + 1] >> ORDINAL_BITS == number:
            return None, min(end, places.starts[at + 1] & MAX_ORDINAL)
        return None, end


def live_runs(
    table: CompactedTable, removed: bytes | bytearray, row: int = 0, runs: Iterable[int] | None = None
) -> Iterator[LiveRun]:
    """Yield the live messages from ``row`` on, in order; or those of ``runs``. ``removed``: the bits of the segment's
    removed rows."""
    starts = table.places().rows
    there = range(bisect_right(starts, row) - 1, len(table.runs))
    for run in there if runs is None else filter(there.__contains__, runs):
        number, first = table.origins.numbers[run], table.origins.ordinals[run]
        for at, count in _live_spans(removed, max(row, starts[run]), starts[run + 1]):
            yield LiveRun(run, at, number, first + at - starts[run], count)


def _live_spans(removed: bytes | bytearray, row: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield neighbouring live messages as (row, count), from row ``row`` up to row ``end``."""
    while row < end:
        if removed[row >> 3] & 1 << (row & 7):
            row += 1
            continue
        stop = row + 1
        while stop < end and not removed[stop >> 3] & 1 << (stop & 7):
            stop += 1
        yield row, stop - row
        row = stop


def pack_position(number: int, ordinal: int) -> int:
    """Return a position as one integer. A claim of the message locks the byte with this number."""
    return number << ORDINAL_BITS | ordinal


# -- search keys: sorted entries of a fixed width, which are searched without decoding
# -------------------------------------

IDS, CORRELATIONS = 0, 1  # the kinds of search keys: branch ids, and hashes of correlation ids
_ORDINAL_BYTES, _RUN_BYTES = 4, 4
HASH_BYTES = 8
_PREFIX = struct.Struct(">I")  # (branch ids are random, so their first bytes differ as those of hashes)
_ENTRIES = [
    struct.Struct(f">I{n - 4}x") for n in (BRANCH_ID_BYTES + _ORDINAL_BYTES + _RUN_BYTES, HASH_BYTES + _RUN_BYTES)
]


def pack_ids(entries: list[tuple[bytes, int, int]]) -> bytes:
    """Sort the entries, and return them as bytes. An entry: (branch id, ordinal of a run's first message in the branch,
    run)."""
    return b"".join(
        branch + first.to_bytes(_ORDINAL_BYTES, "big") + run.to_bytes(_RUN_BYTES, "big")
        for branch, first, run in sorted(entries)
    )


def find_id(packed: bytes, branch: bytes, ordinal: int) -> int | None:
    """Return the run that may have the message with this id, or None, by one binary search."""
    width = len(branch) + _ORDINAL_BYTES + _RUN_BYTES
    wanted = branch + ordinal.to_bytes(_ORDINAL_BYTES, "big") + b"\xff" * _RUN_BYTES
    at = bisect_right(range(len(packed) // width), wanted, key=lambda n: packed[n * width : (n + 1) * width]) - 1
    entry = packed[at * width : (at + 1) * width] if at >= 0 else b""
    return int.from_bytes(entry[-_RUN_BYTES:], "big") if entry.startswith(branch) else None


def pack_correlations(entries: list[tuple[bytes, int]]) -> bytes:
    """Sort the entries (hash of a correlation id, run); return them as bytes."""
    return b"".join(hashed + run.to_bytes(_RUN_BYTES, "big") for hashed, run in sorted(entries))


def key_prefixes(packed: bytes, kind: int) -> "array[int]":
    """Return the first four bytes of each search key in the entries, as numbers in ascending order."""
    return array("I", dict.fromkeys(prefix for (prefix,) in _ENTRIES[kind].iter_unpack(packed)))


def find_correlation(packed: bytes, hashed: bytes) -> list[int]:
    """Return the runs whose correlation id may have this hash, by one binary search."""
    width = HASH_BYTES + _RUN_BYTES
    count = len(packed) // width
    at = bisect_left(range(count), hashed, key=lambda n: packed[n * width : n * width + HASH_BYTES])
    runs = []
    while at < count and packed[at * width :].startswith(hashed):
        runs.append(int.from_bytes(packed[(at + 1) * width - _RUN_BYTES : (at + 1) * width], "big"))
        at += 1
    return runs
