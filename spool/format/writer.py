"""A branch's file in ``active/``: sections, then the header in front of them, then, once, a number.

A small branch is one ``write``. A large one streams: the header's room is kept free at the front and filled last;
should the header turn out larger than the room, the sections move to a second file.
"""

import logging
import os
import sys
from typing import Any

from spool.disk.content import chunks, write_chunks
from spool.disk.disk import Disk
from spool.disk.recycler import Recycler
from spool.format.batch import CommitBatch
from spool.format.header import Header, SectionEntry, encode_header, stamp
from spool.format.table import Table
from spool.model import layout
from spool.model.xid import Xid

log = logging.getLogger("spool")

_STREAMED_HEADER_ROOM = 64 << 10
_PADDED_BYTES = 4 << 10


def writer_name() -> dict[str, object]:
    """Describe the writing process for a file's header. It is information only: nothing depends on it."""
    return {"pid": os.getpid(), "program": os.path.basename(sys.argv[0] or "python")[:64]}


def new_header(time: float, durable_mark: int, **fields: Any) -> Header:
    """Make the header of a new file, without a number.

    Args:
        time: seconds since the epoch.
        durable_mark: the durable number of any counters page that was read; an older one is as true.
        fields: further fields of ``Header``.
    """
    return Header(number=0, time=time, writer=writer_name(), durable_mark=durable_mark, **fields)


class CommitFileWriter:
    """The file of one branch while it is written; the caller holds the xid's lock or owns the name."""

    def __init__(self, disk: Disk, xid: Xid, header_room: int | None = None) -> None:
        self.disk = disk
        self.xid = xid
        self.name = layout.active(xid)
        self.handle: int | None = None
        self.number: int | None = None  # once the file has it, its outcome is no longer the writer's to undo
        self.header: Header | None = None  # as it stands in the file, once that is complete
        self.tables: list[Table] = []
        self.streamed = False
        self._entries: list[SectionEntry] = []
        self._room = header_room or _STREAMED_HEADER_ROOM
        self._end = 0

    def stream(self, batch: CommitBatch) -> None:
        """Write the batch's closed sections, and let go of their bodies."""
        if not batch.sections:
            return
        if self.handle is None:
            self.handle = self.disk.create(self.name)
            self.streamed = True
            self._end = self._room
        for section in batch.sections:
            self.disk.write_at(self.handle, self._end, b"".join(section.parts))
            self._place(section.table, section.entry, self._end)
        batch.sections.clear()

    def complete(self, header: Header, batch: CommitBatch, pool: Recycler | None = None) -> Header:
        """Write what is left and the header; returns the header as it stands in the file (number 0).

        ``pool``: where to look for a file to overwrite, for a file that will carry a number.
        """
        batch.close_section()
        if self.handle is not None:
            self.stream(batch)
            return self._put_header(header)
        header = header._replace(sections=tuple(section.entry for section in batch.sections))
        encoded = encode_header(header)
        size = len(encoded)
        for section in batch.sections:
            size += section.entry.table_bytes + section.entry.bodies_bytes
        keep = 2 if batch.messages else 1 if batch.commands else 0  # on a full disk what removes must still be able to
        taken = None if pool is None else pool.take(self.name, size, keep=keep)
        if taken is not None:
            self.handle, there = taken
            encoded = self._fit(header, encoded, size, there)
        else:
            self.handle = self.disk.create(self.name)
        parts = [encoded]
        for section in batch.sections:
            parts += section.parts
        self.disk.write_at(self.handle, 0, b"".join(parts))
        self._end = len(encoded)
        for section in batch.sections:
            self._place(section.table, section.entry, self._end)
        batch.sections.clear()
        return self._finished(header, encoded)

    def _fit(self, header: Header, encoded: bytes, size: int, there: int) -> bytes:
        """Pad the header so that the file ends where the recycled one did; truncate a recycled file that is much
        longer."""
        assert self.handle is not None
        if size < there <= size + max(_PADDED_BYTES, size // 8):
            padded = encode_header(header, room=len(encoded) + there - size)
            size += len(padded) - len(encoded)
            encoded = padded
        if size < there:
            self.disk.truncate(self.handle, size)
        return encoded

    def _put_header(self, header: Header) -> Header:
        assert self.handle is not None
        encoded = encode_header(header._replace(sections=tuple(self._entries)), room=self._room)
        if len(encoded) > self._room:
            self._move_sections(len(encoded))
        self.disk.write_at(self.handle, 0, encoded)
        return self._finished(header, encoded)

    def _move_sections(self, start: int) -> None:
        """Move the sections to a new file, behind a larger header."""
        assert self.handle is not None
        old = self.handle
        self.disk.unlink(self.name)
        self.handle = self.disk.create(self.name)
        write_chunks(self.disk, self.handle, chunks(self.disk, old, self._room, self._end), start)
        self.disk.close(old)
        shift = start - self._room
        self._entries = [entry._replace(offset=entry.offset + shift) for entry in self._entries]
        self._end += shift

    def _place(self, table: Table, entry: SectionEntry, offset: int) -> None:
        self.tables.append(table)
        self._entries.append(entry._replace(offset=offset))
        self._end = offset + entry.size

    def _finished(self, header: Header, encoded: bytes) -> Header:
        self.header = header._replace(
            sections=tuple(self._entries),
            length=len(encoded),
            size=self._end,
            checksum=int.from_bytes(encoded[-4:], "big"),
        )
        return self.header

    def stamp(self, number: int) -> None:
        """Write the commit's number into the finished file."""
        assert self.handle is not None
        self.disk.write_at(self.handle, *stamp(number))

    def close(self) -> None:
        if self.handle is not None:
            self.disk.close(self.handle)
            self.handle = None

    def abandon(self) -> None:
        """Remove the file, if it still has its first name. If that fails, the process that finds it without an owner
        removes it."""
        if self.handle is not None:
            self.close()
            try:
                self.disk.unlink(self.name)
            except OSError as error:
                log.warning("%s stays behind: %s", self.name, error)
