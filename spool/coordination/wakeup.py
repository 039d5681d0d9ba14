"""Wake the calls that wait for a message when any process commits.

A process that publishes a commit writes to ``run/counters``, and the kernel notifies those that watch the file. One
watch serves all threads of an open space: one thread listens, the others wait for what it is told. A notification is a
hint and no promise: events may be lost, or never come, so a call that waits looks by itself now and then (see
``waiting.wait_for``).
"""

import threading
from functools import partial

from spool.disk.disk import Disk
from spool.model.layout import COUNTERS
from spool.runtime.clock import Clock


class CommitNotifier:
    """Notifies waiting threads of commits.

    ``generation`` counts the notifications. A thread that reads it before it looks for a message can wait for the next
    one without missing any in between.
    """

    def __init__(self, disk: Disk, clock: Clock) -> None:
        self.generation = 0
        self._disk = disk
        self._clock = clock
        self._handle: int | None = None
        self._listening = False
        self._turn = threading.Condition(threading.Lock())

    def wait(self, seen: int, seconds: float, *, seconds_without_inotify: float) -> bool:
        """Wait until there are more notifications than ``seen``, or the time is over.

        Args:
            seconds_without_inotify: how long to wait where the kernel cannot notify.

        Returns:
            Whether there are more.
        """
        with self._turn:
            if self._handle is None and self._watch():
                self.generation += 1  # what came before the watch was not noticed: look again
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

    def _watch(self) -> bool:
        """Watch the counters; False where that cannot be had. Each wait tries again: a user has few watches."""
        try:
            self._handle = self._disk.watch(COUNTERS)
        except OSError:
            return False
        return True

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
                    self._turn.notify()  # it listens next

    def _wait_for_listener(self, seen: int, seconds: float) -> bool:
        """Wait for what another thread is notified of, or until it stops listening."""
        with self._turn:
            if self.generation == seen and self._listening:
                self._turn.wait(seconds)
            return self.generation != seen
