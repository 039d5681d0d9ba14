"""Read one file of a space to its last byte, and collect all defects of the file."""

import errno
from dataclasses import dataclass, field

from spool.disk import Disk
from spool.errors import CorruptedFile
from spool.format.header import Header
from spool.format.reader import NO_FILE, bad_bodies, open_file, read_header
from spool.format.table import Table, decode_table

_UNREADABLE = (*NO_FILE, errno.EIO, errno.EACCES)


@dataclass
class Examination:
    """The defects of one file.

    header: the header of the file; None if the file cannot be read as a file of messages.
    wrong: why the header is None; otherwise "".
    missing: whether the file does not exist.
    bad_tables: the defect of each damaged table.
    bad_bodies: (ordinal in the file, defect) of each damaged body.
    surplus: the number of bytes after the end that the header names.
    """

    header: Header | None = None
    wrong: str = ""
    missing: bool = False
    bad_tables: list[str] = field(default_factory=list)
    bad_bodies: list[tuple[int, str]] = field(default_factory=list)
    surplus: int = 0


def examine(disk: Disk, name: str) -> Examination:
    """Return the defects of a file. ``name``: the path of the file, relative to the space."""
    try:
        handle = open_file(disk, name)
    except FileNotFoundError:
        return Examination(wrong="it is missing", missing=True)
    except CorruptedFile as error:
        return Examination(wrong=str(error).removeprefix(f"{name}: "))
    except PermissionError as error:
        return Examination(wrong=f"it cannot be read: {error.strerror}")
    try:
        return _examine(disk, handle)
    except CorruptedFile as error:
        return Examination(wrong=str(error))
    except OSError as error:
        if error.errno not in _UNREADABLE:
            raise  # the error does not come from this file
        return Examination(wrong=f"it cannot be read: {error.strerror}")
    finally:
        disk.close(handle)


def _examine(disk: Disk, handle: int) -> Examination:
    header = read_header(disk, handle)
    found = Examination(header, surplus=disk.handle_identity(handle).size - header.size)
    ordinal = 0
    for entry in header.sections:
        try:
            table = decode_table(disk.read_at(handle, entry.offset, entry.table_bytes), entry)
        except CorruptedFile as error:
            found.bad_tables.append(str(error))
            table = Table()
        for row, wrong in bad_bodies(disk, handle, entry.offset + entry.table_bytes, table):
            found.bad_bodies.append((ordinal + row, wrong))
        ordinal += entry.messages
    return found
