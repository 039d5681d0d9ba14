"""A task's side of a read: the messages of a plan, read from the files of the space.

A task does not open the space. It knows where each body lies, and proves it by checksum. If a file is not there any
more, or is not what it was, it was compacted or reclaimed after the plan was made. Then the task opens the space and
looks where the messages lie now; those that have left their queue meanwhile are left out.
"""

import logging
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from forwarder.dataframes.reading.places import GO_ON, Item, Missing, unpacked
from spool.disk.disk import Disk
from spool.errors import CorruptedFile, InvalidArgument
from spool.format.reader import BodyPlace
from spool.format.table import Table
from spool.index.body_files import FileCache
from spool.index.stretch import Stretch
from spool.model.message import message_id
from spool.model.position import PositionRanges

if TYPE_CHECKING:
    from forwarder.dataframes.reading.look import Relocation
    from spool.space import Space

# What is read, joined and sent on while the processor has it in its cache: twice as fast as 4 MiB.
_BATCH_ROWS, _BATCH_BYTES = 4096, 512 << 10
_LARGEST_BODY = 2**31 - 1  # bytes, in a row of Spark
_TRIES = 3  # of a look for what is not where it was

log = logging.getLogger("spool")


class Piece(NamedTuple):
    """Messages that were read. ``lengths``: of their bodies, in bytes; ``bodies``: none if they are not wanted."""

    stretch: Stretch
    lengths: Sequence[int]
    bodies: Sequence[memoryview]


class Files:
    """The files of the space, as one task reads them; the caller closes them.

    open_space: opens the space, if it comes to that.
    missing: what is done about messages that are not where the plan says.
    """

    def __init__(
        self,
        disk: Disk,
        open_space: "Callable[[], Space]",
        *,
        with_body: bool,
        missing: Missing = Missing.RELOCATE,
    ) -> None:
        self._disk = disk
        self._open_space = open_space
        self._with_body = with_body
        self._missing = missing
        self._cache = FileCache(disk)
        self._relocation: Relocation | None = None

    def batches(self, items: Sequence[Item]) -> Iterator[list[Piece]]:
        """Yield the messages of the items that are there, as many at a time as make a batch."""
        some, rows, size = list[Piece](), 0, 0
        for item in items:
            for piece in self.pieces(item):
                some.append(piece)
                rows, size = rows + piece.stretch.length, size + sum(piece.lengths)
                if rows >= _BATCH_ROWS or size >= _BATCH_BYTES:
                    yield some
                    some, rows, size = [], 0, 0
        if some:
            yield some

    def pieces(self, item: Item) -> Iterator[Piece]:
        """Yield the messages of an item that are there."""
        if isinstance(item, Stretch):
            yield from self._read(item)
            return
        try:
            table = self._cache.compacted_table(item.file, item.section)
        except CorruptedFile:
            yield from self._relocated(item.queue, unpacked(item.positions))
            return
        for group in _neighbours(item.stretches(table), table.ends(item.section)):
            yield from self._read_together(group, table)

    def _read(self, whole: Stretch) -> Iterator[Piece]:
        """Yield neighbouring messages, in parts that fit into a batch."""
        first, end = whole.first, whole.first + whole.length
        while first < end:
            try:
                piece = read_part(self._cache, whole.part(first, end - first), self._with_body)
            except CorruptedFile as problem:
                if self._missing is Missing.RELOCATE:
                    yield from self._relocated(whole.queue, [(whole.number, first, end - first)])
                else:
                    yield from self._without_lost(whole.part(first, end - first), problem)
                return
            yield piece
            first += piece.stretch.length

    def _without_lost(self, whole: Stretch, problem: CorruptedFile) -> Iterator[Piece]:
        """Yield those that can be read of messages that are kept for a subscription; CorruptedFile if it is to fail."""
        what = f"of what commit {whole.number} put into queue {whole.queue}"
        if self._missing is Missing.FAIL:
            raise CorruptedFile(f"messages {what} cannot be read: {problem}; {GO_ON}") from problem
        if whole.length == 1:
            log.warning("a message %s is left out: %s", what, problem)
            return
        for ordinal in range(whole.first, whole.first + whole.length):
            yield from self._read(whole.part(ordinal, 1))

    def _read_together(self, group: Sequence[Stretch], table: Table) -> Iterator[Piece]:
        """Yield messages that follow each other in a section, with as few reads as if they were of one commit."""
        bodies = self._bodies_of(group) if len(group) > 1 else None
        for part in group:
            if bodies is None:
                yield from self._read(part)
                continue
            row = part.first - part.base
            begin = row - (group[0].first - group[0].base)
            yield Piece(part, table.lengths[row : row + part.length], bodies[begin : begin + part.length])

    def _bodies_of(self, group: Sequence[Stretch]) -> Sequence[memoryview] | None:
        """Return the bodies of such messages, none if they are not wanted; None if they must be read one by one."""
        if not self._with_body:
            return []
        first, last = group[0], group[-1]
        begin, end = first.first - first.base, last.first - last.base + last.length
        try:
            return self._cache.views(first._replace(base=0), begin, end - begin)  # (rows are its ordinals then)
        except CorruptedFile:
            return None

    def _relocated(self, queue: str, ranges: PositionRanges) -> Iterator[Piece]:
        """Yield those of the messages that are in the queue still, from where they lie now."""
        if self._relocation is None:
            from forwarder.dataframes.reading.look import Relocation  # (most tasks need nothing of it)

            self._relocation = Relocation(self._open_space())
        for number, first, count in ranges:
            ordinal, end = first, first + count
            while ordinal < end:
                piece, ordinal = self._next(self._relocation, queue, number, ordinal, end)
                if piece is not None:
                    yield piece

    def _next(
        self, relocation: "Relocation", queue: str, number: int, ordinal: int, end: int
    ) -> tuple[Piece | None, int]:
        """Read what is there next. Other processes may sweep it away once more, before it is read: then look again."""
        problem: Exception
        for _ in range(_TRIES):
            try:
                found, stop = relocation.next(queue, number, ordinal, end)
                if found is None:
                    return None, stop
                piece = read_part(self._cache, found, self._with_body)
                return piece, ordinal + piece.stretch.length
            except (CorruptedFile, FileNotFoundError) as error:
                problem = error
        raise relocation.damaged(queue, problem)

    def close(self) -> None:
        """Close the files, and the space if it was opened."""
        if self._relocation is not None:
            self._relocation.close()
        self._disk.close_all()


