"""Who waits for a message is woken when somebody commits, in whatever process.

Whoever publishes a commit writes to ``run/counters``, and the kernel tells who watches that file. One watch serves all
threads of an open space: one of those that wait listens, the others wait for what it hears. It is a hint and no
promise: events may be lost, or never come, so who waits looks by himself now and then (see ``claiming.wait_for``).
"""

import threading
from functools import partial

from spool.disk.disk import Disk
from spool.model.layout import COUNTERS
from spool.runtime.clock import Clock


class Bell:
    """``rings`` counts how often something was heard. Who reads it before he looks, and finds nothing, can wait for the
    next ring without missing one in between."""

    def __init__(self, disk: Disk, clock: Clock) -> None:
        self.rings = 0
        self._disk = disk
        self._clock = clock
        self._handle: int | None = None
        self._someone_listens = False
        self._turn = threading.Condition(threading.Lock())

    def wait(self, heard: int, seconds: float, *, deaf_seconds: float) -> bool:
        """Until it has rung more often than ``heard``, or the time is over; whether it has. ``deaf_seconds``: how long
        if nothing can be heard here."""
        with self._turn:
            if self._handle is None and self._watch():
                self.rings += 1  # what came before the watch was not heard: look again
            if self.rings != heard:
                return True
            listens = self._handle is not None and not self._someone_listens
            self._someone_listens |= listens
        if self._handle is None:
            self._clock.sleep(deaf_seconds)
        elif listens:
            self._listen(self._handle, seconds)
        else:
            self._clock.wait(partial(self._be_told, heard), seconds)
        return self.rings != heard

    def _watch(self) -> bool:
        """Whether it can listen. Each wait tries again: others may have let go of theirs."""
        try:
            self._handle = self._disk.watch(COUNTERS)
        except OSError:
            return False
        return True

    def _listen(self, handle: int, seconds: float) -> None:
        rang = False
        try:
            rang = self._clock.wait(partial(self._disk.wait_for_change, handle), seconds)
        finally:
            with self._turn:
                self._someone_listens = False
                self.rings += rang
                if rang:
                    self._turn.notify_all()
                else:
                    self._turn.notify()  # it listens next

    def _be_told(self, heard: int, seconds: float) -> bool:
        """Wait for what another thread hears, or for its turn to listen."""
        with self._turn:
            if self.rings == heard and self._someone_listens:
                self._turn.wait(seconds)
            return self.rings != heard
