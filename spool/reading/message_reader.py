"""Read many messages from their files, in a process that has not opened the space.

The reader gets the places of the messages, and checks each body by its checksum. After the places were listed, other
processes may compact or reclaim files. If a file is missing or changed, the reader opens the space, finds the current
places, and leaves out the messages that have left their queue.
"""

import logging
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple, Protocol

from spool.admin.reads import WHAT_TO_DO
from spool.disk.advice import as_failure
from spool.disk.disk import Disk
from spool.disk.requirements import on_another_machine
from spool.errors import Argument, CorruptedFile, InvalidArgument, SpoolError
from spool.format.reader import BodyPlace
from spool.format.table import Table
from spool.index.body_files import FileCache
from spool.index.stored_run import StoredRun
from spool.model.message import message_id
from spool.model.position import PositionRanges
from spool.reading.backlog import locate
from spool.reading.places import Item, Missing, unpacked
from spool.transactions.core import Core

# A batch that fits into the processor's cache is read, joined and sent twice as fast as a batch of 4 MiB.
_BATCH_ROWS, _BATCH_BYTES = 4096, 512 << 10
_MOST_ATTEMPTS = 3  # attempts to read messages, while other processes move them

log = logging.getLogger("spool")


class OpenedSpace(Protocol):
    """The part of ``spool.Space`` that a reader uses."""

    _core: Core

    def close(self) -> None: ...


class ReadMessages(NamedTuple):
    """Neighbouring messages. ``lengths``: the sizes of the bodies. ``bodies``: empty if the reader reads no bodies."""

    run: StoredRun
    lengths: Sequence[int]
    bodies: Sequence[memoryview]


