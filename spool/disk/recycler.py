"""Consumed files, which are kept so that later commits can overwrite the files.

Without recycled files, the creation of an inode and its blocks would be half the cost of a small commit.

No file system orders an overwrite in place before a rename. So after a power cut, a recycled file can have its new name
and its old, valid bytes. Only the different numbers, in the old bytes and in the name, show that the bytes are old. So
a file is recycled only if its bytes have its number, and it has only one name.

On ext4 with a journal, a power cut can also leave a recycled file in ``free/`` with the new bytes of a commit. Recovery
must find this commit. So the name in ``free/`` records the file's former number: a file with another number in its
bytes has a commit (Rule 13).
"""

import os
import re
import threading
from bisect import bisect_left
from collections.abc import Iterable

from spool.disk.content import unlink_if_there, unlink_unless_gone, write_new
from spool.disk.disk import Disk
from spool.disk.quarantine import Cause, Reason, quarantine
from spool.model import layout

MAX_BYTES = 64 << 20  # enough for the files that are consumed between two reclaims under load
QUIET_BYTES = 4 << 20
MAX_FILE_BYTES = 4 << 20
_LEAST_BYTES = 32 << 10  # a smaller file counts as this size, because a list of many names would be slow
_NEW_SUFFIX = ".new"
_FREE_NAME = re.compile(r"([0-9]{1,10})-[0-9a-f]+").fullmatch
_TRIES = 3
_LOOK_AGAIN_AFTER_MISSES = 16
_STOCK, _STOCK_BYTES = 2, 64 << 10
_STOCK_FILL = b"\xff"  # not zeros: a copy of the space may have holes instead, which a full disk cannot fill
STOCKED_BYTES = _STOCK * _STOCK_BYTES
_NUMBER = "%010x"


