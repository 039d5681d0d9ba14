"""Who has the space open: they hold its own directory, which nobody can delete from under them as ``run/`` can be.

The directory is held shared by everybody who has the space open, and exclusively while one who is alone recovers it.
Only who is alone makes files in ``run/``; so a name there means one file as long as anybody lives, and locks on it keep
processes apart, even while somebody deletes it (DESIGN §5, "Open").
"""

from spool.clock import Deadline, WaitExpired
from spool.disk import Disk


class Presence:
    """One opener's hold on the space's directory."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.handle = disk.open_directory("")

    def enter(self, deadline: Deadline) -> bool:
        """Come in. True: nobody else has the space open, or can before ``settle``; False: others have."""
        for _ in deadline.polls():
            if self.disk.hold(self.handle, shared=False):
                return True
            if self.disk.hold(self.handle, shared=True):
                return False
        raise self._expired(deadline)

    def settle(self, deadline: Deadline) -> None:
        """After ``enter``: let others in. One who comes between may find itself alone, too, and recover once more."""
        for _ in deadline.polls():
            if self.disk.hold(self.handle, shared=True):
                return
        raise self._expired(deadline)

    def is_alone(self) -> bool:
        """Whether nobody has the space open now; for who only looks, and does not come in."""
        handle = self.disk.open_directory("")
        try:
            return self.disk.hold(handle, shared=False)
        finally:
            self.disk.close(handle)

    def holders(self) -> list[str]:
        """Who has the space open, as far as this user may see, e.g. ``["process 4711 (python3)"]``."""
        return self.disk.lock_holders(self.handle, 0)

    def close(self) -> None:
        self.disk.close(self.handle)

    def _expired(self, deadline: Deadline) -> WaitExpired:
        who = " and ".join(self.holders()) or "a process that this user may not see"
        return WaitExpired(f"the space is being opened by {who}, which is not done within {deadline.seconds:g} s")
