"""An open space in one process: its files, the state that processes share, the view of this process, the settings.

``spool.log``, ``spool.policies`` and ``spool.transactions`` implement the protocol, as functions of a store or its
parts. The order of locks: docs/architecture.md, "Locks, and their order".
"""

import errno
import logging
import os
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn

from spool.coordination.counters import CounterPage
from spool.coordination.locks import OpenLock
from spool.disk import Disk
from spool.disk.advice import as_failure
from spool.disk.content import ensure_directory
from spool.disk.descriptors import STAGES
from spool.disk.disk import FlushFailed
from spool.disk.kernel import Unsupported
from spool.disk.requirements import check_kind, check_stages, unsafe
from spool.errors import DiskFailure, SpaceStopped, SpoolError
from spool.index import Index
from spool.model import layout
from spool.model.settings_text import SettingsParser
from spool.runtime.call_guard import CallGuard
from spool.runtime.clock import Deadline
from spool.store.identity import read_id
from spool.store.logs import escape_names
from spool.store.meters import Meters
from spool.store.parts import Files, Shared, View
from spool.store.settings_reader import SettingsReader, read_settings_text

log = logging.getLogger("spool")

WAIT_SECONDS = 30.0

_warn = warnings.warn  # (the end of the interpreter may remove the module warnings before the last object is dropped)

escape_names()  # (every program that opens a space imports this module first)


class Lifetime:
    """The guard of an open space, and the disks and functions that end after the guard.

    guard: each call is a step inside the guard. ``guard.end()`` ends the life, even if the space could not be opened.
    at_end: functions that are called in the order of the dict, after the last step has ended and every descriptor is
        closed.
    in_child: functions that are called in a forked child.
    """

    __slots__ = ("__weakref__", "_disks", "at_end", "guard", "in_child")

    def __init__(self, disk: Disk) -> None:
        self._disks = [disk]
        self.at_end: dict[Callable[[], None], None] = {}
        self.in_child: list[Callable[[], None]] = []
        self.guard = CallGuard(self._end)
        _alive.add(self)

    def include(self, disk: Disk) -> None:
        """Close the disk of the mirror together with the space."""
        self._disks.append(disk)

    def _end(self) -> None:
        try:
            for disk in self._disks:
                disk.close_all()
        finally:
            for end in list(self.at_end):
                end()

    def disown(self) -> None:
        """End the life in a forked child: close the copied descriptors, but unlock nothing.

        The child shares the locks of its parent.
        """
        for disk in self._disks:
            disk.disown()
        self.at_end.clear()  # the callers that wait for the end exist only in the parent
        for function in self.in_child:
            function()
        self.guard.close_at_once("the space was opened before this process was forked: open it again in the child")


_alive: "weakref.WeakSet[Lifetime]" = weakref.WeakSet()


def _disown_all() -> None:
    with ExitStack() as stack:  # if one call raises, the other calls still close their copies
        for life in list(_alive):
            stack.callback(life.disown)
    _alive.clear()


os.register_at_fork(after_in_child=_disown_all)


