"""The format of a decision log, as pure functions between bytes and values.

::

    magic  b"xaspool decisions 1\\n", then the length and the CRC-32 of the header
    header msgpack: [directory, coordinator, [resource, …], {"pid": …, "program": …}], filled with zeros to a multiple
           of 4,096
    slots  32 bytes each: CRC-32 of the rest, magic, place of the slot, serial number of the transaction, and the number
           of slots that were durable when this slot was written

The file has its full size from the beginning, so a decision overwrites zeros, and its flush writes only data. A slot
lies within one sector of the disk. A slot that is unreadable after a crash has one of two causes. Either the slot was
never durable, so no process has acted on the decision, or the slot was damaged later. The durable count of a later slot
tells the two cases apart. The slots of a new file count each other as durable, because the file gets its name only when
the slots are durable.
"""

import struct
import zlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgpack

COORDINATOR_BYTES = 12
SLOTS = 1_024
MAX_FILE_BYTES = 4 << 20
_MAGIC = b"xaspool decisions 1\n"
_HEADER = struct.Struct("<II")
_SLOT = struct.Struct("<I4sQQQ")
_SLOT_MAGIC = b"done"
_BLOCK_BYTES = 4_096
_PATH_ERRORS = "surrogateescape"  # the path of a space may be no UTF-8


class DamagedLogError(ValueError):
    """The bytes are no complete log, or a durable decision was damaged. The error text names the defect."""


class LogContents(NamedTuple):
    """The contents of a log.

    directory: the id of the directory for which the log was written.
    coordinator: the id of the coordinator.
    resources: the names of the resources that the coordinator has used.
    committed: the serial numbers of the transactions that the coordinator decided to commit.
    writer: the pid and the program of the coordinator, as information for people.
    """

    directory: bytes
    coordinator: bytes
    resources: Sequence[str]
    committed: frozenset[int]
    writer: dict[str, object]


def pack_log(contents: LogContents) -> tuple[bytes, int]:
    """Return the bytes of a whole log, and the offset of its first slot. The committed transactions fill the slots."""
    header = [contents.directory, contents.coordinator, list(contents.resources), contents.writer]
    packed = msgpack.packb(header, unicode_errors=_PATH_ERRORS)
    head = _MAGIC + _HEADER.pack(len(packed), zlib.crc32(packed)) + packed
    start = -(-len(head) // _BLOCK_BYTES) * _BLOCK_BYTES
    slots = pack_slots(sorted(contents.committed), 0, len(contents.committed))
    return head.ljust(start, b"\0") + slots.ljust(SLOTS * _SLOT.size, b"\0"), start


def slot_offset(start: int, place: int) -> int:
    """Return the offset of a slot. ``start``: the offset of the first slot."""
    return start + place * _SLOT.size


def pack_slots(serials: Iterable[int], place: int, durable: int) -> bytes:
    """Return the bytes of successive slots. ``place``: the place of the first slot; ``durable``: the number of durable
    slots."""
    found = b""
    for each, serial in enumerate(serials, place):
        body = _SLOT.pack(0, _SLOT_MAGIC, each, serial, durable)[4:]
        found += zlib.crc32(body).to_bytes(4, "little") + body
    return found


def unpack_log(data: bytes) -> LogContents:
    """Return the contents of a log; raises DamagedLogError."""
    if data[: len(_MAGIC)] != _MAGIC:
        raise DamagedLogError("it does not begin like a decision log")
    length, checksum = _HEADER.unpack_from(data.ljust(len(_MAGIC) + _HEADER.size, b"\0"), len(_MAGIC))
    begin = len(_MAGIC) + _HEADER.size
    packed = data[begin : begin + length]
    if len(packed) != length or zlib.crc32(packed) != checksum:
        raise DamagedLogError("the checksum of its header is wrong")
    try:
        directory, coordinator, resources, writer = msgpack.unpackb(packed, unicode_errors=_PATH_ERRORS)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise DamagedLogError(f"its header cannot be decoded: {error}") from None
    is_complete = isinstance(directory, bytes) and isinstance(coordinator, bytes) and isinstance(writer, dict)
    if not is_complete or not isinstance(resources, list) or not all(isinstance(each, str) for each in resources):
        raise DamagedLogError("its header has other fields")
    start = -(-(begin + length) // _BLOCK_BYTES) * _BLOCK_BYTES
    if len(data) < slot_offset(start, SLOTS):
        raise DamagedLogError("its end is missing")
    return LogContents(directory, coordinator, tuple(resources), frozenset(_unpack_slots(data[start:])), writer)


def _unpack_slots(data: bytes) -> set[int]:
    """Return the serial numbers in the slots; raises DamagedLogError if a durable slot cannot be read."""
    serials, known_durable, unreadable = set(), 0, None
    for place in range(SLOTS):
        raw = data[place * _SLOT.size : (place + 1) * _SLOT.size]
        checksum, magic, written_at, serial, durable = _SLOT.unpack(raw)
        if magic == _SLOT_MAGIC and written_at == place and zlib.crc32(raw[4:]) == checksum:
            serials.add(serial)
            known_durable = max(known_durable, durable)
        elif unreadable is None:
            unreadable = place
    if unreadable is not None and unreadable < known_durable:
        raise DamagedLogError(f"the decision in slot {unreadable} is damaged")
    return serials
