"""Files in ``free/``, which later commits overwrite: consumed files, and files that are made ahead.

Without such files, the creation of an inode and its blocks would be half the cost of a small commit.

If a queue only grows, no file is consumed. So a process whose commits find no file several times in a row makes many
files at once, and the journal commits all of them together. Each time that these files are used up, the process makes
twice as many, up to a limit.

No file system orders an overwrite in place before a rename. So after a power cut, a recycled file can have its new name
and its old, valid bytes. Only the different numbers, in the old bytes and in the name, show that the bytes are old. So
a file is recycled only if its bytes have its number, and it has only one name.

On ext4 with a journal, a power cut can also leave a recycled file in ``free/`` with the new bytes of a commit or of a
vote. Recovery must find these files. So the name in ``free/`` records the former place of the file, its *origin*. A
commit has another number than the origin, and a vote is marked with the origin of the file that it overwrote (Rule 13).
"""

import os
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

from spool.disk.content import new_file, unlink_if_there, unlink_unless_gone, write_new
from spool.disk.disk import Disk, FlushFailed
from spool.disk.quarantine import FileCause, FileReason, quarantine
from spool.model import layout
from spool.model.layout import FreeName

MAX_BYTES = 64 << 20  # enough for the files that are consumed between two reclaims under load
QUIET_BYTES = 4 << 20
MAX_FILE_BYTES = 4 << 20
_LEAST_BYTES = 32 << 10  # a smaller file counts as this size, because a list of many names would be slow
_TRIES = 3
_LOOKED_AT_BYTES = 4 << 10  # the header of a vote names its branch at its start
_LOOK_AGAIN_AFTER_MISSES = 16
STOCK, _STOCK_BYTES = 5, 64 << 10
_FEW = 8  # so few files above the kept ones may have been taken by other processes meanwhile
_FILL = b"\xff"  # not zeros: a copy of the space may have holes instead, which a full disk cannot fill
STOCKED_BYTES = STOCK * _STOCK_BYTES
AHEAD_AFTER_MISSES, AHEAD_AT_FIRST, AHEAD_AT_MOST = 8, 16, 128
_SIZES = 16
_AHEAD_BYTES = 16 << 10  # of larger files, the second write of the bytes costs more than the creation


def _chance() -> int:
    """Return a number that differs between processes."""
    return int.from_bytes(os.urandom(4), "big")


