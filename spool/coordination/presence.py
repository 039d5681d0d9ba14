"""Who has the space open: locks on its own directory, which nobody can delete from under them as ``run/`` can be.

Whoever opens the space holds the directory while he does so, and takes its *alive* byte, shared, before he lets go.
Only who finds nobody alive is alone, recovers the space and makes files in ``run/``; so a name there means one file as
long as anybody lives, and locks on it keep processes apart, even while somebody deletes it.
"""

import logging

from spool.disk.disk import Disk
from spool.runtime.clock import Deadline, WaitExpired

log = logging.getLogger("spool")

_ALIVE = 0
_SILENT_SECONDS = 1.0  # an opener waits that long before it says what it waits for


class Presence:
    """One opener's locks on the space's directory."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.handle = disk.open_directory("")

    def enter(self, deadline: Deadline) -> bool:
        """Begin to open the space, one at a time. True: nobody else has it open, or can before ``settle``."""
        tell_at: float | None = deadline.clock.monotonic() + _SILENT_SECONDS
        for _ in deadline.polls():
            if self.disk.flock(self.handle):
                return self.disk.some_lock(self.handle, _ALIVE, 1) is None
            if tell_at is not None and deadline.clock.monotonic() >= tell_at:
                tell_at = None
                log.warning("waiting for %s, which is opening the space %s", self._opener(), self.disk.root)
        raise WaitExpired(
            f"the space is being opened by {self._opener()}, which is not done within {deadline.seconds:g} s"
        )

    def _opener(self) -> str:
        return " and ".join(self.holders()) or "a process that this user may not see"

    def settle(self) -> None:
        """The space is open: others may come in, and see that somebody lives."""
        self.disk.lock(self.handle, _ALIVE, shared=True)
        self.disk.funlock(self.handle)

    def others(self) -> bool:
        """Whether somebody else has the space open, too."""
        return self.disk.some_lock(self.handle, _ALIVE, 1) is not None

    def is_alone(self) -> bool:
        """Whether nobody has the space open now, or is opening it; for who only looks, and does not come in."""
        handle = self.disk.open_directory("")
        try:
            return self.disk.some_lock(handle, _ALIVE, 1) is None and self.disk.flock(handle)
        finally:
            self.disk.close(handle)

    def holders(self) -> list[str]:
        """Who has the space open, as far as this user may see, e.g. ``["process 4711 (python3)"]``."""
        return self.disk.lock_holders(self.handle, _ALIVE)

    def close(self) -> None:
        self.disk.close(self.handle)
