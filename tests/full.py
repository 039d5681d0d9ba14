"""A disk with no room: as what a test puts in the place of a call of the disk, and as a disk of real files."""

import errno
import os

from spool.disk.disk import Disk

_BLOCK_BYTES = 4096


def no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class FullDisk(Disk):
    """Real files. Once ``full``, no file grows beyond its last block, and other programs take each byte that becomes
    free. Files can be overwritten, renamed and removed."""

    full = False

    def write_at(self, handle: int, offset: int, data: bytes) -> None:
        size = self.handle_identity(handle).size
        room = -(-size // _BLOCK_BYTES) * _BLOCK_BYTES - offset
        if self.full and room < len(data):
            super().write_at(handle, offset, data[: max(0, room)])
            no_room()
        super().write_at(handle, offset, data)