class Recycler:
    """The consumed files in ``free/`` that this process knows. Other processes also add and take files."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self._files: list[tuple[int, str]] = []  # (size in bytes, name), sorted
        self._misses = 0
        self._ahead = 0  # how many files this process has made at once, 0 if the last files were consumed ones
        self._sizes, self._turn = [0] * _SIZES, 0  # of the last commits, in turn
        self._chance = _chance()
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

    def take(
        self, name: str, size: int, *, keep: Callable[[], int] = int, unlike: bytes = b""
    ) -> tuple[int, int, str] | None:
        """Take a file of about ``size`` bytes to overwrite, and rename the file to ``name``, a free name.

        The file whose size is nearest is taken. If two sizes are equally near, the larger file is taken, because that
        file need not grow. If several files have the nearest size, each process takes a different file, so that
        processes do not compete for the same file.

        Args:
            keep: returns the number of files to leave in ``free/`` for more urgent commits. It is called only if few
                files are left.
            unlike: bytes that the start of the file must not contain; b"" if the content does not matter.

        Returns:
            The file's handle, open for writing, its size, and its name in ``free/``, or None if no file was found.
        """
        self._turn += 1
        self._sizes[self._turn % _SIZES] = size  # (without a call)
        for _ in range(_TRIES):
            least = keep() if len(self._files) <= STOCK + _FEW else 0
            if 0 < least < len(self._files) <= least + _FEW:
                self.refresh()
            with self._mutex:
                files = self._files
                if files and (not least or len(files) > least):
                    at = bisect_left(files, (size, ""))
                    if at and (at == len(files) or size - files[at - 1][0] < files[at][0] - size):
                        first, end = bisect_left(files, (files[at - 1][0], "")), at
                    else:
                        first, end = at, bisect_left(files, (files[at][0] + 1, ""))
                    spare = files.pop(first + self._chance % (end - first))[1]
                else:
                    self._misses, spare = self._misses + 1, ""
            if not spare:
                if self._make_ahead(least):
                    continue
                if self._misses >= _LOOK_AGAIN_AFTER_MISSES:
                    self.refresh()
                return None
            try:
                handle, found, is_alone = self.disk.open_to_overwrite(f"{layout.FREE}/{spare}")
            except FileNotFoundError:
                continue  # another process has taken the file
            except OSError:
                if not self._put_away(f"{layout.FREE}/{spare}"):
                    raise
                continue
            try:
                if is_alone and not (unlike and unlike in self.disk.read_at(handle, 0, _LOOKED_AT_BYTES)):
                    self.disk.rename(f"{layout.FREE}/{spare}", name)
                    return handle, found, spare
                if not is_alone:  # the other name may still be in use
                    self.disk.unlink(f"{layout.FREE}/{spare}")
            except FileNotFoundError:
                pass
            except BaseException:
                self.disk.close(handle)
                raise
            self.disk.close(handle)
        self.refresh()  # the list of names is out of date
        return None

    def _make_ahead(self, least: int) -> bool:
        """Make files with the sizes of the last commits, if commits keep finding none; return whether there are more
        than ``least`` files.

        Only on a file system where a commit in an overwritten file costs less than in a new one. On a full disk no file
        is made, because the next commits need the room. Raises FlushFailed.
        """
        if not self._ahead and self._misses < AHEAD_AFTER_MISSES:
            return False
        sizes = [size for size in self._sizes if 0 < size <= _AHEAD_BYTES]
        if not sizes or not self.disk.durability.restores_names:
            return False
        self.refresh()  # another process may have given files meanwhile
        if len(self._files) > least:
            return True
        files = map(layout.parse_free, self.disk.names(layout.FREE))
        if sum(each is not None and each.is_new for each in files) >= AHEAD_AT_MOST:
            return False  # (others make files now, or were killed: only the first opener may remove their files)
        self._ahead = min(2 * self._ahead or AHEAD_AT_FIRST, AHEAD_AT_MOST)
        sizes = sizes * (self._ahead // len(sizes))
        origin = _random_origin() // AHEAD_AT_MOST * AHEAD_AT_MOST
        made = [FreeName(size, origin + place, is_new=True) for place, size in enumerate(sizes)]
        try:
            for each in made:
                with new_file(self.disk, f"{layout.FREE}/{each}") as handle:
                    self.disk.write_at(handle, 0, _FILL * each.size)
                    self.disk.begin_flush(handle)  # (so that the file has its blocks, too, when the journal commits)
            self.disk.flush_directory(layout.FREE)
            released = self._renamed(made)
        except FlushFailed:
            raise
        except OSError:
            self._ahead = 0
            for each in made:
                unlink_if_there(self.disk, f"{layout.FREE}/{each}")
            return False
        with self._mutex:
            self._files = sorted([*self._files, *released])
        return True

    def _put_away(self, name: str) -> bool:
        """Put a file that cannot be opened into quarantine, because another program may have put a FIFO or a directory
        into free/. Return False if the file is regular."""
        identity = self.disk.identity(name)
        if identity is not None and not identity.is_regular:
            why = FileReason(f"it lay in {layout.FREE}/, and is no regular file", FileCause.FOREIGN)
            quarantine(self.disk, name, why)
        return identity is None or not identity.is_regular

    def stock(self) -> None:
        """Create five files for use on a full disk: for the attempts of dead processes, for gets, and for the reclaim
        afterwards.

        Only the first opener calls this.
        """
        missing = STOCK - len(self._files)
        for _ in range(missing):
            name = f"{layout.FREE}/{layout.FreeName(_STOCK_BYTES, _random_origin())}"
            try:
                write_new(self.disk, name, _FILL * _STOCK_BYTES, durable=False)
            except OSError:
                unlink_if_there(self.disk, name)
                raise
        if missing > 0:  # if a commit in such a file loses its name, recovery must find the file in free/
            self.disk.flush_directory(layout.FREE)
        self.refresh()

    # -- giving: only the reclaimer does it -------------------------------------------------------------------------

    def room(self) -> int:
        """Return the number of bytes of files that may still be moved into ``free/``."""
        return MAX_BYTES - sum(map(weight, map(layout.parse_free, self.disk.names(layout.FREE))))

    def give(self, name: str, room: int) -> FreeName | None:
        """Move a consumed file to ``free/``; return the name there, or None for an unsuitable file.

        No commit uses the file before ``release``.
        """
        identity = self.disk.identity(name)
        if identity is None or not identity.is_plain or identity.size > min(room, MAX_FILE_BYTES):
            return None
        committed = layout.parse_committed(name.rpartition("/")[2])
        origin = origin_of(*committed) if committed is not None else _random_origin()
        target = FreeName(identity.size, origin, is_new=True)
        self.disk.rename(name, f"{layout.FREE}/{target}")
        return target

    def release(self, given: Sequence[FreeName]) -> None:
        """Let commits overwrite these files. The caller has flushed the directory from which the files came."""
        if not given:
            return
        self.disk.durability.flush_arrivals(self.disk, layout.FREE)
        self._ahead = 0
        self._renamed(given)
        self.refresh()

    def _renamed(self, given: Sequence[FreeName]) -> list[tuple[int, str]]:
        """Give files the names by which commits find them; return the size and the name of each."""
        released = [(each.size, str(each._replace(is_new=False))) for each in given]
        for each, (_, name) in zip(given, released, strict=True):
            self.disk.rename(f"{layout.FREE}/{each}", f"{layout.FREE}/{name}")
        return released

    def trim(self, most: int = QUIET_BYTES) -> None:
        """Remove files until at most ``most`` bytes are left; the smallest files remain."""
        kept, self._ahead = 0, 0
        for _, name in _sized(self.disk.names(layout.FREE)):
            kept += weight(layout.parse_free(name))
            if kept > most:
                unlink_unless_gone(self.disk, f"{layout.FREE}/{name}")  # (another process may just have taken the file)
        self.refresh()

    def recover(self, *, after_power_cut: bool) -> None:
        """Remove files that were being moved into ``free/``. If files may have other names, remove all files.

        Only the first opener calls this.
        """
        self.clear(everything=not self.disk.durability.keeps_spares(after_power_cut))

    def clear(self, *, everything: bool) -> None:
        """Remove files that were being moved into ``free/``, and names of files that have another name: the mark of a
        vote would outlive the vote's other name. Only the first opener calls this.

        ``everything``: remove all files of commits in ``free/``. Files with other names are the user's.
        """
        for name in self.disk.names(layout.FREE):
            free, identity = layout.parse_free(name), self.disk.identity(f"{layout.FREE}/{name}")
            if free and identity and identity.is_regular and (everything or free.is_new or identity.links > 1):
                self.disk.unlink(f"{layout.FREE}/{name}")
        self.refresh()


def origin_of(number: int, adoption: int = 0) -> int:
    """Return the origin of a committed file: see ``layout.FreeName``."""
    return number << layout.ORDINAL_BITS | adoption


def _random_origin() -> int:
    return int.from_bytes(os.urandom(8), "big") >> 1


def weight(free: FreeName | None) -> int:
    """Return the size for which a file in ``free/`` counts against the limits. None stands for a foreign name."""
    return _LEAST_BYTES if free is None else max(_LEAST_BYTES, free.size)


def _sized(names: Iterable[str]) -> list[tuple[int, str]]:
    """Return sorted pairs of size and name of the files that commits may overwrite."""
    parsed = ((layout.parse_free(name), name) for name in names)
    return sorted((free.size, name) for free, name in parsed if free is not None and not free.is_new)