class MessageReader:
    """Reads messages of a space. The caller closes the reader.

    Args:
        path: the directory of the space.
        open_space: a function that opens the space. The reader calls the function if a message is not at its place.
        with_body: whether the reader reads bodies.
        missing: the action for messages that are not at their places.
        largest_body: the size of the largest body that the caller accepts, in bytes; None for no limit.
    """

    def __init__(
        self,
        path: str,
        open_space: Callable[[], OpenedSpace],
        *,
        with_body: bool,
        missing: Missing = Missing.RELOCATE,
        largest_body: int | None = None,
    ) -> None:
        self._disk = Disk(path)
        self._open_space = open_space
        self._with_body = with_body
        self._missing = missing
        self._largest_body = largest_body
        self._cache = FileCache(self._disk)
        self._opened: OpenedSpace | None = None

    def check_machine(self, boot_id: str) -> None:
        """Raise UnsafeFileSystem unless this process runs on the machine with this boot id.

        To find moved messages, the reader opens the space. Only processes of one machine may have a space open.
        """
        if self._disk.boot_id() != boot_id:
            raise on_another_machine(self._disk.root)

    def batches(self, items: Sequence[Item]) -> Iterator[list[ReadMessages]]:
        """Yield the messages at these places, about 512 KiB at a time.

        Raises:
            CorruptedFile: a body is damaged.
            InvalidArgument: a body is larger than ``largest_body``.
            DiskFailure: a file cannot be read.
        """
        some, rows, size = list[ReadMessages](), 0, 0
        try:
            for part in chain.from_iterable(map(self.parts, items)):
                some.append(part)
                rows, size = rows + part.run.length, size + sum(part.lengths)
                if rows >= _BATCH_ROWS or size >= _BATCH_BYTES:
                    yield some
                    some, rows, size = [], 0, 0
        except SpoolError:
            raise
        except OSError as error:
            raise as_failure("reading messages", error) from error
        if some:
            yield some

    def parts(self, item: Item) -> Iterator[ReadMessages]:
        """Yield the messages at one place."""
        if isinstance(item, StoredRun):
            yield from self._read(item)
            return
        try:
            table = self._cache.compacted_table(item.file, item.section)
        except CorruptedFile:
            yield from self._relocated(item.queue, unpacked(item.positions))
            return
        for group in _neighbours(item.runs(table), table.ends(item.section)):
            yield from self._read_together(group, table)

    def _read(self, whole: StoredRun) -> Iterator[ReadMessages]:
        """Yield the neighbouring messages of a run, in parts that fit into a batch."""
        first, end = whole.first, whole.first + whole.length
        while first < end:
            try:
                part = self._read_part(whole.part(first, end - first))
            except CorruptedFile as problem:
                if self._missing is Missing.RELOCATE:
                    yield from self._relocated(whole.queue, [(whole.number, first, end - first)])
                else:
                    yield from self._without_lost(whole.part(first, end - first), problem)
                return
            yield part
            first += part.run.length

    def _without_lost(self, whole: StoredRun, problem: CorruptedFile) -> Iterator[ReadMessages]:
        """Yield the readable messages of ``whole``. If the reader has ``Missing.FAIL``, raise CorruptedFile instead."""
        what = f"that commit {whole.number} put into queue {whole.queue}"
        if self._missing is Missing.FAIL:
            raise CorruptedFile(f"messages {what} cannot be read: {problem}") from problem
        if whole.length == 1:
            log.warning("a message %s is left out: %s", what, problem)
            return
        for ordinal in range(whole.first, whole.first + whole.length):
            yield from self._read(whole.part(ordinal, 1))

    def _read_together(self, group: Sequence[StoredRun], table: Table) -> Iterator[ReadMessages]:
        """Yield messages that follow each other in a section. Read their bodies together."""
        bodies = self._bodies_of(group) if len(group) > 1 else None
        for part in group:
            if bodies is None:
                yield from self._read(part)
                continue
            row = part.first - part.base
            begin = row - (group[0].first - group[0].base)
            yield ReadMessages(part, table.lengths[row : row + part.length], bodies[begin : begin + part.length])

    def _bodies_of(self, group: Sequence[StoredRun]) -> Sequence[memoryview] | None:
        """Return the bodies of these messages, or None if the bodies must be read one by one.

        If the reader reads no bodies, return an empty list."""
        if not self._with_body:
            return []
        first, last = group[0], group[-1]
        begin, end = first.first - first.base, last.first - last.base + last.length
        try:
            return self._cache.bodies(
                first._replace(base=0), begin, end - begin, memoryview
            )  # (with base 0, each ordinal is a row)
        except CorruptedFile:
            return None

    def _relocated(self, queue: str, ranges: PositionRanges) -> Iterator[ReadMessages]:
        """Find the current places of the messages that are still in the queue, and yield these messages."""
        self._opened = self._opened or self._open_space()
        for number, first, count in ranges:
            ordinal, end = first, first + count
            while ordinal < end:
                part, ordinal = self._next(self._opened, queue, number, ordinal, end)
                if part is not None:
                    yield part

    def _next(
        self, opened: OpenedSpace, queue: str, number: int, ordinal: int, end: int
    ) -> tuple[ReadMessages | None, int]:
        """Read the next messages that are still in the queue.

        If another process moves the messages before this call reads them, find the messages again. Return the messages
        and the ordinal with which to continue. Return None instead of messages that have left the queue.
        """
        problem: Exception
        for _ in range(_MOST_ATTEMPTS):
            try:
                found, stop = locate(opened._core.store, queue, number, ordinal, end)
                if found is None:
                    return None, stop
                part = self._read_part(found)
                return part, ordinal + part.run.length
            except (CorruptedFile, FileNotFoundError) as error:
                problem = error
        raise CorruptedFile(f"messages of queue {queue} are damaged: {problem}; {WHAT_TO_DO}")

    def _read_part(self, whole: StoredRun) -> ReadMessages:
        """Read the first messages of ``whole`` that fit into a batch, at least one. Raises CorruptedFile."""
        if isinstance(whole.bodies, BodyPlace):
            part, lengths = whole, array("I", [whole.bodies.length])
        else:
            table, row = self._cache.table(whole.file, whole.bodies), whole.first - whole.base
            ends = table.ends(whole.bodies)
            start = ends[row] - table.lengths[row]
            stop = min(row + min(whole.length, _BATCH_ROWS), max(row + 1, bisect_right(ends, start + _BATCH_BYTES)))
            part, lengths = whole.part(whole.first, stop - row), table.lengths[row:stop]
        if not self._with_body:
            return ReadMessages(part, lengths, [])
        # A message with a body of this size is always read separately.
        if self._largest_body is not None and lengths[0] > self._largest_body:
            id_ = message_id(part.branch, part.in_branch)
            large = f"message {id_} of queue {part.queue} has a body of {lengths[0]:,} bytes, more than "
            raise InvalidArgument(large, Argument("largest_body"), f", {self._largest_body:,}")
        return ReadMessages(part, lengths, self._cache.bodies(part, part.first, part.length, memoryview))

    def close(self) -> None:
        """Close the files, and the space if it was opened."""
        if self._opened is not None:
            self._opened.close()
        self._disk.close_all()


def _neighbours(runs: Iterator[StoredRun], ends: Sequence[int]) -> Iterator[list[StoredRun]]:
    """Yield groups of runs with neighbouring rows. A group fits into a batch. ``ends``: the end of each body."""
    group: list[StoredRun] = []
    begin = stop = 0  # rows
    for one in runs:
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