class Store:
    """One open space, made by ``open_store``, ``attach_store`` or ``inspect_store``.

    files, shared, view: the parts of the space; see ``spool.store.parts``.
    settings: ``settings.current(page)`` returns the current settings of ``space.toml``; ``settings.known`` are the
        settings that were read last.
    guard: each call is a step inside the guard; ``guard.close()`` closes the space.
    at_end: functions that are called once the space is closed.
    before_end: functions that are called when a program closes the space, while calls are still possible.
    dropped: functions that undo transactions which the program dropped before their end; the housekeeper calls these
        functions.
    limited: weak references to the transactions with a time limit; the housekeeper rolls back those whose time is over.
    wake: called after each commit in a space with marks; the housekeeper then looks at the marks.
    meters: the counts of this process, for people who watch the space.
    misplaced: the reason why no call may use the space, because its directory or ``run/`` was moved, replaced or
        removed; "" while they are in place.
    """

    def __init__(self, life: Lifetime, files: Files, shared: Shared, view: View, settings: SettingsReader) -> None:
        self.clock = files.disk.clock
        self.files = files
        self.shared = shared
        self.view = view
        self.settings = settings
        self.guard = life.guard
        self.at_end = life.at_end
        self.before_end: dict[Callable[[], None], None] = {}
        self.dropped: deque[Callable[[], None]] = deque()
        self.limited: deque[weakref.ref[Any]] = deque(maxlen=1 << 17)
        self.wake: Callable[[], object] = lambda: None
        self.misplaced = ""
        self.meters = Meters(shared.control, life.guard)
        life.in_child.append(self.meters.disown)

    def deadline(self, seconds: float | None = WAIT_SECONDS) -> Deadline:
        """Return a deadline for waits in a step; a closing space ends each wait with NotOpen. None means no limit."""
        at = None if seconds is None else self.clock.monotonic() + seconds
        return Deadline(self.clock, seconds, at, self.guard.check)

    # -- usable or not ------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self.guard.closed

    def drop(self, undo: Callable[[], None], text: str) -> None:
        """Let the housekeeper undo an object that the program dropped before its end, and warn the program.

        This method takes no lock and touches no file, so a ``__del__`` may call it.
        """
        if not self.closed:
            self.dropped.append(undo)
            _warn(text, ResourceWarning, 3)

    def check_usable(self) -> CounterPage:
        """Return the current counters.

        Raises:
            NotOpen: the space is closed.
            SpaceStopped: a flush failed in any process, or the space is not in its place.
        """
        if self.guard.closed:
            self.guard.check()
        if self.misplaced:
            raise SpaceStopped(self.misplaced)
        try:
            page = self.shared.counters.read()
        except OSError as error:
            raise self.translate_error("reading the space's counters", error) from error
        return page.check() if page.is_stopped else page

    def check_in_place(self) -> None:
        """Raise SpaceStopped if the directory of the space, or ``run/``, was moved, replaced or removed.

        The housekeeper calls this method every few seconds. Until a later check finds them in place, each call that
        uses the space gets the error, also a call that waits for messages without a search for them.
        """
        try:
            self.shared.control.verify()
        except SpaceStopped as error:
            self.misplaced = str(error)
            raise
        self.misplaced = ""

    def stop(self) -> None:
        """Stop the space after a failed flush: no process can commit or publish any more (Rule 7)."""
        log.critical("%s: a flush failed; the space has stopped", self.files.disk.root)
        try:
            self.shared.counters.stop()
        except OSError as error:  # this process has stopped anyway
            log.critical("%s: other processes cannot be notified: %s", self.files.disk.root, error)

    @contextmanager
    def stopping(self) -> Iterator[None]:
        """Stop the space if a flush in the block fails."""
        try:
            yield
        except FlushFailed:
            self.stop()
            raise

    def fail(self, doing: str, error: OSError) -> NoReturn:
        """Raise the error of the operating system as an error of the library; a failed flush stops the space first."""
        _raise_translated(error, self.translate_error(doing, error))

    def translate_error(self, doing: str, error: OSError) -> Exception:
        """Return the error of the operating system as an error of the library; a failed flush stops the space first."""
        if self.guard.abandoned:
            self.guard.check()
        if isinstance(error, FlushFailed):
            self.stop()
        return as_library_error(self.files.disk, doing, error)


# -- opening ----------------------------------------------------------------------------------------------------------


