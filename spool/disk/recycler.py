"""Consumed files, to be overwritten by next commits: a new inode and its blocks are half the cost of a small commit.

No file system orders an overwrite in place before a rename, so after a power cut a recycled file can carry its new name
and its old, perfectly checksummed bytes. The number inside is then not the name's, which is how they are told apart;
hence only files that carry their own number and have one name are recycled.
"""

import os
import threading
from bisect import bisect_left
from typing import NamedTuple

from spool.disk.content import unlink_if_there, unlink_unless_gone, write_new
from spool.disk.disk import Disk
from spool.disk.quarantine import quarantine
from spool.model import layout

MAX_BYTES = 64 << 20  # while there is much to do, enough for what is consumed from one reclaim to the next
QUIET_BYTES = 4 << 20
MAX_FILE_BYTES = 4 << 20
_LEAST_BYTES = 32 << 10  # what a small file counts as, or there would be too many names to list
_NEW_SUFFIX = ".new"
_MOST_DIGITS = 10
_TRIES = 3
_LOOK_AGAIN_AFTER_MISSES = 16
_STOCK, _STOCK_BYTES = 2, 64 << 10


class _Spare(NamedTuple):
    size: int
    name: str


class Recycler:
    """The consumed files in ``free/``, as this process knows them; other processes take and give files as well."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self._spares: list[_Spare] = []
        self._misses = 0
        self._chance = int.from_bytes(os.urandom(4), "big")
        self._mutex = threading.Lock()
        self.refresh()

    def refresh(self) -> None:
        """List ``free/`` again."""
        if not self.disk.exists(layout.FREE):
            return
        found = (_parse(name) for name in self.disk.names(layout.FREE))
        with self._mutex:
            self._spares = sorted(spare for spare in found if spare is not None)
            self._misses = 0

    def take(self, name: str, size: int, *, keep: int = 0) -> tuple[int, int] | None:
        """Take a file of about ``size`` bytes to overwrite, and rename it to ``name``, which no other file has.

        Args:
            keep: leave the last so many for commits that need them more.

        Returns:
            Its handle, open for writing, and its size; None if there is none.
        """
        for _ in range(_TRIES):
            spare = self._pop(size, keep)
            if spare is None:
                return None
            try:
                self.disk.rename(f"{layout.FREE}/{spare.name}", name)
            except FileNotFoundError:
                continue  # another process was faster
            identity = self.disk.identity(name)
            if identity is not None and identity.is_plain:
                return self.disk.open(name, write=True), identity.size
            if identity is not None and identity.is_regular:
                self.disk.unlink(name)  # it has another name, which may still mean something
            elif identity is not None:
                quarantine(self.disk, name, f"it lay in {layout.FREE}/ as {spare.name}, and is no regular file")
        self.refresh()  # what is known is old
        return None

    def _pop(self, size: int, keep: int) -> _Spare | None:
        with self._mutex:
            if len(self._spares) > keep:
                return self._spares.pop(self._nearest(size))
            self._misses += 1
            look = self._misses >= _LOOK_AGAIN_AFTER_MISSES
        if look:
            self.refresh()
        return None

    def _nearest(self, size: int) -> int:
        """Return the index of the file whose size is nearest.

        Of two as near, it is the larger one, which need not grow. Of several with the same size, each process takes
        another one, so that processes do not compete for one file.
        """
        spares = self._spares
        above = bisect_left(spares, _Spare(size, ""))
        grows = above > 0 and (above == len(spares) or size - spares[above - 1].size < spares[above].size - size)
        nearest = spares[above - 1 if grows else above].size
        first = bisect_left(spares, _Spare(nearest, ""))
        return first + self._chance % (bisect_left(spares, _Spare(nearest + 1, "")) - first)

    def stock(self) -> None:
        """Make two files for a full disk: one for a get, one for the reclaim that it needs. The caller is alone."""
        for _ in range(_STOCK - len(self._spares)):
            name = f"{layout.FREE}/{_STOCK_BYTES}-{os.urandom(8).hex()}"
            try:
                write_new(self.disk, name, bytes(_STOCK_BYTES), durable=False)
            except OSError:
                unlink_if_there(self.disk, name)
                raise
        self.refresh()

    # -- giving, by the reclaimer alone -----------------------------------------------------------------------------

    def room(self) -> int:
        """Return how many more bytes may be moved into ``free/``."""
        return MAX_BYTES - sum(map(weight, self.disk.names(layout.FREE)))

    def give(self, name: str, room: int) -> str | None:
        """Move a consumed file in, not yet to be taken; returns its name there, or None if it does not qualify."""
        identity = self.disk.identity(name)
        if identity is None or not identity.is_plain or identity.size > min(room, MAX_FILE_BYTES):
            return None
        target = f"{identity.size}-{os.urandom(8).hex()}"
        self.disk.rename(name, f"{layout.FREE}/{target}{_NEW_SUFFIX}")
        return target

    def release(self, given: list[str]) -> None:
        """Let the files be overwritten. The caller has made their moves durable."""
        for target in given:
            self.disk.rename(f"{layout.FREE}/{target}{_NEW_SUFFIX}", f"{layout.FREE}/{target}")
        if given:
            self.refresh()

    def trim(self) -> None:
        """Remove what a quiet space need not keep; the smallest files stay."""
        kept = 0
        for spare in sorted(filter(None, map(_parse, self.disk.names(layout.FREE)))):
            kept += weight(spare.name)
            if kept > QUIET_BYTES:
                unlink_unless_gone(self.disk, f"{layout.FREE}/{spare.name}")  # another process may just have taken it
        self.refresh()

    def clear(self, *, everything: bool) -> None:
        """Remove the files that were on their way in, or all of them. The caller is alone."""
        for name in self.disk.names(layout.FREE):
            identity = self.disk.identity(f"{layout.FREE}/{name}")
            if identity is not None and identity.is_regular and (everything or name.endswith(_NEW_SUFFIX)):
                self.disk.unlink(f"{layout.FREE}/{name}")
        self.refresh()


def weight(name: str) -> int:
    """Return how many bytes of the disk a file in ``free/`` counts for, by its name."""
    size = name.partition("-")[0]
    return max(_LEAST_BYTES, int(size)) if size.isdecimal() else _LEAST_BYTES


def _parse(name: str) -> _Spare | None:
    size, _, rest = name.partition("-")
    return _Spare(int(size), name) if size.isdecimal() and len(size) <= _MOST_DIGITS and rest.isalnum() else None
