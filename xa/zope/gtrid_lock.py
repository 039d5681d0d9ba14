"""The lock on the gtrid of a zope transaction. The lock is held until the branches of the transaction have ended.

The lock has a separate descriptor, so a close of the space does not release the lock.
"""

import os
import threading
import weakref
from typing import Any

from spool.engine import Engine

# A thread holds this lock from the copy of a descriptor until the copy is in the table, and no fork happens meanwhile.
_copying = threading.RLock()
_coordinators: "weakref.WeakSet[GtridLock]" = weakref.WeakSet()


class GtridLock:
    """The lock on a new gtrid. While the lock is held, no process rolls back prepared branches with this gtrid.

    id: the gtrid.
    """

    def __init__(self, engine: Engine) -> None:
        self.id = os.urandom(16)
        self._handle: int | None = None
        with _copying, engine.locked_coordinator(self.id) as (handle, _):
            self._handle = os.dup(handle)
            _coordinators.add(self)

    def close(self, close: Any = os.close) -> None:
        """Release the lock. A second call does nothing. Takes no lock, because ``__del__`` is this method.

        ``close``: the function itself, because the end of the interpreter may clear the module ``os`` earlier.
        """
        handle, self._handle = self._handle, None
        if handle is not None:
            close(handle)

    __del__ = close


def _close_copies() -> None:
    """Close the copies of the descriptors in a forked child. Otherwise the child would keep the locks of its parent."""
    for coordinator in list(_coordinators):
        coordinator.close()
    _copying.release()


os.register_at_fork(before=_copying.acquire, after_in_parent=_copying.release, after_in_child=_close_copies)