def _neighbours(stretches: Iterator[Stretch], ends: Sequence[int]) -> Iterator[list[Stretch]]:
    """Yield groups of stretches whose rows follow each other, none larger than a batch unless it is one stretch.

    ``ends``: the offset at which the body of each row ends.
    """
    group: list[Stretch] = []
    begin = stop = 0  # rows
    for one in stretches:
        row, end = one.first - one.base, one.first - one.base + one.length
        if group and (row != stop or end - begin > _BATCH_ROWS or ends[end - 1] - ends[begin] > _BATCH_BYTES):
            yield group
            group = []
        if not group:
            begin = row
        group.append(one)
        stop = end
    if group:
        yield group


def read_part(cache: FileCache, whole: Stretch, with_body: bool) -> Piece:
    """Read as many of the messages as fit into a batch, at least one; CorruptedFile."""
    if isinstance(whole.bodies, BodyPlace):
        part, lengths = whole, array("I", [whole.bodies.length])
    else:
        table, row = cache.table(whole.file, whole.bodies), whole.first - whole.base
        ends = table.ends(whole.bodies)
        start = ends[row] - table.lengths[row]
        stop = min(row + min(whole.length, _BATCH_ROWS), max(row + 1, bisect_right(ends, start + _BATCH_BYTES)))
        part, lengths = whole.part(whole.first, stop - row), table.lengths[row:stop]
    if not with_body:
        return Piece(part, lengths, [])
    if lengths[0] > _LARGEST_BODY:  # (then it is alone)
        raise InvalidArgument(
            f"message {message_id(part.branch, part.in_branch)} of queue {part.queue} has a body of {lengths[0]:,} "
            "bytes, more than a row of Spark takes: read without bodies, .option('body', 'false')"
        )
    return Piece(part, lengths, cache.views(part, part.first, part.length))
