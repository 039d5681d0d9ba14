"""Read bodies and tables from the files of messages, with a bounded cache of open files and of tables.

A name or a descriptor can lead to another file at any time, because files move and the recycler overwrites old files.
So every read is compared with a checksum that the index has kept since it applied the commit. For a section with only
one body, the index keeps the body's checksum. Otherwise the index keeps the table's checksum, and the table has the
checksums of the bodies.
"""

import zlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TypeVar

from spool.disk.content import closed_at_end
from spool.disk.disk import Disk
from spool.errors import CorruptedFile
from spool.format.header import SectionEntry
from spool.format.reader import BodyPlace, FileContents, body_place, cannot_open
from spool.format.table import CompactedTable, Table, decode_table, search_keys
from spool.index.commit import FileRef
from spool.index.run import Run
from spool.index.stored_run import StoredRun
from spool.model import layout

_CHUNK_BYTES = 1 << 20  # the most bytes in one read, unless a single body is larger
_MAX_OPEN = 32
_MAX_TABLES = 512
# The most messages and runs in all cached tables together; the table used last is always kept. Messages with different
# control fields, e.g. results with their correlation ids, are runs of one message, which takes about 1.5 KB.
_MAX_MESSAGES, _MAX_RUNS = 65_536, 32_768


_Body = TypeVar("_Body", bytes, memoryview)
Stored = Run | StoredRun  # neighbouring messages and the places of their bodies


