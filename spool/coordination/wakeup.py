"""When any process commits, wake the calls that wait for a message.

A process that publishes a commit writes to ``run/counters``, and the kernel notifies the watchers of that file. One
watch serves all threads of an open space: one thread listens and notifies the others. A notification is only a hint:
events may be lost, so a waiting call also polls now and then (see ``waiting.wait_for``).
"""

import threading
from contextlib import suppress
from functools import partial

from spool.disk.disk import Disk
from spool.model.layout import COUNTERS
from spool.runtime.clock import Clock


class CommitNotifier:
    """Notifies waiting threads of commits.

    ``generation`` counts the notifications. If a thread reads the count before it searches for a message, its later
    wait misses no notification.
    """

    def __init__(self, disk: Disk, clock: Clock) -> None:
        self.generation = 0
        self._disk = disk
        self._clock = clock
        self._handle: int | None = None
        self._listening = False
        self._turn = threading.Condition(threading.Lock())

    def wait(self, seen: int, seconds: float, *, seconds_without_inotify: float) -> bool:
        """Wait until the count exceeds ``seen`` or the time is over.

        Args:
            seconds_without_inotify: the time to wait if the kernel cannot notify this process.

        Returns:
            True if the count exceeds ``seen``.
        """
        with self._turn:
            if self._handle is None:
                with suppress(OSError):  # the kernel may grant no watch; each wait tries again
                    self._handle = self._disk.watch(COUNTERS)
                    self.generation += 1  # commits before the watch were not noticed: search again
            if self.generation != seen:
                return True
            listens = self._handle is not None and not self._listening
            self._listening |= listens
        if self._handle is None:
            self._clock.sleep(seconds_without_inotify)
        elif listens:
            self._listen(self._handle, seconds)
        else:
            self._clock.wait(partial(self._wait_for_listener, seen), seconds)
        return self.generation != seen

    def _listen(self, handle: int, seconds: float) -> None:
        notified = False
        try:
            notified = self._clock.wait(partial(self._disk.wait_for_change, handle), seconds)
        finally:
            with self._turn:
                self._listening = False
                self.generation += notified
                if notified:
                    self._turn.notify_all()
                else:
                    self._turn.notify()  # the next listener

    def _wait_for_listener(self, seen: int, seconds: float) -> bool:
        """Wait until the listening thread is notified, or stops listening."""
        with self._turn:
            if self.generation == seen and self._listening:
                self._turn.wait(seconds)
            return self.generation != seen
