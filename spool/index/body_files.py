"""The files in which messages lie: a bounded number of open descriptors and tables of contents, of those read last.

Names and descriptors can carry other content at any time: the checksum of the header that a
source names decides, on every read. Not thread-safe: callers hold the store's mutex.
"""

import zlib
from typing import NamedTuple

from spool.disk.disk import Disk
from spool.errors import CorruptedFile
from spool.format.format import Header, SectionEntry, Table, decode_table, search_keys
from spool.format.reader import BodyPlace, FileContents, body_place, open_file, read_bodies, read_header
from spool.index.commit import Source
from spool.model import layout

_MAX_OPEN = 32
_MAX_TABLES = 512
_MAX_MESSAGES = 65_536  # in all tables that are kept, unless the last one alone has more


class _OpenFile(NamedTuple):
    handle: int
    checksum: int


class Sources:
    """Tables and bodies by the file that they lie in. CorruptedFile, naming the file, if it is not what it was."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self._open: dict[tuple[int, int], _OpenFile] = {}
        self._headers: dict[Source, Header] = {}
        self._tables: dict[tuple[Source, int], Table] = {}
        self._messages = 0

    # -- tables -----------------------------------------------------------------------------------------------------

    def table(self, source: Source, section: int) -> Table:
        """One section's table of contents."""
        found = self._tables.get((source, section))
        if found is None:
            entry = self._entry(source, section)
            found = decode_table(self._proven_table(source, entry), entry)
        self._keep(source, section, found)
        return found

    def _keep(self, source: Source, section: int, table: Table) -> None:
        """As the one that was used last."""
        known = self._tables.pop((source, section), None)
        self._tables[source, section] = table
        self._messages += len(table.lengths) if known is None else 0
        while len(self._tables) > 1 and (self._messages > _MAX_MESSAGES or len(self._tables) > _MAX_TABLES):
            self._messages -= len(self._tables.pop(next(iter(self._tables))).lengths)

    def keys(self, source: Source, entry: SectionEntry) -> tuple[bytes, bytes]:
        """What a swept section is searched by, alone: the table is proven, but not unpacked."""
        return search_keys(self._proven_table(source, entry))

    def remember(self, source: Source, image: FileContents) -> None:
        """An image that was just read or written."""
        if image.header.messages:
            self._remember_header(source, image.header)
            for section, (table, entry) in enumerate(zip(image.tables, image.header.sections, strict=True)):
                if table.lengths and len(table.lengths) == entry.messages:
                    self._keep(source, section, table)

    def _entry(self, source: Source, section: int) -> SectionEntry:
        header = self._headers.get(source)
        if header is None:
            header = self._read_header(source)
            self._remember_header(source, header)
        return header.sections[section]

    def _remember_header(self, source: Source, header: Header) -> None:
        self._headers[source] = header
        if len(self._headers) > _MAX_TABLES:
            del self._headers[next(iter(self._headers))]

    def _read_header(self, source: Source) -> Header:
        wrong = "it is not the file that it was"
        for fresh in (False, True):
            try:
                header = read_header(self.disk, self._file(source, fresh))
                if header.checksum == source.checksum:
                    return header
            except CorruptedFile as error:
                wrong = str(error)
        raise CorruptedFile(f"{_name(source)}: {wrong}")

    def _proven_table(self, source: Source, entry: SectionEntry) -> bytes:
        for fresh in (False, True):
            data = self.disk.read_at(self._file(source, fresh), entry.offset, entry.table_bytes)
            if len(data) == entry.table_bytes and zlib.crc32(data) == entry.table_checksum:
                return data
        raise CorruptedFile(f"{_name(source)}: a table of contents does not match its checksum")

    # -- bodies -----------------------------------------------------------------------------------------------------

    def bodies(self, source: Source, section: int, row: int, count: int) -> list[bytes]:
        """``count`` neighbouring bodies from the section's ``row`` on; a file that moved meanwhile is found again."""
        table, rows = self.table(source, section), slice(row, row + count)
        ends = table.ends(self._entry(source, section))
        for fresh in (False, True):
            try:
                handle = self._file(source, fresh)
                return read_bodies(self.disk, handle, ends[rows], table.lengths[rows], table.checksums[rows])
            except CorruptedFile as error:
                if fresh:
                    raise CorruptedFile(f"{_name(source)}: {error}") from None
        raise AssertionError("unreachable")

    def place(self, source: Source, section: int, row: int) -> BodyPlace:
        """Where one body lies."""
        return body_place(self.table(source, section), self._entry(source, section), row)

    def unproven(self, source: Source, section: int, row: int) -> bytes:
        """A body as it lies there, whatever its checksum says; CorruptedFile if its file is missing."""
        offset, length, _ = self.place(source, section, row)
        return self.disk.read_at(self._file(source, fresh=True), offset, length)

    # -- descriptors ------------------------------------------------------------------------------------------------

    def _file(self, source: Source, fresh: bool) -> int:
        key = (source.number, source.adoption)
        found = self._open.pop(key, None)
        if found is not None and (fresh or found.checksum != source.checksum):
            self.disk.close(found.handle)
            found = None
        if found is None:
            found = _OpenFile(self._open_one(source), source.checksum)
        self._open[key] = found  # last used, last in the dict
        if len(self._open) > _MAX_OPEN:
            oldest = next(iter(self._open))
            self.disk.close(self._open.pop(oldest).handle)
        return found.handle

    def _open_one(self, source: Source) -> int:
        name = layout.committed(source.number, source.adoption)
        # An adopted branch lies in prepared/ until somebody moves it: look there first, in the direction files move.
        prepared = None if source.xid is None else layout.prepared(source.xid)
        for place in (name,) if prepared is None else (prepared, name, prepared):
            try:
                return open_file(self.disk, place)
            except FileNotFoundError:
                continue
        raise CorruptedFile(f"{name}: it is missing")

    def close(self) -> None:
        for file in self._open.values():
            self.disk.close(file.handle)
        self._open.clear()

    def forget(self, number: int, adopted: int) -> None:
        """The number's files, its own and ``adopted`` branches, are about to go."""
        for adoption in range(adopted + 1):
            found = self._open.pop((number, adoption), None)
            if found is not None:
                self.disk.close(found.handle)


def _name(source: Source) -> str:
    return layout.committed(source.number, source.adoption)
