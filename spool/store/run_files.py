"""Files of ``run/`` that hold one value: meters, the findings of the last recovery, published metrics, the checkpoint.

Such a file is written under a temporary name and renamed, so that a reader finds a whole file. The file is not flushed,
because its loss does no harm. A checksum detects a file that a power cut left incomplete.
"""

import zlib
from collections.abc import Mapping
from typing import Any

import msgpack

from spool.disk.content import read_start, unlink_if_there, write_new
from spool.disk.disk import FILE_MODE, Disk
from spool.errors import CorruptedFile, NewerFormat
from spool.format import header

_VERSION = 1
_CHECKSUM_BYTES = 4
_MOST_BYTES = 64 << 20
# The errors of a file that cannot be read, or has another value than its reader expects.
UNREADABLE = (CorruptedFile, NewerFormat, *header.UNREADABLE)


def write(disk: Disk, name: str, value: Mapping[str, Any], *, mode: int = FILE_MODE, group: int | None = None) -> None:
    """Replace the file by a value of maps, lists, texts and numbers."""
    # (the name of a file may have any bytes)
    packed = msgpack.packb({"version": _VERSION, **value}, unicode_errors="surrogateescape")
    replace(disk, name, packed, mode=mode, group=group)


def replace(disk: Disk, name: str, packed: bytes, *, mode: int = FILE_MODE, group: int | None = None) -> None:
    """Replace the file by a checksum and these bytes."""
    temporary = f"{name}.tmp"
    unlink_if_there(disk, temporary)
    data = zlib.crc32(packed).to_bytes(_CHECKSUM_BYTES, "big") + packed
    write_new(disk, temporary, data, durable=False)
    if mode != FILE_MODE:
        disk.set_mode(temporary, mode, group)
    disk.rename(temporary, name)


def read(disk: Disk, name: str, most: int = _MOST_BYTES) -> dict[str, Any] | None:
    """Return the value of the file; None if the file does not exist. A file of more than ``most`` bytes is damaged.

    Raises CorruptedFile, NewerFormat, and OSError.
    """
    if disk.identity(name) is None:
        return None
    packed = proven(disk, name, most)
    damaged = CorruptedFile(f"{disk.path(name)} is damaged: delete it, a process with the space open writes it again")
    if packed is None:
        raise damaged
    try:
        value: dict[str, Any] = msgpack.unpackb(packed, use_list=False, unicode_errors="surrogateescape")
        version = value.pop("version")
    except UNREADABLE:
        raise damaged from None
    if version != _VERSION:
        raise NewerFormat(f"{disk.path(name)} was written by another version of xaspool: use the same version here")
    return value


def proven(disk: Disk, name: str, most: int) -> bytes | None:
    """Return the bytes of the file behind their checksum, or None if the file is damaged or longer than ``most``
    bytes."""
    data = read_start(disk, name, most)
    checksum, packed = data[:_CHECKSUM_BYTES], data[_CHECKSUM_BYTES:]
    return packed if zlib.crc32(packed).to_bytes(_CHECKSUM_BYTES, "big") == checksum else None
