"""The numbers that live processes share, in ``run/counters``: positions in the one order of commits, and versions.

*issued* and *published* are stored twice, each copy with a checksum. Copies that differ mean that their writer died
between the two stores: *issued* is then the larger (it may have been given out), *published* the smaller (it may not
be visible yet), and the next store writes both. A counter is stored only under the lock that makes the
process its only writer; the callers take that lock.
"""

import struct
import zlib
from functools import lru_cache
from typing import Self

from spool.coordination.locks import open_shared
from spool.disk.disk import Disk
from spool.errors import SpaceStopped
from spool.model.layout import COUNTERS

_CELL = struct.Struct("<QI4x")
_BOOT_BYTES = 64
_STOP_OFFSET = _BOOT_BYTES
_SUSPECT_OFFSET = _STOP_OFFSET + 1
_CELLS_OFFSET = 128
_ISSUED, _PUBLISHED, _DURABLE, _PREPARED, _SETTINGS, _OWNERS = range(0, 12, 2)  # each has two cells
_SETTINGS_AT = slice(_CELLS_OFFSET + _SETTINGS * _CELL.size, _CELLS_OFFSET + (_SETTINGS + 2) * _CELL.size)
_SIZE = _CELLS_OFFSET + 12 * _CELL.size


class CounterPage:
    """All counters at one moment, from one read."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = data

    def check(self) -> Self:
        """Return this page. Raises SpaceStopped if a flush failed in any process."""
        if self._data[_STOP_OFFSET] == 1:  # (as ``is_stopped``: each step asks this)
            raise SpaceStopped(STOPPED_TEXT)
        return self

    @property
    def is_stopped(self) -> bool:
        return self._data[_STOP_OFFSET] == 1

    @property
    def is_suspect(self) -> bool:
        """A flush failed earlier in this boot: what directories seem to hold may not be on the disk."""
        return self._data[_SUSPECT_OFFSET] == 1

    @property
    def boot_id(self) -> str:
        return self._data[:_BOOT_BYTES].rstrip(b"\0").decode("ascii", "replace")

    @property
    def issued(self) -> int:
        """The highest number given out; exact only under the number lock."""
        return max(_pair(self._data, _ISSUED))

    @property
    def published(self) -> int:
        """Every commit up to this number is visible to all."""
        return min(_pair(self._data, _PUBLISHED))

    @property
    def durable(self) -> int:
        """Every commit up to this number was flushed."""
        return min(_pair(self._data, _DURABLE))

    @property
    def prepared(self) -> int:
        """The version of the list of prepared branches."""
        return max(_pair(self._data, _PREPARED))

    @property
    def settings(self) -> int:
        """The version of space.toml."""
        return max(_pair(self._data, _SETTINGS))

    @property
    def settings_cells(self) -> bytes:
        """As it is stored: equal bytes are an equal version, and cheaper to compare."""
        return self._data[_SETTINGS_AT]

    @property
    def owner(self) -> int:
        """The last owner's number that was given out."""
        return max(_pair(self._data, _OWNERS))


class Counters:
    """Reads are one ``pread``; a store writes both copies, one after the other in one ``pwrite``."""

    def __init__(self, disk: Disk, *, make: bool) -> None:
        self.disk = disk
        self.handle = open_shared(disk, COUNTERS, make=make)
        self._stopped_here = False

    def read(self) -> CounterPage:
        data = self.disk.read_at(self.handle, 0, _SIZE).ljust(_SIZE, b"\0")
        if self._stopped_here:
            data = data[:_STOP_OFFSET] + b"\x01" + data[_STOP_OFFSET + 1 :]
        return CounterPage(data)

    def store_issued(self, number: int) -> None:
        self._store(_ISSUED, _packed(number))

    def store_published(self, number: int, *, durable: bool) -> None:
        """Store *published*; with ``durable``, also that every commit up to it was flushed. Caller holds the number's
        byte."""
        self._store(_PUBLISHED, _packed(number) + (_packed(number) if durable else b""))

    def store_durable(self, number: int) -> None:
        self._store(_DURABLE, _packed(number))

    def bump_prepared(self) -> None:
        self._store(_PREPARED, _packed(self.read().prepared + 1))

    def bump_settings(self) -> None:
        self._store(_SETTINGS, _packed(self.read().settings + 1))

    def store_owner(self, number: int) -> None:
        """Store the last owner's number. The caller holds the number lock, and that owner's bytes."""
        self._store(_OWNERS, _packed(number))

    def stop(self) -> None:
        """Stop the space, because a flush failed: no process may publish or commit until one that is alone opens it."""
        self._stopped_here = True  # first: whatever becomes of the write, and for as long as this space is open
        self.disk.write_at(self.handle, _STOP_OFFSET, b"\x01")

    def start(self, *, issued: int, published: int, durable: int, suspect: bool = False) -> None:
        """Store what an opener that is alone found, and clear the stop flag. The versions go on, the owners begin anew.

        The boot id comes last: a process that finds it believes the rest.
        """
        head = bytearray(_CELLS_OFFSET)
        head[_SUSPECT_OFFSET] = suspect
        self.disk.write_at(self.handle, 0, bytes(head))
        self.store_issued(issued)
        self.store_published(published, durable=False)
        self.store_durable(durable)
        self.bump_prepared()
        self.bump_settings()
        self.store_owner(0)
        self.disk.write_at(self.handle, 0, self.disk.boot_id().encode("ascii").ljust(_BOOT_BYTES, b"\0"))

    def _store(self, cell: int, packed: bytes) -> None:
        self.disk.write_at(self.handle, _CELLS_OFFSET + cell * _CELL.size, packed)


STOPPED_TEXT = (
    "the space has stopped, because a flush failed, and what the disk holds is unknown: "
    "close it in every process, look at the disk, then open it again"
)


def _pair(page: bytes, cell: int) -> tuple[int, int]:
    start = _CELLS_OFFSET + cell * _CELL.size
    first = _value(page[start : start + _CELL.size])
    if page[start : start + _CELL.size] == page[start + _CELL.size : start + 2 * _CELL.size]:
        second = first
    else:
        second = _value(page[start + _CELL.size : start + 2 * _CELL.size])
    if first is None and second is None:
        return 0, 0  # a new file: the opener that is alone stores the true ones
    return (second if first is None else first), (first if second is None else second)  # type: ignore[return-value]


@lru_cache(maxsize=64)  # most counters of a page are equal, and so are those of the next pages
def _value(cell: bytes) -> int | None:
    value, checksum = _CELL.unpack(cell)
    return value if checksum == zlib.crc32(cell[:8], 1) else None


@lru_cache(maxsize=16)  # a commit stores its number three times
def _packed(value: int) -> bytes:
    """Encode a value as both copies of its cell."""
    return 2 * _CELL.pack(value, zlib.crc32(value.to_bytes(8, "little"), 1))
