"""The open descriptors of one space.

The kernel releases a lock when its descriptor is closed, so the table of what is open decides what a close, a fork and
a number that was used again mean for locks.
"""

import errno
import os
import threading
from collections.abc import Callable
from typing import Any

# Held from a file's opening until its handle is in a table: no fork comes between the two, or the child would keep a
# copy that it does not know of, and with it the locks of its parent.
_opening = threading.RLock()
os.register_at_fork(before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_opening.release)


class DescriptorTable:
    """Handles are small integers, as the system's; ``handles``: the open ones, in the order in which they were opened.

    Raises OSError (EBADF) for a handle that is not in the table: its number may be another file's by now.
    """

    __slots__ = ("handles",)

    def __init__(self) -> None:
        self.handles: dict[int, None] = {}

    def opened(self, opener: Callable[..., int], *args: Any) -> int:
        """Call the opener, and put what it opened into the table."""
        with _opening:
            handle = opener(*args)
            self.handles[handle] = None
        return handle

    def check(self, handle: int) -> int:
        """Return the handle if it is open here."""
        if handle not in self.handles:
            raise not_open()
        return handle

    def close(self, handle: int) -> None:
        """Close the descriptor; the kernel releases its locks."""
        if handle not in self.handles:
            raise not_open()
        del self.handles[handle]
        os.close(handle)


def not_open() -> OSError:
    """The error of a call with a handle that is not open."""
    return OSError(errno.EBADF, "the space is closed, or was opened by this process's parent")
