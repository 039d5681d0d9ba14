"""Write a branch's file in ``active/``: the sections first, then the header at the front, and the number last.

A small branch takes one ``write``. A large branch streams: the writer first leaves room at the front, and writes the
header into this room last. If the header is larger than the room, the sections move to a second file.
"""

import logging

from spool.disk.content import chunks, unlink_unless_gone, write_chunks
from spool.disk.disk import Disk
from spool.disk.recycler import Recycler
from spool.format.header import CLASS_BYTES, Header, SectionEntry, encode_header
from spool.format.reader import FileContents
from spool.format.table import Table
from spool.format.writer import writer_name
from spool.log.write_set import WriteSet
from spool.model import layout
from spool.model.xid import FORMATS_USED_ONCE, Xid
from spool.runtime.async_exceptions import raise_if_torn

log = logging.getLogger("spool")

_STREAMED_HEADER_ROOM = 64 << 10
_NO_HEADER = Header(0, 0.0, {})


class CommitFileWriter:
    """The file of one branch during the writing. The caller holds the xid's lock or owns the name.

    number: the number of the file, or None. Once the file has a number, the writer can no longer roll the branch back.
    tables: the tables of the written sections.
    recycled: the name in ``free/`` of the file that this file overwrote, or "".
    """

    handle: int | None = None
    number: int | None = None
    streamed, recycled = False, ""
    _header, _encoded = _NO_HEADER, b""
    _end = 0  # the end of the sections of a streamed file

    def __init__(self, disk: Disk, xid: Xid, header_room: int | None = None) -> None:
        self.disk = disk
        self.xid = xid
        self.name = layout.active(xid)
        self.tables: list[Table] = []
        self._entries: list[SectionEntry] = []  # (the writer does not know their offsets before the header is encoded)
        self._room = header_room or _STREAMED_HEADER_ROOM

    def contents(self, number: int) -> FileContents:
        """Return the contents that a reader gets from the complete file with this number."""
        new = tuple.__new__  # (NamedTuple's own ``__new__`` runs Python code)
        header, encoded = self._header, self._encoded
        sections: list[SectionEntry] = []
        end = length = len(encoded)
        for _, table_bytes, checksum, bodies_bytes, messages in header.sections:
            sections += (new(SectionEntry, (end, table_bytes, checksum, bodies_bytes, messages)),)
            end += table_bytes + bodies_bytes
        checksum = int.from_bytes(encoded[-4:], "big")
        fields = number, *header[1:6], tuple(sections), *header[7:9], length, end, checksum
        return new(FileContents, (new(Header, fields), tuple(self.tables)))

    def stream(self, batch: WriteSet) -> None:
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
        self, batch: WriteSet, time: float, durable_mark: int, *, flushed: bool = True, pool: Recycler | None = None
    ) -> None:
        """Write the rest of the batch, and the header, with the number 0.

        Args:
            time: seconds since the epoch.
            durable_mark: the durable number from the last read of the counters. An older number is also valid.
            flushed: whether the file will be flushed.
            pool: the recycled files, one of which the file may overwrite, because it will get a number or a mark.
        """
        if self.handle is not None:
            batch.close_section()
            self.stream(batch)
        sections = batch.encoded()
        tables, entries, parts, size = self.tables[:], self._entries[:], [b""], 0
        for table, entry, pieces in sections:
            tables += (table,)
            entries += (entry,)
            parts += pieces
            size += entry.table_bytes + entry.bodies_bytes
        fields = (
            0, time, writer_name(), tuple(batch.branches), tuple(batch.adopts), batch.supersedes, tuple(entries),
            durable_mark, flushed,
        )  # fmt: skip
        header = tuple.__new__(Header, (*fields, 0, 0, 0))
        if self.streamed:
            assert self.handle is not None
            encoded = encode_header(header, room=self._room)
            if len(encoded) > self._room:
                self._move_sections(len(encoded))
            self.disk.write_at(self.handle, 0, encoded)
        else:
            encoded = encode_header(header, beside=size if flushed and pool is not None else None)
            size += len(encoded)
            taken = None
            if pool is not None:
                xid = self.xid  # (an old file of a branch must not look like the vote of a new one with the same xid)
                unlike = b"" if xid[0] in FORMATS_USED_ONCE else str(xid).encode()
                taken = pool.take(self.name, size, keep=batch.files_to_leave, unlike=unlike)
            if taken is None:
                self.handle, self.recycled = self.disk.create(self.name), ""
            else:
                self.handle, there, self.recycled = taken
                if size != there:
                    encoded = self._fit(header, encoded, size, there)
            parts[0] = encoded
            self.disk.write_at(self.handle, 0, b"".join(parts))
            self.tables, self._entries = tables, entries
        self._header, self._encoded = header, encoded

    def _fit(self, header: Header, encoded: bytes, size: int, there: int) -> bytes:
        """Pad the header so that the file gets the length of the recycled file. If the recycled file is much longer,
        truncate it instead."""
        assert self.handle is not None
        if size < there <= size + max(CLASS_BYTES, size // 8):
            return encode_header(header, room=len(encoded) + there - size)
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
