"""The counters that live processes share in ``run/counters``: commit numbers, versions, and owner numbers.

*issued* and *published* are stored twice, each copy with a checksum. If the copies differ, the writer died between the
two stores. Then the larger copy of *issued* counts, because the number may have been issued. The smaller copy of
*published* counts, because the commit may not be visible yet. The next store writes both copies. A process stores a
counter only while it holds the lock for this counter. The caller takes the lock.

Processes read the counters in shared memory, and write *issued* there. They write the other counters by system calls,
because such a call wakes the processes that watch the file. A process that waits for messages must wake at publication,
not earlier. Threads that wait for locks (``Futexes``) or for messages (``Wakeups``) sleep on the words at the end of
the file. The words before them have the times of the last polls.
"""

import struct
import zlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Self

from spool.coordination.locks import open_shared
from spool.coordination.wakeup import Wakeups
from spool.disk.descriptors import not_open
from spool.disk.disk import Disk
from spool.disk.memory import FUTEX_BYTES, ByCalls, Futexes, SharedBytes
from spool.errors import SpaceStopped
from spool.model.layout import COUNTERS

_PAIR = struct.Struct("<QI4xQI4x")  # both copies of a counter, each with its checksum
_COPY_BYTES = _PAIR.size // 2
_BOOT_BYTES = 64
_STOP_OFFSET = _BOOT_BYTES
_SUSPECT_OFFSET = _STOP_OFFSET + 1
_CELLS_OFFSET = 128
_SIZE = _CELLS_OFFSET + 6 * _PAIR.size
_POLLS_AT, _FUTEXES_AT, _WAKEUPS_AT, _FILE_BYTES = _SIZE, 512, 1024, 2048
_ISSUED, _PUBLISHED, _DURABLE, _PREPARED, _SETTINGS, _OWNERS = (
    slice(at, at + _PAIR.size) for at in range(_CELLS_OFFSET, _SIZE, _PAIR.size)
)


class CounterPage:
    """All counters at one moment, from one read.

    is_stopped: whether a flush failed in some process.
    issued: the highest issued number; exact only under the number lock.
    published: every commit up to this number is visible to all processes.
    durable: every commit up to this number was flushed.
    prepared: the version of the list of prepared branches.
    settings: the version of space.toml.
    owner: the highest issued owner number.
    """

    data, is_stopped = bytes(_SIZE), False
    issued = published = durable = prepared = settings = owner = 0

    def check(self) -> Self:
        """Return this page. Raises SpaceStopped if a flush failed in any process."""
        if self.is_stopped:
            raise SpaceStopped(STOPPED_TEXT)
        return self

    @property
    def is_suspect(self) -> bool:
        """Return whether a flush failed earlier in this boot, so that names in directories may not be on the disk."""
        return self.data[_SUSPECT_OFFSET] == 1

    @property
    def boot_id(self) -> str:
        return self.data[:_BOOT_BYTES].rstrip(b"\0").decode("ascii", "replace")


