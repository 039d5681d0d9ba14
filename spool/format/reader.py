"""Read a file of messages: its header and tables for the index, a single body, or the whole file to verify it.

A name or an open descriptor can lead to other content at any time. So the reader checks every read against a checksum
that it already trusts.
"""

import errno
import logging
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from spool.disk.disk import Disk
from spool.errors import CorruptedFile
from spool.format.header import Header, SectionEntry, decode_header, header_length
from spool.format.table import Table, body_head, decode_table

log = logging.getLogger("spool")

# The errors of an open if the name leads to a directory, a symlink or a socket. Another attempt would also fail.
NO_FILE = (errno.EINVAL, errno.EISDIR, errno.ELOOP, errno.ENXIO)

FIRST_READ_BYTES = 16 << 10
_CHUNK_BYTES = 1 << 20


class FileContents(NamedTuple):
    """The header and the tables of a file, without its bodies."""

    header: Header
    tables: tuple[Table, ...]


def read_header(disk: Disk, handle: int) -> Header:
    """Read the header of a file. Raises CorruptedFile if the header is not whole."""
    return _read_start(disk, handle)[0]


def _read_start(disk: Disk, handle: int) -> tuple[Header, bytes]:
    """Read the header. Return the header and the bytes that were read; a small file is read whole."""
    start = disk.read_at(handle, 0, FIRST_READ_BYTES)
    size = len(start)
    if size == FIRST_READ_BYTES:  # the file may be larger
        size = disk.handle_identity(handle).size
        length = header_length(start)
        if length > len(start):
            start += disk.read_at(handle, len(start), min(length, size) - len(start))
    return decode_header(start, size), start


def read_contents(disk: Disk, handle: int, *, salvage: bool = False) -> FileContents:
    """Read header and tables; a small file takes one read.

    ``salvage``: whether a damaged table counts as empty, so that the messages of other tables can be delivered.
    """
    header, start = _read_start(disk, handle)
    tables: list[Table] = []
    for entry in header.sections:
        end = entry.offset + entry.table_bytes
        inside = end <= len(start)
        data = start[entry.offset : end] if inside else disk.read_at(handle, entry.offset, entry.table_bytes)
        try:
            tables += (decode_table(data, entry),)
        except CorruptedFile:
            if not salvage:
                raise
            tables += (Table(),)
    return FileContents(header, tuple(tables))


def open_file(disk: Disk, name: str) -> int:
    """Open a file for reading. Raises CorruptedFile if the name leads to something other than a regular file."""
    try:
        return disk.open(name)
    except OSError as error:
        raise cannot_open(name, error) from None


def cannot_open(name: str, error: OSError) -> OSError | CorruptedFile:
    """Return the error to raise for a failed open: CorruptedFile if the entry is no regular file."""
    return CorruptedFile(f"{name}: it cannot be opened: {error.strerror}") if error.errno in NO_FILE else error


def contents_of(
    disk: Disk, name: str, *, salvage: bool = False, known: FileContents | None = None
) -> FileContents | None:
    """Return the header and tables of a file; None if the file does not exist. If the file is damaged, raises a
    CorruptedFile that names the file.

    ``known``: contents that were read earlier. The known contents are returned if the file still has the same header.
    """
    try:
        handle = open_file(disk, name)
    except FileNotFoundError:
        return None
    try:
        if known is not None and read_header(disk, handle) == known.header:
            return known
        return read_contents(disk, handle, salvage=salvage)
    except CorruptedFile as error:
        raise CorruptedFile(f"{name}: {error}") from None
    finally:
        disk.close(handle)


def readable_contents(disk: Disk, name: str, known: FileContents | None = None) -> FileContents | None:
    """Return the same as ``contents_of``; for a damaged file log the damage, and return None."""
    try:
        return contents_of(disk, name, known=known)
    except CorruptedFile as error:
        log.error("%s", error)
        return None


class BodyPlace(NamedTuple):
    """The place of one body in its file, and its checksum. Offsets and lengths are in bytes."""

    offset: int
    length: int
    checksum: int


def body_place(table: Table, entry: SectionEntry, row: int) -> BodyPlace:
    """Return the place of one body."""
    end = table.ends(entry)[row]
    return BodyPlace(end - table.lengths[row], table.lengths[row], table.checksums[row])


def prove(disk: Disk, handle: int) -> FileContents:
    """Read and check the whole file: header, tables, and every body with its ``bin`` head. Raises CorruptedFile if any
    part is wrong."""
    contents = read_contents(disk, handle)
    for entry, table in zip(contents.header.sections, contents.tables, strict=True):
        for _, wrong in bad_bodies(disk, handle, entry, table):
            raise CorruptedFile(wrong)
    return contents


def bad_bodies(disk: Disk, handle: int, entry: SectionEntry, table: Table) -> Iterator[tuple[int, str]]:
    """Read every body of a section; yield (row, problem) for each body that does not match its table."""
    places = zip(table.ends(entry), table.lengths, table.checksums, strict=True)
    for row, (end, length, checksum) in enumerate(places):
        offset, head = end - length, body_head(length)
        if disk.read_at(handle, offset - len(head), len(head)) != head:
            yield row, f"the body at offset {offset} has lost its length"
            continue
        crc, left = 0, length
        while left and (data := disk.read_at(handle, offset + length - left, min(left, _CHUNK_BYTES))):
            crc, left = zlib.crc32(data, crc), left - len(data)
        if left:
            yield row, f"the body at offset {offset} ends early"
        elif crc != checksum:
            yield row, f"the body at offset {offset} does not match its checksum"
