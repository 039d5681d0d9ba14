"""One open space for each process and directory, for programs whose parts know only the path of the space.

Such programs are web applications, task frameworks and plugins: no part of the program opens the space for the others.
"""

import atexit
import os
import threading
from contextlib import suppress
from typing import Unpack

from spool.errors import NotOpen, SpaceStopped, SpoolError
from spool.model.layout import SETTINGS
from spool.model.options import SpaceOptions
from spool.model.paths import local_path
from spool.opening import check_same, create
from spool.runtime import call_guard
from spool.runtime.async_exceptions import Reentrant
from spool.space import Space
from spool.transactions.core import core_of

_spaces: dict[str, Space] = {}  # by the real path
_lock = threading.RLock()  # held during an opening, so that the other threads wait for this opening
_opens = False  # whether the thread that holds the lock opens a space


def shared(path: str | os.PathLike[str], **options: Unpack[SpaceOptions]) -> Space:
    """Return the open space of this process and directory. The first call opens the space, or creates a missing space.

    Every thread gets the same object, even if different paths lead to the directory. A forked child opens a separate
    space with its first call.

    The interpreter closes the space at its exit, so a program need not close it. A call of ``close``, or the end of a
    ``with`` block, closes the space for all parts of the program: their calls on the old object raise NotOpen. The next
    call of this function then opens the space again, also after an exception in the middle of a call has closed it.

    After a failed flush has stopped the space, the next call closes the stopped space, and opens the space again. The
    first process that opens the space repairs it; until every process has closed the stopped space, the call raises
    SpaceStopped.

    If the directory was moved away or removed, the call raises SpaceStopped, and creates no space: a restore may be
    under way. Once another space is in its place, the call opens this space.

    Args:
        path: the directory.
        options: see ``spool.SpaceOptions``. The options of each call must equal the options of the space. Options that
            the call leaves out are not compared.

    Raises:
        SpaceExists: the space has other options.
        SpaceStopped: a flush failed, and another process has not closed the space since; or the directory was moved
            away. A later call can succeed.
        ProtocolError: a finalizer or a similar function called this in the middle of an opening of its thread.
        The other errors of ``spool.create``.
    """
    root = os.path.realpath(local_path(path))
    space = _spaces.get(root)
    if space is not None and not options and _is_usable(space):
        return space
    with call_guard.deferred(), _lock:
        space = _spaces.get(root)
        if space is None or not _is_usable(space):
            if space is not None:
                _close(space)
            space = _spaces[root] = _open(root, options)
        elif options:
            check_same(root, core_of(space).store.settings.current().config, options)
        return space


def _is_usable(space: Space) -> bool:
    """Return whether the space is open and in its place, and no failed flush has stopped the space."""
    store = core_of(space).store
    try:
        store.guard.check()
        store.check_in_place()
        store.check_usable()
    except (NotOpen, SpaceStopped):
        return False
    return True


def _close(space: Space) -> None:
    """Close a space that is not usable. Raise SpaceStopped if its directory has no space any more."""
    store = core_of(space).store
    if store.misplaced and not os.path.exists(store.files.disk.path(SETTINGS)):
        raise SpaceStopped(store.misplaced)
    space.close()


def _open(root: str, options: SpaceOptions) -> Space:
    """Open a space, or create it. The caller holds the lock."""
    global _opens
    if _opens:
        raise Reentrant
    _opens = True
    try:
        return create(root, exist_ok=True, **options)
    finally:
        _opens = False


def _forget() -> None:
    """Begin without spaces in a forked child. Another thread of the parent may have held the lock."""
    global _lock, _opens
    _lock, _opens = threading.RLock(), False
    _spaces.clear()


@atexit.register
def _close_all() -> None:
    for space in list(_spaces.values()):
        with suppress(SpoolError):
            space.close()


os.register_at_fork(after_in_child=_forget)