class _Opening:
    """A store that is being opened: the parts that need no files of ``run/``."""

    def __init__(self, life: Lifetime, disk: Disk) -> None:
        self._life = life
        self._parser = SettingsParser()
        self.config = config = self._parser.parse(read_settings_text(disk), disk.path(layout.SETTINGS))
        disk.use_sync_method(config.sync_method)
        mirror = None if config.mirror is None else disk.sibling(config.mirror)
        if mirror is not None:
            life.include(mirror)
        self._files = Files(disk, mirror)
        self._disk = disk
        self.open_lock = OpenLock(disk)

    def check_not_forked(self) -> None:
        """Raise NotOpen in a child that was forked during the opening, because its descriptors are closed."""
        if self._life.guard.abandoned:
            self._life.guard.check()

    def identify(self) -> None:
        """Read the id of the space."""
        self._files.id = read_id(self._disk)
        self._files.original = self._disk.lasting_identity(layout.SPACE_ID)

    def enter(self) -> bool:
        """Take the open lock, and create missing directories. Return True if no other process has the space open."""
        clock, check = self._disk.clock, self._life.guard.check
        alone = self.open_lock.enter(Deadline(clock, WAIT_SECONDS, clock.monotonic() + WAIT_SECONDS, check))
        for name in layout.DIRECTORIES:
            if name != layout.RUN and not self._disk.exists(name):  # a program removed the directory
                if name in STAGES and not alone:
                    raise DiskFailure(
                        errno.ENOENT,
                        f"{self._disk.path(name)} is missing, and another process has the space open: "
                        "put the directory back, or close the space in every process and open it again",
                    )
                ensure_directory(self._disk, name)
        return alone

    def store(self, *, make: bool) -> Store:
        """Open the files of ``run/`` and create the store. ``make``: whether to create missing files."""
        shared = Shared(self._disk, self.open_lock, make=make)
        settings = SettingsReader(self._disk, shared.counters, self.config, self._parser)
        view = View(Index(self._files.cache, self.config.queues), settings.known)
        return Store(self._life, self._files, shared, view, settings)


@contextmanager
def _opening(disk: Disk) -> Iterator[_Opening]:
    """If the body fails, close everything that was opened."""
    life = Lifetime(disk)
    try:
        yield _Opening(life, disk)
    except BaseException:
        life.guard.end()
        raise


def open_store(disk: Disk) -> tuple[Store, bool]:
    """Open the space in a directory.

    Returns:
        The store, and whether no other process has the space open. In that case the caller recovers the space. This
        process holds the open lock: the caller calls ``shared.open_lock.finish_opening()``, and closes ``guard`` in the
        end.

    Raises:
        NotASpace, InvalidArgument, NewerFormat: ``space.toml`` is missing or invalid.
        UnsafeFileSystem, SpaceStopped, WaitExpired, DiskFailure: nothing is open.
    """
    with _opening(disk) as opening:
        try:
            check_kind(disk, opening.config.network_file_system)
            check_stages(disk)
            alone = opening.enter()
            opening.identify()
            return opening.store(make=alone), alone
        except OSError as error:
            opening.check_not_forked()
            _raise_translated(error, as_library_error(disk, "opening the space", error))


def attach_store(disk: Disk) -> Store:
    """Open a space for one branch of a transaction whose coordinator has the space open. This recovers nothing.

    Raises:
        SpaceStopped: files in ``run/`` are missing.
    """
    with _opening(disk) as opening:
        return opening.store(make=False)


def inspect_store(disk: Disk) -> tuple[Store, bool]:
    """Open a space for inspection; returns the store, and whether no process has the space open.

    Args:
        disk: a disk that keeps writes in memory, so that nothing in the directory changes.
    """
    with _opening(disk) as opening:
        check_stages(disk)
        alone = opening.open_lock.is_alone()
        return opening.store(make=alone), alone


# -- errors of the system ---------------------------------------------------------------------------------------------


def _raise_translated(error: OSError, translated: Exception) -> NoReturn:
    if translated is error:
        raise error
    raise translated from error


def as_library_error(disk: Disk, doing: str, error: OSError) -> Exception:
    """Return the error of the operating system as an error of the library, or an error of the library unchanged.

    An OSError without a number is no error of the operating system: an alarm or another thread raised it (see
    ``async_exceptions``).
    """
    if isinstance(error, SpoolError) or error.errno is None:
        return error
    if isinstance(error, Unsupported):
        return unsafe(disk, doing, error)
    return as_failure(doing, error, kept="; nothing was lost", directory=disk.root)
