"""The tables of open descriptors, and what a fork does to them.

The kernel releases a lock when its descriptor is closed, so the table of what a ``Disk`` has open decides what a close,
a fork and a number that was used again mean for locks.
"""

import errno
import os
import threading

# Held from a file's opening until its handle is in a table: no fork comes between the two, or the child would keep a
# copy that it does not know of, and with it the locks of its parent.
opening = threading.RLock()
os.register_at_fork(before=opening.acquire, after_in_parent=opening.release, after_in_child=opening.release)


def not_open() -> OSError:
    """Return the error of a call with a handle that is not open."""
    return OSError(errno.EBADF, "the space is closed, or was opened by this process's parent")


class DisownedRoot:
    """The root of a disk in a forked child: no path begins with it."""

    def __format__(self, _: str) -> str:
        raise not_open()
