"""One descriptor of a connection for event loops: readable when a consumed queue may have a message."""

import os
import select
import weakref
from collections.abc import Collection
from contextlib import suppress

import spool


class Watch:
    """The arrivals of the consumed queues, and the calls of ``wake``, behind one descriptor.

    A forked child shares the kernel's list of events with its parent, so the child does not change this list.
    """

    def __init__(self, space: spool.Space) -> None:
        self._space, self._pid = space, os.getpid()
        self._woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        weakref.finalize(self, os.close, self._woken)  # not in ``close``, because a thread may be in ``wake``
        self._poll = select.epoll()
        self._poll.register(self._woken, select.EPOLLIN)
        self._arrivals: spool.QueueArrivals | None = None

    def fileno(self) -> int:
        return self._poll.fileno()

    def follow(self, queues: Collection[str]) -> None:
        """Watch these queues of the space instead of the earlier ones. The descriptor is then readable once."""
        if os.getpid() == self._pid and not self._poll.closed:
            self._unfollow()
            if queues:
                self._arrivals = self._space.arrivals(queues)
                self._poll.register(self._arrivals.fileno(), select.EPOLLIN)

    def wake(self) -> None:
        """Make the descriptor readable. Any thread may call this, also after ``close``."""
        if not self._poll.closed:
            os.eventfd_write(self._woken, 1)

    def clear(self) -> None:
        """Note what has happened so far, so that the descriptor is readable only after further events."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._woken)
        if self._arrivals is not None:
            self._arrivals.ready()

    def wait(self, seconds: float | None) -> None:
        """Sleep until the descriptor is readable, or for some seconds."""
        self._poll.poll(None if seconds is None else max(seconds, 0))

    def close(self) -> None:
        if not self._poll.closed:
            if os.getpid() == self._pid:
                self._unfollow()
            self._poll.close()

    def _unfollow(self) -> None:
        arrivals, self._arrivals = self._arrivals, None
        if arrivals is not None:
            self._poll.unregister(arrivals.fileno())
            arrivals.close()