class FileCache:
    """Reads bodies and tables. The cache keeps the most recently used tables and open files. The caller holds the
    mutex.

    Raises CorruptedFile, with the file's name, if a file is missing or was changed.
    """

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self._open: dict[FileRef, int] = {}
        self._tables: dict[tuple[FileRef, SectionEntry], Table] = {}
        self._messages = self._runs = 0
        self._unused: set[tuple[FileRef, SectionEntry]] = set()  # the tables that were not used since ``forget_unused``

    # -- tables -----------------------------------------------------------------------------------------------------

    def table(self, file: FileRef, section: SectionEntry) -> Table:
        """Return one section's table of contents."""
        if (table := self._tables.pop((file, section), None)) is None:
            table = decode_table(self._proven_table(file, section), section)
            self._keep(file, section, table)
        self._tables[file, section] = table  # the table used last is the last in the dict
        if self._unused:
            self._unused.discard((file, section))
        return table

    def compacted_table(self, file: FileRef, section: SectionEntry) -> CompactedTable:
        """Return the table of a section that compaction wrote."""
        table = self.table(file, section)
        if not isinstance(table, CompactedTable):
            raise CorruptedFile(f"{_name(file)}: the file was changed")
        return table

    def _keep(self, file: FileRef, section: SectionEntry, table: Table) -> None:
        """Cache a table; drop the least recently used tables."""
        self._tables[file, section] = table
        self._messages += len(table.lengths)
        self._runs += len(table.runs)
        while len(self._tables) > 1 and (
            self._messages > _MAX_MESSAGES or self._runs > _MAX_RUNS or len(self._tables) > _MAX_TABLES
        ):
            self._drop(next(iter(self._tables)))

    def _drop(self, key: tuple[FileRef, SectionEntry]) -> None:
        table = self._tables.pop(key)
        self._messages -= len(table.lengths)
        self._runs -= len(table.runs)

    def forget_unused(self) -> None:
        """Drop the tables that were not used since the last call, so that a burst of messages holds no memory."""
        for key in self._unused & self._tables.keys():
            self._drop(key)
        self._unused = set(self._tables)

    def keys(self, file: FileRef, section: SectionEntry) -> tuple[bytes, bytes]:
        """Return the search keys of a compacted section. The table is checked, but not decoded."""
        if isinstance(table := self._tables.get((file, section)), CompactedTable):
            return table.ids, table.correlations
        return search_keys(self._proven_table(file, section))

    def remember(self, file: FileRef, contents: FileContents) -> None:
        """Cache the tables of a file that was just read or written. A table of a single message is not cached."""
        for table, section in zip(contents.tables, contents.header.sections, strict=True):
            if len(table.lengths) == section.messages > 1 and (file, section) not in self._tables:
                self._keep(file, section, table)

    def _proven_table(self, file: FileRef, section: SectionEntry) -> bytes:
        for fresh in (False, True):
            data = self.disk.read_at(self._file(file, fresh), section.offset, section.table_bytes)
            if len(data) == section.table_bytes and zlib.crc32(data) == section.table_checksum:
                return data
        raise CorruptedFile(f"{_name(file)}: a table of contents does not match its checksum")

    # -- bodies -----------------------------------------------------------------------------------------------------

    def bodies(self, run: Stored, ordinal: int, count: int, kind: Callable[[bytes], _Body]) -> list[_Body]:
        """Return ``count`` neighbouring bodies of a run, from ``ordinal`` on. ``kind``: see ``read_bodies``."""
        file, where = run.file, run.bodies
        if type(where) is BodyPlace:  # the section has only this message, so only its body is read from the file
            handle = self._open_one(file)
            try:
                body = self.disk.read_at(handle, where.offset, where.length)
            finally:
                self.disk.close(handle)
            if zlib.crc32(body) != where.checksum:
                raise CorruptedFile(f"{_name(file)}: the body at offset {where.offset} does not match its checksum")
            return [kind(body)]
        assert isinstance(where, SectionEntry)
        table, row = self.table(file, where), ordinal - run.base
        rows = slice(row, row + count)
        for fresh in (False, True):
            try:
                handle = self._file(file, fresh)
                places = table.ends(where)[rows], table.lengths[rows], table.checksums[rows]
                return read_bodies(self.disk, handle, *places, kind)
            except CorruptedFile as error:
                if fresh:
                    raise CorruptedFile(f"{_name(file)}: {error}") from None
        raise AssertionError("unreachable")

    def beginning(self, run: Stored, ordinal: int, count: int) -> bytes:
        """Return the first ``count`` bytes of a longer body.

        No checksum proves these bytes. The caller checks afterwards that the file still has the message, because a file
        with messages is never overwritten.
        """
        offset = self.place(run, ordinal).offset
        with closed_at_end(self.disk, self._open_one(run.file)) as handle:
            data = self.disk.read_at(handle, offset, count)
        if len(data) != count:
            raise CorruptedFile(f"{_name(run.file)}: the body at offset {offset} ends early")
        return data

    def place(self, run: Stored, ordinal: int) -> BodyPlace:
        """Return the place of one body."""
        where = run.bodies
        if isinstance(where, BodyPlace):
            return where
        return body_place(self.table(run.file, where), where, ordinal - run.base)

    def unproven(self, run: Stored, ordinal: int) -> bytes:
        """Return the bytes of a body, even if the bytes do not match the checksum."""
        offset, length, _ = self.place(run, ordinal)
        return self.disk.read_at(self._file(run.file, fresh=True), offset, length)

    # -- descriptors ------------------------------------------------------------------------------------------------

    def _file(self, file: FileRef, fresh: bool) -> int:
        handle = self._open.pop(file, None)
        if handle is not None and fresh:
            self.disk.close(handle)
            handle = None
        if handle is None:
            handle = self._open_one(file)
        self._open[file] = handle  # the file used last is the last in the dict
        if len(self._open) > _MAX_OPEN:
            self.disk.close(self._open.pop(next(iter(self._open))))
        return handle

    def _open_one(self, file: FileRef) -> int:
        name = layout.committed(file.number, file.adoption) if file.adoption else layout.COMMITTED_FILE % file.number
        # An adopted branch may move from prepared/ to committed/ at any time. So open the branch in prepared/ first,
        # and try prepared/ once more at the end.
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
        for handle in self._open.values():
            self.disk.close(handle)
        self._open.clear()

    def forget(self, number: int) -> None:
        """Close the files of a commit before their removal: the commit's own file, and the files of adopted
        branches."""
        for file in [file for file in self._open if file.number == number]:
            self.disk.close(self._open.pop(file))


def _name(file: FileRef) -> str:
    return layout.committed(file.number, file.adoption)


def read_bodies(
    disk: Disk, handle: int, ends: Sequence[int], lengths: Sequence[int], checksums: Sequence[int],
    kind: Callable[[bytes], _Body],
) -> list[_Body]:  # fmt: skip
    """Read the bodies of neighbouring messages in as few reads as possible. ``ends``: the end offset of each body.

    ``kind``: ``bytes`` or ``memoryview``. With ``memoryview``, the bodies are views of the read data. The views save a
    copy if the caller joins the bodies.

    Raises CorruptedFile if a body does not match its checksum.
    """
    bodies: list[_Body] = []
    at = 0
    while at < len(ends):
        start = ends[at] - lengths[at]
        stop = max(at + 1, bisect_right(ends, start + _CHUNK_BYTES))
        data = kind(disk.read_at(handle, start, ends[stop - 1] - start))
        places = zip(ends[at:stop], lengths[at:stop], strict=True)
        piece = [data[end - length - start : end - start] for end, length in places]
        if list(map(zlib.crc32, piece)) != list(checksums[at:stop]):
            raise CorruptedFile(f"a body between offsets {start} and {start + len(data)} does not match its checksum")
        bodies += piece
        at = stop
    return bodies
