"""The places of messages: a run of one commit, or the remaining messages of a compacted section."""

import zlib
from collections.abc import Iterator, Mapping
from enum import Enum
from itertools import accumulate
from typing import NamedTuple

import msgpack

from spool.format.header import SectionEntry
from spool.format.table import CompactedTable
from spool.index.commit import FileRef
from spool.index.segment import live_runs
from spool.index.stored_run import StoredRun
from spool.model.position import PositionRanges


class Compacted(NamedTuple):
    """The messages of one queue in one compacted section. The table of the section has their control fields.

    removed: one bit for each row of the table. The bit is set if the row is to be left out.
    positions: the positions of the messages in the other rows, as ``packed`` encodes them. A reader uses this
        field if the file was removed.
    """

    file: FileRef
    section: SectionEntry
    queue: str
    removed: bytes
    positions: bytes
    defaults: Mapping[str, str]

    def runs(self, table: CompactedTable) -> Iterator[StoredRun]:
        """Yield the messages as runs. ``table``: the table of the section."""
        origins = table.origins
        for live in live_runs(table, self.removed):
            run, attributes = live.run, table.attributes[table.runs[live.run][1]]
            yield StoredRun(
                self.file, self.section, live.first - live.row, self.queue, live.number, live.first, live.length,
                origins.branches[run], origins.places[run] + live.first - origins.ordinals[run], origins.times[run],
                {**self.defaults, **attributes} if self.defaults else attributes,
            )  # fmt: skip


Item = StoredRun | Compacted


class Missing(Enum):
    """The action of a reader for messages that are missing or damaged at their place.

    RELOCATE: find the current place of the messages, and leave out the messages that have left their queue.
    FAIL: raise CorruptedFile.
    SKIP: log a warning and leave the messages out.

    FAIL and SKIP are for messages that are kept for a subscription, because these messages lie only at the places where
    they were put.
    """

    RELOCATE = "relocate"
    FAIL = "fail"
    SKIP = "skip"


def packed(ranges: PositionRanges) -> bytes:
    """Encode ranges of positions in few bytes. Most numbers are close to each other, so differences are stored."""
    numbers, firsts, counts = zip(*sorted(ranges), strict=True)
    steps = [numbers[0], *map(int.__sub__, numbers[1:], numbers)]
    return zlib.compress(msgpack.packb([steps, firsts, counts]), 1)


def unpacked(positions: bytes) -> PositionRanges:
    """Decode the ranges of positions that ``packed`` encoded."""
    steps, firsts, counts = msgpack.unpackb(zlib.decompress(positions))
    return list(zip(accumulate(steps), firsts, counts, strict=True))
