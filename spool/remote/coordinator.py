"""The locks of a coordinator, in a process that does nothing but hold them.

A coordinator of ours lives as long as its lock is held. That need not be by the process that began it, nor by the one
that decides: the locks are taken on open file descriptions of their own, so any process that inherits their descriptors
holds them, until the last one closes its copy or dies.
"""

from spool.coordination.locks import LockFile, OpenLock, coordinator_byte
from spool.disk.disk import Disk
from spool.errors import ProtocolError
from spool.model import layout


def lock_coordinator(disk: Disk, gtrid: bytes) -> tuple[int, int]:
    """Lock a new coordinator's id and the space as open, once more; returns the descriptors of the two locks.

    As long as they are held, no branch of the coordinator is rolled back by another process, and no opener takes itself
    for alone. Caller has the space open, and closes the descriptors.

    Raises:
        ProtocolError: a coordinator with this id lives.
    """
    xids = LockFile(disk, layout.XIDS, make=False)
    if not xids.try_lock(coordinator_byte(gtrid)):
        raise ProtocolError(f"the coordinator {gtrid.hex()} exists already")
    open_lock = OpenLock(disk)
    open_lock.finish_opening()
    return xids.handle, open_lock.handle
