"""Where messages lie, as a plan tells the tasks: neighbours of one commit, or what is left of a compacted section."""

import zlib
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any, NamedTuple

import msgpack

from spool.format.header import SectionEntry
from spool.format.reader import BodyPlace
from spool.format.table import CompactedTable
from spool.index.commit import FileRef
from spool.index.run import Run
from spool.index.segment import Piece, live_pieces
from spool.model.message import with_defaults
from spool.model.position import PositionRanges
from spool.model.settings import QueueConfig


class Stretch(NamedTuple):
    """Neighbouring messages of one commit with the same control fields, and where they lie.

    file, bodies, base: as of a ``Run``.
    branch, in_branch: the id of their branch, and the first one's ordinal there.
    """

    file: FileRef
    bodies: BodyPlace | SectionEntry
    base: int
    queue: str
    number: int
    first: int
    length: int
    branch: bytes
    in_branch: int
    committed_at: float
    attributes: Mapping[str, Any]

    def part(self, first: int, length: int) -> "Stretch":
        """Return ``length`` of them, from the ordinal ``first`` on."""
        return self._replace(first=first, length=length, in_branch=self.in_branch + first - self.first)


class Compacted(NamedTuple):
    """Compacted messages of one queue, which lie in one section; its table tells the rest.

    removed: one bit a row, set for those that are not meant.
    positions: where the others are found if the file is gone: see ``unpacked``.
    """

    file: FileRef
    section: SectionEntry
    queue: str
    removed: bytes
    positions: bytes
    defaults: Mapping[str, str]

    def stretches(self, table: CompactedTable) -> Iterator[Stretch]:
        """Yield the messages, given the section's table."""
        for piece in live_pieces(table, self.removed):
            yield _stretch_of(self.file, self.section, table, piece, self.queue, self.defaults)


Item = Stretch | Compacted


def stretch(run: Run, branch: bytes, in_branch: int, config: QueueConfig | None) -> Stretch:
    """Return a run as a task reads it; ``in_branch``: the ordinal of its first message in its branch."""
    attributes = run.attributes if config is None else with_defaults(config, run.attributes)
    return Stretch(
        run.file, run.bodies, run.base, run.queue.name, run.number, run.first, run.live, branch, in_branch,
        run.committed_at, attributes,
    )  # fmt: skip


def _stretch_of(
    file: FileRef, section: SectionEntry, table: CompactedTable, piece: Piece, queue: str, defaults: Mapping[str, str]
) -> Stretch:
    origins, run = table.origins, piece.run
    attributes = table.attributes[table.runs[run][1]]
    return Stretch(
        file, section, piece.first - piece.row, queue, piece.number, piece.first, piece.length, origins.branches[run],
        origins.places[run] + piece.first - origins.ordinals[run], origins.times[run],
        {**defaults, **attributes} if defaults else attributes,
    )  # fmt: skip


# -- positions, as a plan carries them --------------------------------------------------------------------------------


def packed(ranges: PositionRanges) -> bytes:
    """Return ranges of positions as few bytes: most follow each other closely."""
    ranges = sorted(ranges)
    numbers = [number for number, _, _ in ranges]
    steps = [numbers[0], *map(int.__sub__, numbers[1:], numbers)]
    return zlib.compress(
        msgpack.packb([steps, [first for _, first, _ in ranges], [count for _, _, count in ranges]]), 1
    )


def unpacked(positions: bytes) -> PositionRanges:
    """Return the ranges of positions that were packed."""
    steps, firsts, counts = msgpack.unpackb(zlib.decompress(positions))
    return list(zip(accumulate(steps), firsts, counts, strict=True))