class Recycler:
    """The consumed files in ``free/`` that this process knows. Other processes also add and take files."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self._files: list[tuple[int, str]] = []  # (size in bytes, name), sorted
        self._misses = 0
        self._chance = int.from_bytes(os.urandom(4), "big")
        self._mutex = threading.Lock()
        self.refresh()

    def refresh(self) -> None:
        """List ``free/`` again."""
        directory = self.disk.identity(layout.FREE)
        if directory is None or not directory.is_directory:
            return
        found = _sized(self.disk.names(layout.FREE))
        with self._mutex:
            self._files, self._misses = found, 0

    def take(self, name: str, size: int, *, keep: int = 0) -> tuple[int, int] | None:
        """Take a file of about ``size`` bytes to overwrite, and rename the file to ``name``, a free name.

        Args:
            keep: the number of files to leave in ``free/`` for more urgent commits.

        Returns:
            The file's handle, open for writing, and its size, or None if no file was found.
        """
        for _ in range(_TRIES):
            spare = self._pop(size, keep)
            if spare is None:
                return None
            try:
                self.disk.rename(f"{layout.FREE}/{spare}", name)
            except FileNotFoundError:
                continue  # another process has taken the file
            try:
                handle, found, is_alone = self.disk.open_to_overwrite(name)
            except OSError:
                identity = self.disk.identity(name)
                if identity is not None and identity.is_regular:
                    raise
                if identity is not None:  # another program may have put a FIFO or a directory into free/
                    text = f"it lay in {layout.FREE}/ as {spare}, and is no regular file"
                    quarantine(self.disk, name, Reason(text, Cause.FOREIGN))
                continue
            if is_alone:
                return handle, found
            self.disk.close(handle)
            self.disk.unlink(name)  # the file has another name, which may still be in use
        self.refresh()  # the list of names is out of date
        return None

    def _pop(self, size: int, keep: int) -> str | None:
        """Remove the file whose size is nearest to ``size`` from the list, and return the file's name.

        If two sizes are equally near, the larger file is taken, because that file need not grow. If several files have
        the nearest size, each process takes a different file, so that processes do not compete for the same file.
        """
        with self._mutex:
            files = self._files
            if len(files) > keep:
                at = bisect_left(files, (size, ""))
                if at and (at == len(files) or size - files[at - 1][0] < files[at][0] - size):
                    first, end = bisect_left(files, (files[at - 1][0], "")), at
                else:
                    first, end = at, bisect_left(files, (files[at][0] + 1, ""))
                return files.pop(first + self._chance % (end - first))[1]
            self._misses += 1
            look = self._misses >= _LOOK_AGAIN_AFTER_MISSES
        if look:
            self.refresh()
        return None

    def stock(self) -> None:
        """Create two files for use on a full disk: one for a get, and one for the reclaim afterwards.

        Only the first opener calls this.
        """
        missing = _STOCK - len(self._files)
        for _ in range(missing):
            name = f"{layout.FREE}/{_STOCK_BYTES}-{os.urandom(8).hex()}"
            try:
                write_new(self.disk, name, _STOCK_FILL * _STOCK_BYTES, durable=False)
            except OSError:
                unlink_if_there(self.disk, name)
                raise
        if missing > 0:  # if a commit in such a file loses its name, recovery must find the file in free/
            self.disk.flush_directory(layout.FREE)
        self.refresh()

    # -- giving: only the reclaimer does it -------------------------------------------------------------------------

    def room(self) -> int:
        """Return the number of bytes of files that may still be moved into ``free/``."""
        return MAX_BYTES - sum(map(weight, self.disk.names(layout.FREE)))

    def give(self, name: str, room: int) -> str | None:
        """Move a consumed file to ``free/``; return the name without suffix, or None for an unsuitable file.

        No commit uses the file before ``release``.
        """
        identity = self.disk.identity(name)
        if identity is None or not identity.is_plain or identity.size > min(room, MAX_FILE_BYTES):
            return None
        committed = layout.parse_committed(name.rpartition("/")[2])
        number = _NUMBER % committed.number if committed is not None else os.urandom(8).hex()
        target = f"{identity.size}-{number}"
        self.disk.rename(name, f"{layout.FREE}/{target}{_NEW_SUFFIX}")
        return target

    def release(self, given: list[str]) -> None:
        """Let commits overwrite these files. The caller has flushed the directory from which the files came."""
        if not given:
            return
        self.disk.durability.flush_arrivals(self.disk, layout.FREE)
        for target in given:
            self.disk.rename(f"{layout.FREE}/{target}{_NEW_SUFFIX}", f"{layout.FREE}/{target}")
        self.refresh()

    def trim(self, most: int = QUIET_BYTES) -> None:
        """Remove files until at most ``most`` bytes are left; the smallest files remain."""
        kept = 0
        for _, name in _sized(self.disk.names(layout.FREE)):
            kept += weight(name)
            if kept > most:
                unlink_unless_gone(self.disk, f"{layout.FREE}/{name}")  # (another process may just have taken the file)
        self.refresh()

    def recover(self, *, after_power_cut: bool) -> None:
        """Remove files that were being moved into ``free/``. If files may have other names, remove all files.

        Only the first opener calls this.
        """
        self.clear(everything=not self.disk.durability.keeps_spares(after_power_cut))

    def clear(self, *, everything: bool) -> None:
        """Remove files that were being moved into ``free/``. Only the first opener calls this.

        ``everything``: remove all files in ``free/``.
        """
        for name in self.disk.names(layout.FREE):
            identity = self.disk.identity(f"{layout.FREE}/{name}")
            if identity is not None and identity.is_regular and (everything or name.endswith(_NEW_SUFFIX)):
                self.disk.unlink(f"{layout.FREE}/{name}")
        self.refresh()


def consumed_number(name: str) -> int | None:
    """Return the former number of a file in ``free/``, or None if the file's name records no number."""
    tail = name.partition("-")[2].removesuffix(_NEW_SUFFIX)
    try:
        number = int(tail, 16)
    except ValueError:
        return None
    return number if tail == _NUMBER % number else None


def weight(name: str) -> int:
    """Return the size for which a file in ``free/`` counts against the limits. The file's name gives its real size."""
    size = name.partition("-")[0]
    return max(_LEAST_BYTES, int(size)) if size.isdecimal() else _LEAST_BYTES


def _sized(names: Iterable[str]) -> list[tuple[int, str]]:
    """Return sorted pairs of size and name. A name from the recycler begins with the size; other names are left out."""
    return sorted((int(match[1]), match[0]) for match in map(_FREE_NAME, names) if match is not None)
