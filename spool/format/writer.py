"""Write a branch's file in ``active/``: the sections first, then the header at the front, and the number last.

A small branch takes one ``write``. A large branch streams: the writer first leaves room at the front, and writes the
header into this room last. If the header is larger than the room, the sections move to a second file.
"""

import logging
import os
import sys
from collections.abc import Mapping
from functools import lru_cache

from spool.disk.content import chunks, unlink_unless_gone, write_chunks
from spool.disk.disk import Disk
from spool.disk.recycler import Recycler
from spool.format.batch import CommitBatch
from spool.format.header import CLASS_BYTES, Header, SectionEntry, encode_header, pad_header
from spool.format.reader import FileContents
from spool.format.table import Table
from spool.model import layout
from spool.model.xid import FORMATS_USED_ONCE, Xid
from spool.runtime.tearing import raise_if_torn

log = logging.getLogger("spool")

_STREAMED_HEADER_ROOM = 64 << 10


@lru_cache(maxsize=1)
def writer_name() -> Mapping[str, object]:
    """Describe the writing process for a file's header. Nothing depends on this description."""
    return {"pid": os.getpid(), "program": os.path.basename(sys.argv[0] or "python")[:64]}


os.register_at_fork(after_in_child=writer_name.cache_clear)


def new_header(time: float, durable_mark: int) -> Header:
    """Return the header of a new file without content and without a number. The arguments are as in ``complete``."""
    return Header(number=0, time=time, writer=writer_name(), durable_mark=durable_mark)


class CommitFileWriter:
    """The file of one branch during the writing. The caller holds the xid's lock or owns the name.

    number: the number of the file, or None. Once the file has a number, the writer can no longer roll the branch back.
    tables: the tables of the written sections.
    """

    def __init__(self, disk: Disk, xid: Xid, header_room: int | None = None) -> None:
        self.disk = disk
        self.xid = xid
        self.name = layout.active(xid)
        self.handle: int | None = None
        self.number: int | None = None
        self.tables: list[Table] = []
        self.streamed = False
        self.recycled = ""  # the name in free/ of the file that this file overwrote
        self._header: Header | None = None  # the encoded header, without the offsets of sections
        self._encoded = b""
        self._entries: list[SectionEntry] = []
        self._room = header_room or _STREAMED_HEADER_ROOM
        self._end = 0  # the end of the sections of a streamed file

    @property
    def header(self) -> Header:
        """The header of the complete file, with the number 0."""
        return self.contents(0).header

    def contents(self, number: int) -> FileContents:
        """Return the contents that a reader gets from the complete file with this number."""
        assert self._header is not None
        entries: list[SectionEntry] = []
        new = tuple.__new__  # (NamedTuple's own ``__new__`` runs Python code)
        length = offset = len(self._encoded)
        for _, table_bytes, checksum, bodies_bytes, messages in self._entries:
            entries += (new(SectionEntry, (offset, table_bytes, checksum, bodies_bytes, messages)),)
            offset += table_bytes + bodies_bytes
        _, time, writer, branches, adopts, supersedes, _, mark, flushed, _, _, _ = self._header
        checksum = int.from_bytes(self._encoded[-4:], "big")
        sections = tuple(entries)
        fields = number, time, writer, branches, adopts, supersedes, sections, mark, flushed, length, offset, checksum
        return new(FileContents, (new(Header, fields), tuple(self.tables)))

    def stream(self, batch: CommitBatch) -> None:
        """Write the batch's closed sections, and release the memory of their bodies."""
        if not batch.sections:
            return
        if self.handle is None:
            self.handle = self.disk.create(self.name)
            self.streamed = True
            self._end = self._room
        for table, entry, parts in batch.sections:
            self.disk.write_at(self.handle, self._end, b"".join(parts))
            self.tables.append(table)
            self._entries.append(entry)
            self._end += entry.size
        batch.sections.clear()

    def complete(
        self, batch: CommitBatch, time: float, durable_mark: int, *, flushed: bool = True, pool: Recycler | None = None
    ) -> None:
        """Write the rest of the batch, and the header, with the number 0.

        Args:
            time: seconds since the epoch.
            durable_mark: the durable number from the last read of the counters. An older number is also valid.
            flushed: whether the file will be flushed.
            pool: the recycled files, one of which the file may overwrite, because it will get a number or a mark.
        """
        batch.close_section()
        if self.handle is not None:
            self.stream(batch)
        tables, entries, parts, size = self.tables[:], self._entries[:], [b""], 0
        for table, entry, pieces in batch.sections:
            tables += (table,)
            entries += (entry,)
            parts += pieces
            size += entry.table_bytes + entry.bodies_bytes
        fields = (
            0, time, writer_name(), tuple(batch.branches), tuple(batch.adopts), batch.supersedes,
            tuple(entries), durable_mark, flushed, 0, 0, 0,
        )  # fmt: skip
        header = self._header = tuple.__new__(Header, fields)
        if self.streamed:
            assert self.handle is not None
            encoded = self._encoded = encode_header(header, room=self._room)
            if len(encoded) > self._room:
                self._move_sections(len(encoded))
            self.disk.write_at(self.handle, 0, encoded)
            return
        encoded = encode_header(header, beside=size if flushed and pool is not None else None)
        size += len(encoded)
        taken = None
        if pool is not None:
            xid = self.xid  # (an old file of a branch must not look like the vote of a new branch with the same xid)
            unlike = b"" if xid[0] in FORMATS_USED_ONCE else str(xid).encode()
            taken = pool.take(self.name, size, keep=batch.files_to_leave, unlike=unlike)
        if taken is None:
            self.handle, self.recycled = self.disk.create(self.name), ""
        else:
            self.handle, there, self.recycled = taken
            if size != there:
                encoded = self._fit(encoded, size, there)
        parts[0] = self._encoded = encoded
        self.disk.write_at(self.handle, 0, b"".join(parts))
        self.tables, self._entries, batch.sections = tables, entries, []

    def _fit(self, encoded: bytes, size: int, there: int) -> bytes:
        """Pad the header so that the file gets the length of the recycled file. If the recycled file is much longer,
        truncate it instead."""
        assert self.handle is not None
        if size < there <= size + max(CLASS_BYTES, size // 8):
            return pad_header(encoded, len(encoded) + there - size)
        if size < there:
            self.disk.truncate(self.handle, size)
        return encoded

    def _move_sections(self, start: int) -> None:
        """Move the sections to a new file that has room for the larger header."""
        assert self.handle is not None
        old = self.handle
        self.disk.unlink(self.name)
        self.handle = self.disk.create(self.name)
        write_chunks(self.disk, self.handle, chunks(self.disk, old, self._room, self._end), start)
        self.disk.close(old)

    def close(self) -> None:
        if self.handle is not None:
            self.disk.close(self.handle)
            self.handle = None

    def abandon(self) -> None:
        """Remove the file if it still has its first name. If the removal fails, another process later finds the file
        without an owner, and removes it."""
        if self.handle is not None:
            self.close()
            try:
                unlink_unless_gone(self.disk, self.name)
            except OSError as error:
                raise_if_torn(error)
                log.warning("%s could not be removed: %s", self.name, error)
