"""Swept segments: thousands of messages as one entry of the index; their table stays in the file until it is needed.

A segment is one section of a file that a sweep wrote: messages of one queue in the order of
delivery, each with the position that it has had since its own commit. In memory it is where it begins, what it weighs
and one bit a message for those that left it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from spool.format.format import SectionEntry, Table
from spool.index.commit import Source
from spool.model.layout import MAX_ORDINAL, ORDINAL_BITS
from spool.model.message import expiry_time

if TYPE_CHECKING:
    from spool.index.queue import Line
    from spool.model.order import Key


class Piece(NamedTuple):
    """Neighbouring messages in a segment: the ``run`` of the table they belong to, their rows, their positions."""

    run: int
    row: int
    number: int
    first: int
    length: int


class Segment:
    """``low`` and ``high``: the least and the greatest position in it, as ``place`` makes them one number."""

    __slots__ = (
        "bytes", "correlated", "delayed", "entry", "expires", "high", "key", "left", "live", "low", "next", "oldest",
        "queue", "rows", "section", "source",
    )  # fmt: skip

    def __init__(self, queue: "Line", source: Source, section: int, entry: SectionEntry, table: Table) -> None:
        assert table.origins is not None
        places = table.places()
        self.queue = queue
        self.source = source
        self.section = section
        self.entry = entry
        self.rows = len(table.lengths)
        self.live = self.rows
        self.bytes = sum(table.lengths)
        self.left = bytearray((self.rows + 7) // 8)
        self.next = 0  # every message before this row has left
        self.oldest = min(table.origins.times)
        self.low, self.high = places.starts[0], max(places.ends)
        self.correlated = bool(table.correlations)
        self.expires = self.next_expiry(table)
        self.delayed = False
        self.key: Key = ()

    def next_expiry(self, table: Table) -> float | None:
        """When the first of those that are still there expires, or None."""
        if not any("expires_at" in fields or "time_to_live" in fields for fields in table.attributes):
            return None
        assert table.origins is not None
        times = (
            expiry_time(table.attributes[table.runs[piece.run][1]], table.origins.times[piece.run])
            for piece in self.pieces(table)
        )
        return min((time for time in times if time is not None), default=None)

    def leave(self, row: int, count: int, bytes_gone: int) -> None:
        """Messages that are in the segment leave it."""
        for one in range(row, row + count):
            self.left[one >> 3] |= 1 << (one & 7)
        self.live -= count
        self.bytes -= bytes_gone

    def pieces(self, table: Table, row: int = 0, left: bytes | None = None) -> Iterator[Piece]:
        """What is still there from that row on, in order. ``left``: as it was earlier."""
        assert table.origins is not None
        starts = table.places().rows
        gone = self.left if left is None else left
        for run in range(bisect_right(starts, row) - 1, len(table.runs)):
            number, first = table.origins.numbers[run], table.origins.ordinals[run]
            for at, count in _spans(gone, max(row, starts[run]), starts[run + 1]):
                yield Piece(run, at, number, first + at - starts[run], count)

    def piece_at(self, table: Table, number: int, ordinal: int, end: int) -> tuple[Piece | None, int]:
        """The messages from that position on, if the first of them is there, and where to look on."""
        assert table.origins is not None
        found = table.places()
        wanted = place(number, ordinal)
        at = bisect_right(found.starts, wanted) - 1
        if at >= 0 and wanted < found.ends[at]:
            run = found.order[at]
            stop = min(end, found.ends[at] - place(number, 0))
            row = found.rows[run] + ordinal - table.origins.ordinals[run]
            span = next(_spans(self.left, row, row + stop - ordinal), None)
            if span is None:
                return None, stop
            if span[0] > row:
                return None, ordinal + span[0] - row
            return Piece(run, row, number, ordinal, span[1]), ordinal + span[1]
        if at + 1 < len(found.starts) and found.starts[at + 1] >> ORDINAL_BITS == number:
            return None, min(end, found.starts[at + 1] & MAX_ORDINAL)
        return None, end


def _spans(left: bytes | bytearray, row: int, end: int) -> Iterator[tuple[int, int]]:
    """(row, count) of neighbours that are still there, from ``row`` up to ``end``."""
    while row < end:
        if left[row >> 3] & 1 << (row & 7):
            row += 1
            continue
        stop = row + 1
        while stop < end and not left[stop >> 3] & 1 << (stop & 7):
            stop += 1
        yield row, stop - row
        row = stop


def place(number: int, ordinal: int) -> int:
    """A position as one number; its claim's byte is the same."""
    return number << ORDINAL_BITS | ordinal


# -- looking up by key: sorted entries of a fixed width, searched where they lie --------------------------------------

_PLACE_BYTES, _RUN_BYTES = 4, 4
HASH_BYTES = 8


def pack_ids(entries: list[tuple[bytes, int, int]]) -> bytes:
    """(branch id, ordinal in the branch of a run's first message, run), sorted."""
    return b"".join(
        branch + first.to_bytes(_PLACE_BYTES, "big") + run.to_bytes(_RUN_BYTES, "big")
        for branch, first, run in sorted(entries)
    )


def find_id(packed: bytes, branch: bytes, ordinal: int) -> int | None:
    """The run that may hold the message with that id: one binary search."""
    width = len(branch) + _PLACE_BYTES + _RUN_BYTES
    wanted = branch + ordinal.to_bytes(_PLACE_BYTES, "big") + b"\xff" * _RUN_BYTES
    at = bisect_right(range(len(packed) // width), wanted, key=lambda n: packed[n * width : (n + 1) * width]) - 1
    entry = packed[at * width : (at + 1) * width] if at >= 0 else b""
    return int.from_bytes(entry[-_RUN_BYTES:], "big") if entry.startswith(branch) else None


def pack_correlations(entries: list[tuple[bytes, int]]) -> bytes:
    """(hash of a correlation id, run), sorted."""
    return b"".join(hashed + run.to_bytes(_RUN_BYTES, "big") for hashed, run in sorted(entries))


def find_correlation(packed: bytes, hashed: bytes) -> list[int]:
    """The runs whose correlation id may be the one with that hash: one binary search."""
    width = HASH_BYTES + _RUN_BYTES
    count = len(packed) // width
    at = bisect_left(range(count), hashed, key=lambda n: packed[n * width : n * width + HASH_BYTES])
    found = []
    while at < count and packed[at * width :].startswith(hashed):
        found.append(int.from_bytes(packed[(at + 1) * width - _RUN_BYTES : (at + 1) * width], "big"))
        at += 1
    return found
