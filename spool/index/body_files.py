"""The files in which messages lie: a bounded cache of open descriptors, headers and tables of contents.

A name, or a descriptor, can lead to another file at any time (files move, and the recycler writes old files anew). So
every read compares a checksum: the header's with that of the ``FileRef``, a table's and a body's with what names them.
"""

import zlib
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from spool.disk.disk import Disk
from spool.errors import CorruptedFile
from spool.format.header import Header, SectionEntry
from spool.format.reader import BodyPlace, FileContents, body_place, cannot_open, read_header
from spool.format.table import CompactedTable, Table, decode_table, search_keys
from spool.index.commit import FileRef
from spool.model import layout

_CHUNK_BYTES = 1 << 20  # of bodies, in one read
_MAX_OPEN = 32
_MAX_TABLES = 512
_MAX_MESSAGES = 65_536  # in all tables that are kept, unless the last one alone has more


class _OpenFile(NamedTuple):
    handle: int
    checksum: int


class FileCache:
    """Reads tables and bodies of messages; the files that were read last stay open. Caller holds the mutex.

    Raises CorruptedFile, naming the file, if it is missing or is not what it was.
    """

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self._open: dict[tuple[int, int], _OpenFile] = {}
        self._headers: dict[FileRef, Header] = {}
        self._tables: dict[tuple[FileRef, int], Table] = {}
        self._messages = 0

    # -- tables -----------------------------------------------------------------------------------------------------

    def table(self, file: FileRef, section: int) -> Table:
        """Return one section's table of contents."""
        table = self._tables.get((file, section))
        if table is None:
            entry = self._entry(file, section)
            table = decode_table(self._proven_table(file, entry), entry)
        self._keep(file, section, table)
        return table

    def compacted_table(self, file: FileRef, section: int) -> CompactedTable:
        """Return the table of a section that compaction wrote."""
        table = self.table(file, section)
        if not isinstance(table, CompactedTable):
            raise CorruptedFile(f"{_name(file)}: it is not the file that it was")
        return table

    def _keep(self, file: FileRef, section: int, table: Table) -> None:
        """Keep a table as the one that was used last; drop those that were not used for longest."""
        known = self._tables.pop((file, section), None)
        self._tables[file, section] = table
        self._messages += len(table.lengths) if known is None else 0
        while len(self._tables) > 1 and (self._messages > _MAX_MESSAGES or len(self._tables) > _MAX_TABLES):
            self._messages -= len(self._tables.pop(next(iter(self._tables))).lengths)

    def keys(self, file: FileRef, entry: SectionEntry) -> tuple[bytes, bytes]:
        """Return what a compacted section is searched by. The table is proven, but not decoded."""
        return search_keys(self._proven_table(file, entry))

    def remember(self, file: FileRef, contents: FileContents) -> None:
        """Keep the header and the tables of a file that was just read or written."""
        if contents.header.messages:
            self._remember_header(file, contents.header)
            for section, (table, entry) in enumerate(zip(contents.tables, contents.header.sections, strict=True)):
                if table.lengths and len(table.lengths) == entry.messages:
                    self._keep(file, section, table)

    def _entry(self, file: FileRef, section: int) -> SectionEntry:
        header = self._headers.get(file)
        if header is None:
            header = self._read_header(file)
            self._remember_header(file, header)
        return header.sections[section]

    def _remember_header(self, file: FileRef, header: Header) -> None:
        self._headers[file] = header
        if len(self._headers) > _MAX_TABLES:
            del self._headers[next(iter(self._headers))]

    def _read_header(self, file: FileRef) -> Header:
        wrong = "it is not the file that it was"
        for fresh in (False, True):
            try:
                header = read_header(self.disk, self._file(file, fresh))
                if header.checksum == file.checksum:
                    return header
            except CorruptedFile as error:
                wrong = str(error)
        raise CorruptedFile(f"{_name(file)}: {wrong}")

    def _proven_table(self, file: FileRef, entry: SectionEntry) -> bytes:
        for fresh in (False, True):
            data = self.disk.read_at(self._file(file, fresh), entry.offset, entry.table_bytes)
            if len(data) == entry.table_bytes and zlib.crc32(data) == entry.table_checksum:
                return data
        raise CorruptedFile(f"{_name(file)}: a table of contents does not match its checksum")

    # -- bodies -----------------------------------------------------------------------------------------------------

    def bodies(self, file: FileRef, section: int, row: int, count: int) -> list[bytes]:
        """Return ``count`` neighbouring bodies, from a section's ``row`` on."""
        table, entry, rows = self.table(file, section), self._entry(file, section), slice(row, row + count)
        alone = len(table.lengths) == 1  # as most sections of a queue's own are: then nothing is to be computed
        ends: Sequence[int] = (entry.offset + entry.size,) if alone else table.ends(entry)
        for fresh in (False, True):
            try:
                handle = self._file(file, fresh)
                return read_bodies(self.disk, handle, ends[rows], table.lengths[rows], table.checksums[rows])
            except CorruptedFile as error:
                if fresh:
                    raise CorruptedFile(f"{_name(file)}: {error}") from None
        raise AssertionError("unreachable")

    def place(self, file: FileRef, section: int, row: int) -> BodyPlace:
        """Return where one body lies."""
        return body_place(self.table(file, section), self._entry(file, section), row)

    def unproven(self, file: FileRef, section: int, row: int) -> bytes:
        """Return the bytes of a body, whatever its checksum says."""
        offset, length, _ = self.place(file, section, row)
        return self.disk.read_at(self._file(file, fresh=True), offset, length)

    # -- descriptors ------------------------------------------------------------------------------------------------

    def _file(self, file: FileRef, fresh: bool) -> int:
        key = (file.number, file.adoption)
        opened = self._open.pop(key, None)
        if opened is not None and (fresh or opened.checksum != file.checksum):
            self.disk.close(opened.handle)
            opened = None
        if opened is None:
            opened = _OpenFile(self._open_one(file), file.checksum)
        self._open[key] = opened  # last used, last in the dict
        if len(self._open) > _MAX_OPEN:
            oldest = next(iter(self._open))
            self.disk.close(self._open.pop(oldest).handle)
        return opened.handle

    def _open_one(self, file: FileRef) -> int:
        name = layout.committed(file.number, file.adoption) if file.adoption else layout.COMMITTED_FILE % file.number
        # An adopted branch moves from prepared/ to committed/, at any time: look there in the same direction.
        prepared = None if file.xid is None else layout.prepared(file.xid)
        for place in (name,) if prepared is None else (prepared, name, prepared):
            try:
                return self.disk.open(place)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise cannot_open(place, error) from None
        raise CorruptedFile(f"{name}: it is missing")

    def close(self) -> None:
        for opened in self._open.values():
            self.disk.close(opened.handle)
        self._open.clear()

    def forget(self, number: int, adopted: int) -> None:
        """Close the files of a commit that are about to be removed: its own, and those of ``adopted`` branches."""
        for adoption in range(adopted + 1):
            opened = self._open.pop((number, adoption), None)
            if opened is not None:
                self.disk.close(opened.handle)


def _name(file: FileRef) -> str:
    return layout.committed(file.number, file.adoption)


def read_bodies(
    disk: Disk, handle: int, ends: Sequence[int], lengths: Sequence[int], checksums: Sequence[int]
) -> list[bytes]:
    """Read the bodies of neighbouring messages, given the offsets of their ends, in as few reads as possible.

    Raises CorruptedFile if a body does not match its checksum.
    """
    bodies: list[bytes] = []
    at = 0
    while at < len(ends):
        start = ends[at] - lengths[at]
        stop = max(at + 1, bisect_right(ends, start + _CHUNK_BYTES))
        data = disk.read_at(handle, start, ends[stop - 1] - start)
        places = zip(ends[at:stop], lengths[at:stop], strict=True)
        piece = [data[end - length - start : end - start] for end, length in places]
        if list(map(zlib.crc32, piece)) != list(checksums[at:stop]):
            raise CorruptedFile(
                f"a body between the offsets {start} and {start + len(data)} does not match its checksum"
            )
        bodies += piece
        at = stop
    return bodies