class Counters:
    """The counters of one open space. Each write of a counter writes both copies, one after the other, in one call."""

    def __init__(self, disk: Disk, *, make: bool) -> None:
        """Open the file. ``make``: see ``open_shared``. The first opener calls ``start`` afterwards."""
        self.disk = disk
        self.handle = open_shared(disk, COUNTERS, make=make)
        self._memory: SharedBytes = ByCalls(disk, self.handle)  # the file may be empty until ``start``
        self.wakeups = Wakeups(self._memory, _WAKEUPS_AT, 0)
        if not make:
            self._share()
        self._stopped_here = False
        self._last = CounterPage()  # the last page that was read

    def _share(self) -> None:
        if self.disk.handle_identity(self.handle).size >= _FILE_BYTES:
            self._memory = self.disk.map(self.handle, _FILE_BYTES)
            if self._memory.wakes:
                self.disk.futexes = Futexes(self._memory, _FUTEXES_AT, (_WAKEUPS_AT - _FUTEXES_AT) // FUTEX_BYTES)
        polls = _POLLS_AT, (_FUTEXES_AT - _POLLS_AT) // FUTEX_BYTES
        self.wakeups = Wakeups(self._memory, _WAKEUPS_AT, (_FILE_BYTES - _WAKEUPS_AT) // FUTEX_BYTES, polls)

    def read(self) -> CounterPage:
        """Return the current counters; while the bytes are unchanged, every call returns the same page."""
        try:
            data, last = self._memory[0:_SIZE], self._last
        except ValueError:
            raise not_open() from None
        if data == last.data and not self._stopped_here:
            return last
        if not data[_SIZE - 1 :]:  # a new file, or a file that was cut
            data = data.ljust(_SIZE, b"\0")
        if self._stopped_here:
            data = data[:_STOP_OFFSET] + b"\x01" + data[_STOP_OFFSET + 1 :]
        page = CounterPage()
        page.data, page.is_stopped = data, data[_STOP_OFFSET] == 1
        page.issued = _values[data[_ISSUED]][1]
        page.published = _values[data[_PUBLISHED]][0]
        page.durable = _values[data[_DURABLE]][0]
        page.prepared = _values[data[_PREPARED]][1]
        page.settings = _values[data[_SETTINGS]][1]
        page.owner = _values[data[_OWNERS]][1]
        self._last = page
        return page

    def store_issued(self, number: int) -> None:
        try:
            self._memory[_ISSUED] = _with_checksum(number)
        except ValueError:
            raise not_open() from None

    def publish_next(self, number: int, *, durable: bool, arrived: Mapping[str, int] | None) -> bool:
        """If the previous number is published, publish this number, and wake calls that wait for messages; otherwise
        return False. The caller holds the number's byte.

        Args:
            durable: whether the commit was flushed.
            arrived: see ``Wakeups.announce``. None: any message may have become free.

        Raises SpaceStopped if a flush failed in any process.
        """
        try:
            data = self._memory[0:_SIZE]
        except ValueError:
            raise not_open() from None
        if data[_STOP_OFFSET] == 1 or self._stopped_here:
            raise SpaceStopped(STOPPED_TEXT)
        before = _with_checksum(number - 1)
        if data[_PUBLISHED] != before:
            return False
        stored = _with_checksum(number)
        both = durable and data[_DURABLE] == before
        self.disk.write_at(self.handle, _PUBLISHED.start, stored + stored if both else stored)
        if arrived is None:
            self.wakeups.announce_all()
        elif arrived:
            self.wakeups.announce(arrived)
        return True

    def store_published(self, number: int, *, durable: bool) -> None:
        """Store *published*, and wake all calls that wait for messages. The caller holds the number's byte.

        ``durable``: whether every commit up to the number was flushed.
        """
        stored = _with_checksum(number)
        self.disk.write_at(self.handle, _PUBLISHED.start, stored + stored if durable else stored)
        self.wakeups.announce_all()

    def store_durable(self, number: int) -> None:
        self._store(_DURABLE, number)

    def bump_prepared(self, page: CounterPage) -> int:
        """Increase the version of the list of prepared branches; returns the new version.

        The caller holds the list's byte, and has read the page since it took the byte.
        """
        version = page.prepared + 1
        self.disk.write_at(self.handle, _PREPARED.start, _with_checksum(version))
        return version

    def bump_settings(self) -> None:
        self._store(_SETTINGS, self.read().settings + 1)
        self.wakeups.announce_all()

    def store_owner(self, number: int) -> None:
        """Store the highest owner number. The caller holds the number lock and the owner's bytes."""
        self._store(_OWNERS, number)

    def stop(self) -> None:
        """Stop the space after a failed flush: no process may publish or commit until the next ``start``."""
        self._stopped_here = True  # set before the write, which may fail; the flag remains set while this space is open
        self.disk.write_at(self.handle, _STOP_OFFSET, b"\x01")
        self.wakeups.announce_all()

    def start(self, *, issued: int, published: int, durable: int, suspect: bool = False) -> None:
        """Store the counters that the first opener found, and clear the stop flag.

        The versions continue, and the owner numbers begin at 0 again. The boot id is stored last, because a process
        that finds the boot id trusts the other counters.
        """
        head = bytearray(_CELLS_OFFSET)
        head[_SUSPECT_OFFSET] = suspect
        self.disk.write_at(self.handle, 0, bytes(head))
        self.disk.write_at(self.handle, _FUTEXES_AT, bytes(_FILE_BYTES - _FUTEXES_AT))
        self.store_issued(issued)
        self.store_published(published, durable=False)
        self.store_durable(durable)
        self.bump_prepared(self.read())
        self.bump_settings()
        self.store_owner(0)
        self.disk.write_at(self.handle, 0, self.disk.boot_id().encode("ascii").ljust(_BOOT_BYTES, b"\0"))
        self._share()

    def _store(self, counter: slice, value: int) -> None:
        self.disk.write_at(self.handle, counter.start, _with_checksum(value))


STOPPED_TEXT = (
    "the space has stopped, because a flush failed, and the content of the disk is unknown: "
    "close the space in every process, check the disk, then open the space again"
)


class _Values(dict[bytes, tuple[int, int]]):
    """The least and the greatest value of a counter's valid copies, by the counter's bytes.

    Both are 0 if neither copy is valid, as in a new file; the first opener then writes the true values.
    """

    def __missing__(self, pair: bytes) -> tuple[int, int]:
        first, second = _PAIR.unpack(pair)[::2]
        values: list[int] = []
        if pair[:_COPY_BYTES] == _with_checksum(first)[:_COPY_BYTES]:
            values.append(first)
        if pair[_COPY_BYTES:] == _with_checksum(second)[:_COPY_BYTES]:
            values.append(second)
        self[pair] = found = (min(values), max(values)) if values else (0, 0)
        return found


_MOST_KEPT = 64
_values = _Values()  # each number is stored in three counters, but decoded or encoded only once


@lru_cache(maxsize=_MOST_KEPT)
def _with_checksum(value: int) -> bytes:
    """Encode a value as both copies of a counter."""
    checksum = zlib.crc32(value.to_bytes(8, "little"), 1)
    pair = _PAIR.pack(value, checksum, value, checksum)
    if len(_values) >= _MOST_KEPT:
        _values.clear()
    _values[pair] = value, value
    return pair
