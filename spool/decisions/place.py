"""The identity of a directory of decision logs, and the place to which it belongs.

The file ``manager`` has the random id of the directory. Each global transaction id begins with the directory's id. The
file ``place`` names the machine, and an identity of the file ``manager`` that copies of the file do not have. So an
opener recognizes that a directory was copied to another machine, or restored from a backup. Then the directory takes a
new id, because another directory may decide the branches with the former id, and may own the copied logs.

An administrator who knows that no other directory exists may remove the file ``place``. Then the directory also takes a
new id, and its recoveries decide the branches with the former ids as well. But a restored directory may lack some logs.
So a missing log with a former id does not prove a rollback of the log's transactions.

::

    manager  b"xaspool manager 1\\n", then msgpack: [id, [former id, …], [another's id, …]], then the CRC-32 of all
    place    the machine's id, a space, and the identity of the file ``manager``, as one line of text
"""

import os
import zlib
from typing import NamedTuple

import msgpack

from spool.decisions.records import COORDINATOR_BYTES
from spool.disk.content import read_start, replace, unlink_unless_gone
from spool.disk.disk import Disk
from spool.disk.stat import is_same_original
from spool.errors import CorruptedFile

MANAGER, PLACE, UNFINISHED = "manager", "place", ".new"
_MAGIC = b"xaspool manager 1\n"
_MAX_FILE_BYTES = 1 << 16
_MOST_IDS = 1_000


class Identity(NamedTuple):
    """The ids of a directory.

    id: the id of new transactions. If a log with this id is missing, the branches of its coordinator have ended.
    former: earlier ids. This directory also decides the branches with earlier ids.
    others: ids that belong to another directory, from which this directory was copied.
    """

    id: bytes
    former: tuple[bytes, ...] = ()
    others: tuple[bytes, ...] = ()


def identify(disk: Disk) -> Identity:
    """Return the identity of a directory. Writes a new identity for a new directory, and for a moved directory.

    The caller excludes other processes. Raises CorruptedFile.
    """
    if not disk.exists(MANAGER):
        return _take(disk, Identity(_new_id()))
    found = _read(disk)
    earlier = (*found.former, *found.others, found.id)[-_MOST_IDS:]
    if not disk.exists(PLACE):
        return _take(disk, Identity(_new_id(), former=earlier))
    if not _is_in_place(disk):
        return _take(disk, Identity(_new_id(), others=earlier))
    return found


def _new_id() -> bytes:
    return os.urandom(COORDINATOR_BYTES)


def _read(disk: Disk) -> Identity:
    data = read_start(disk, MANAGER, _MAX_FILE_BYTES)
    try:
        if data[: len(_MAGIC)] != _MAGIC or zlib.crc32(data[:-4]) != int.from_bytes(data[-4:], "little"):
            raise ValueError
        id, former, others = msgpack.unpackb(data[len(_MAGIC) : -4])
        found = Identity(id, tuple(former), tuple(others))
        if any(len(each) != COORDINATOR_BYTES for each in (id, *found.former, *found.others)):
            raise ValueError
    except (ValueError, TypeError, msgpack.UnpackException):
        raise CorruptedFile(
            f"{disk.path(MANAGER)} is damaged: restore it from a backup; then remove {disk.path(PLACE)}, too. Without "
            "a backup, decide the branches in doubt with spool-admin transaction"
        ) from None
    return found


def _take(disk: Disk, identity: Identity) -> Identity:
    """Write an identity durably, and bind the identity to its place.

    If the process dies before the second file exists, the next opener begins again, because no transaction has the id
    yet.
    """
    data = _MAGIC + msgpack.packb([identity.id, list(identity.former), list(identity.others)])
    _write_over(disk, MANAGER, data + zlib.crc32(data).to_bytes(4, "little"))
    _write_over(disk, PLACE, f"{disk.machine_id()} {disk.lasting_identity(MANAGER)}\n".encode())
    return identity


def _write_over(disk: Disk, name: str, data: bytes) -> None:
    temporary = f"{name}{UNFINISHED}"
    unlink_unless_gone(disk, temporary)
    replace(disk, name, [data], temporary)


def _is_in_place(disk: Disk) -> bool:
    text = read_start(disk, PLACE, _MAX_FILE_BYTES).decode("ascii", "replace")
    machine, _, original = text.strip().partition(" ")
    return machine == disk.machine_id() and is_same_original(original, disk.lasting_identity(MANAGER))
