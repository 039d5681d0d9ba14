"""The kinds of durability, chosen when a space is opened: for names, by the file system; for commits, by the mirror.

One class for each of three kinds of file systems has the strategy that makes names durable.

* ``Journaled``: ext4 with a journal. If an overwritten file keeps its size and blocks, ``fdatasync`` makes only the
  bytes durable. Later the journal writes the earlier renames to the disk, in their order.
* ``Ordered``: xfs and btrfs. ``fsync`` of a file makes its bytes and every earlier rename durable.
* ``Strict``: any other file system. After a move, the strategy flushes the new directory, but not the old directory.
  After a power cut, the file may be in both directories. Then recovery uses the file in the later stage.

On ext4 without a journal, the strategy is ``Strict`` without the second flush. A flush of a file with a new name also
writes the directory (``ext4_sync_parent``). If another file had the name before, the name is not new: the rename only
points the existing entry to another file.

``SingleCopy`` makes commits and votes durable in a space without a mirror, and ``Mirror`` in a space with a mirror
(``spool/store/mirror.py``).

If we cannot tell whether a file system has a journal, we use ``Strict``, which needs no journal.

Without a journal, ext4 keeps a list of a directory's unwritten blocks, and a flush takes the whole list. A second flush
at the same moment finds nothing to write and returns, although the names are not on the disk. (We saw this on Linux
6.18, with either kind of flush, a few times in ten thousand.) So on ext4 without a journal, only one process at a time
flushes a directory's names.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Protocol

from spool.disk.kernel import await_turn
from spool.disk.stat import Guarantees
from spool.model import layout
from spool.model.xid import Xid

Exclusion = Callable[[], AbstractContextManager[object]]


class NameCalls(Protocol):
    """The calls of ``Disk`` that a strategy uses."""

    def rename_new(self, source: str, target: str) -> None: ...
    def link(self, source: str, target: str) -> None: ...
    def unlink(self, name: str) -> None: ...
    def open_directory(self, name: str) -> int: ...
    def close(self, handle: int) -> None: ...
    def flush(self, handle: int, *, data_only: bool = False) -> None: ...
    def flush_directory(self, name: str) -> None: ...
    def flush_everything(self, handle: int) -> None: ...
    def make_durable(self, handle: int, directory: str, *, new: bool = False, stamped: bool = False) -> None: ...
    def flock(self, handle: int) -> bool: ...
    def funlock(self, handle: int) -> None: ...


class Move:
    """The move of one file to another directory, step by step. A caller can override a step."""

    def __init__(self, disk: NameCalls, source: str, target: str) -> None:
        self.disk = disk
        self.source = source
        self.target = target

    @property
    def folder(self) -> str:
        return self.target.rpartition("/")[0]

    def rename(self) -> None:
        """Move the file in one step. The caller uses this step only if the file system orders renames."""
        self.disk.rename_new(self.source, self.target)

    def link(self) -> bool:
        """Give the file its second name. Return False if the move of this file ends with this step.

        The caller uses this step only if the file system does not order renames.
        """
        self.disk.link(self.source, self.target)
        return True

    def release(self) -> None:
        """Remove the first name. The caller has made the second name durable."""
        self.disk.unlink(self.source)


class Durability(ABC):
    """The strategy that makes names durable on one file system.

    description: the flushes of a commit, as a text for ``spool-admin doctor``.
    needs_links: whether ``move`` gives a file two names for a moment, because no flush of a file makes earlier renames
        durable.
    restores_names: whether names of stamped files are not flushed, because recovery restores them (Rule 13).
    is_assumed: whether this file system is only assumed to order renames, because the settings of the space say so.
    turn: opens a directory to flush its names, as a context; in turns, if the file system needs turns.
    """

    description: str
    needs_links: bool
    restores_names = False
    is_assumed = False

    def __init__(self, guarantees: Guarantees) -> None:
        self._guarantees = guarantees
        self.turn = _in_turns if guarantees.needs_turns else _at_any_time

    def commit_name(  # noqa: B027 (only if renames are not ordered)
        self, disk: NameCalls, handle: int, directory: str, *, new: bool
    ) -> None:
        """Flush a file's bytes and its name in ``directory``, if ``needs_links``; see ``Disk.make_durable``."""

    @abstractmethod
    def move(self, moves: Iterable[Move], exclusion: Exclusion = nullcontext, *, durably: bool = False) -> None:
        """Move files so that no power cut removes both names of a file.

        Args:
            exclusion: a context that keeps other threads and processes away from the names. The context is entered only
                if files have two names for a moment.
            durably: whether the new names are durable when this call returns.
        """

    @abstractmethod
    def flush_arrivals(self, disk: NameCalls, directory: str) -> None:
        """Make the names of files that were moved to ``directory`` durable. The caller has flushed the directory that
        the files left."""

    @abstractmethod
    def defers_removal(self, suspect: bool) -> bool:
        """Return whether no file may be removed until the machine restarts (Rule 7).

        ``suspect``: whether a flush has failed.
        """

    @abstractmethod
    def keeps_spares(self, after_power_cut: bool) -> bool:
        """Return whether it is certain that no file in ``free/`` has another name. Otherwise recovery removes the
        files."""

    def note_two_steps(self) -> None:  # noqa: B027 (only one file system's flushes depend on it)
        """Record that the kernel cannot rename a file to a free name in one step. The new name is then made by a
        link."""

    def flush_all(self, disk: NameCalls, handle: int) -> bool:
        """Call ``Disk.flush_everything``. Return False if this call is not reliable on this file system."""
        if self._guarantees.flushes_all:
            disk.flush_everything(handle)
        return self._guarantees.flushes_all


