"""The life of an open space: from before its first descriptor is opened until its last call has ended."""

import os
import weakref
from collections.abc import Callable
from contextlib import ExitStack

from spool.disk.disk import Disk
from spool.runtime.calls import CallGuard


class Lifetime:
    """The guard of an open space, and the disks and functions that end after the guard.

    guard: each call is a step inside the guard. ``guard.end()`` ends the life, even if the space could not be opened.
    at_end: functions that are called in the order of the dict, after the last step has ended and every descriptor is
        closed.
    """

    __slots__ = ("__weakref__", "_disks", "at_end", "guard")

    def __init__(self, disk: Disk) -> None:
        self._disks = [disk]
        self.at_end: dict[Callable[[], None], None] = {}
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
        self.at_end.clear()  # callers that wait for the end are in the parent
        self.guard.close_at_once("the space was opened before this process was forked: open it again in the child")


_alive: "weakref.WeakSet[Lifetime]" = weakref.WeakSet()


def _disown_all() -> None:
    with ExitStack() as stack:  # if one call raises, the other calls still close their copies
        for life in list(_alive):
            stack.callback(life.disown)
    _alive.clear()


os.register_at_fork(after_in_child=_disown_all)
