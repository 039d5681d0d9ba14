"""One file of a space, read to its last byte: everything that is wrong with it, not only the first thing."""

import errno
from dataclasses import dataclass, field

from spool.disk import Disk
from spool.errors import CorruptedFile
from spool.format.format import Header, Table, decode_table
from spool.format.reader import NO_FILE, bad_bodies, open_file, read_header
from spool.names import plural

_UNREADABLE = (*NO_FILE, errno.EIO, errno.EACCES)


@dataclass
class Proof:
    """``header`` is None if nothing of the file can be believed; then ``wrong`` says why, or it is ``missing``.

    ``bad_tables`` are reasons; ``bad_bodies`` are (ordinal in the file, reason); ``surplus`` is how many bytes follow
    the last one that the header knows of.
    """

    header: Header | None = None
    wrong: str = ""
    missing: bool = False
    bad_tables: list[str] = field(default_factory=list)
    bad_bodies: list[tuple[int, str]] = field(default_factory=list)
    surplus: int = 0

    @property
    def first_wrong(self) -> str:
        """The worst, in words; empty if the file is as it was written."""
        longer = f"{plural(self.surplus, 'byte follows', 'bytes follow')} its end" if self.surplus else ""
        return next(iter([*filter(None, [self.wrong]), *self.bad_tables, *(why for _, why in self.bad_bodies)]), longer)


def examine(disk: Disk, name: str) -> Proof:
    """Read the file of that name."""
    try:
        handle = open_file(disk, name)
    except FileNotFoundError:
        return Proof(wrong="it is missing", missing=True)
    except CorruptedFile as error:
        return Proof(wrong=str(error).removeprefix(f"{name}: "))
    except PermissionError as error:
        return Proof(wrong=f"it cannot be read: {error.strerror}")
    try:
        return _examine(disk, handle)
    except CorruptedFile as error:
        return Proof(wrong=str(error))
    except OSError as error:
        if error.errno not in _UNREADABLE:
            raise  # of no file's making
        return Proof(wrong=f"it cannot be read: {error.strerror}")
    finally:
        disk.close(handle)


def _examine(disk: Disk, handle: int) -> Proof:
    header = read_header(disk, handle)
    proof = Proof(header, surplus=disk.handle_identity(handle).size - header.size)
    ordinal = 0
    for entry in header.sections:
        try:
            table = decode_table(disk.read_at(handle, entry.offset, entry.table_bytes), entry)
        except CorruptedFile as error:
            proof.bad_tables.append(str(error))
            table = Table()
        for row, wrong in bad_bodies(disk, handle, entry.offset + entry.table_bytes, table):
            proof.bad_bodies.append((ordinal + row, wrong))
        ordinal += entry.messages
    return proof