@contextmanager
def _at_any_time(disk: NameCalls, directory: str) -> Iterator[int]:
    handle = disk.open_directory(directory)
    try:
        yield handle
    finally:
        disk.close(handle)


@contextmanager
def _in_turns(disk: NameCalls, directory: str) -> Iterator[int]:
    """Keep other threads and processes out.

    The directory of the space itself is not locked. Only one process at a time flushes this directory, because the
    callers hold another lock. Other users may open a folder for dropped files: its lock is that of ``run/``.
    """
    with (
        _at_any_time(disk, directory) as handle,
        _at_any_time(disk, layout.RUN) if directory.startswith(f"{layout.DROP}/") else nullcontext(handle) as lock,
    ):
        try:
            if directory:
                await_turn(disk.flock, lock, directory)
            yield handle
        finally:  # (a forked child's copy of the handle would keep the lock)
            with suppress(OSError):
                disk.funlock(lock)


class Ordered(Durability):
    """Renames reach the disk in order, so one flush of a file makes every earlier rename durable."""

    description = "flush mode ordered: one flush a commit"
    needs_links = False

    def __init__(self, guarantees: Guarantees) -> None:
        super().__init__(guarantees)
        self.is_assumed = not guarantees.orders_renames

    def move(self, moves: Iterable[Move], exclusion: Exclusion = nullcontext, *, durably: bool = False) -> None:
        moved = []
        for move in moves:
            move.rename()
            moved.append(move)
        if durably:
            _flush_folders(moved)

    def flush_arrivals(self, disk: NameCalls, directory: str) -> None:
        """Do nothing. The caller flushed the directory that the names left, and thereby made the new names durable."""

    def defers_removal(self, suspect: bool) -> bool:
        return False  # the file system itself stops after a failed flush

    def keeps_spares(self, after_power_cut: bool) -> bool:
        return True


class Journaled(Ordered):
    """For a commit or a vote in an overwritten file, only the bytes are flushed, because recovery restores the name
    (Rule 13)."""

    restores_names = True


class Strict(Durability):
    """The strategy if renames are not ordered: each rename is flushed, and a file has two names during the move."""

    description = "flush mode strict: two flushes a commit"
    needs_links = True

    def __init__(self, guarantees: Guarantees) -> None:
        super().__init__(guarantees)
        self._carries_new_names = guarantees.carries_new_names
        if guarantees.carries_new_names:
            self.description = "flush mode strict: one flush a commit, which here makes a new file's name durable, too"

    def commit_name(self, disk: NameCalls, handle: int, directory: str, *, new: bool) -> None:
        with self.turn(disk, directory) as names:
            disk.flush(handle, data_only=True)  # the file's times need not be durable
            if not (new and self._carries_new_names):
                disk.flush(names)

    def move(self, moves: Iterable[Move], exclusion: Exclusion = nullcontext, *, durably: bool = False) -> None:
        with exclusion():
            linked = [move for move in moves if move.link()]
            _flush_folders(linked)
            for move in linked:
                move.release()

    def flush_arrivals(self, disk: NameCalls, directory: str) -> None:
        disk.flush_directory(directory)

    def defers_removal(self, suspect: bool) -> bool:
        return suspect  # otherwise a removed file could reappear from the disk, after the record of the removal is gone

    def keeps_spares(self, after_power_cut: bool) -> bool:
        return not after_power_cut  # the file may still have its former name

    def note_two_steps(self) -> None:
        self._carries_new_names = False  # a flush of the file may write the directory of the file's first name instead


def _flush_folders(moves: Iterable[Move]) -> None:
    for folder, move in {move.folder: move for move in moves}.items():
        move.disk.flush_directory(folder)


def durability_of(guarantees: Guarantees, sync_method: str = "auto") -> Durability:
    """Return the strategy for ``sync_method``, a setting of the space. For "auto", the guarantees decide."""
    if sync_method == "ordered":
        return Ordered(guarantees)
    if sync_method == "strict":
        return Strict(guarantees._replace(carries_new_names=False))
    if not guarantees.orders_renames:
        return Strict(guarantees)
    return (Journaled if guarantees.names_follow else Ordered)(guarantees)


class SingleCopy:
    """The kind of a space without a mirror: one flush makes a commit or a vote durable, and all other steps do nothing.

    For the arguments of the flushes see ``Disk.make_durable``. They raise FlushFailed.
    """

    def __init__(self, source: NameCalls) -> None:
        """``source``: the disk of the space."""
        self.source = source

    def flush_commit(self, number: int, handle: int, *, stamped: bool) -> None:
        """Make a commit durable under its new name."""
        self.source.make_durable(handle, layout.COMMITTED, new=True, stamped=stamped)

    def flush_vote(self, xid: Xid, handle: int, *, stamped: bool) -> None:
        """Make the vote of a branch durable under its new name."""
        self.source.make_durable(handle, layout.PREPARED, new=True, stamped=stamped)

    def copy(self, number: int) -> None:
        """Copy a commit that is published without a flush, or that a dead process has begun."""

    def write_vote(self, xid: Xid) -> bool:
        """Copy the vote of another process; return whether ``name_vote`` has to name the copy."""
        return False

    def name_vote(self, xid: Xid) -> None:
        """Give the copy of a vote its name, once the vote has its own."""

    def drop_copy(self, xid: Xid) -> None:
        """Remove the copy of a vote instead, because the branch was decided meanwhile."""

    def withdraw_vote(self, xid: Xid) -> None:
        """Forget the vote of a branch that is about to be removed."""

    def flush_withdrawals(self) -> None:
        """Make the removal of votes durable."""

    def forget(self, adopted: Mapping[int, int]) -> None:
        """Forget commits that are about to be removed. ``adopted``: the number of their branches."""

    def keep_settings(self, text: str) -> None:
        """Keep the text of new settings."""
