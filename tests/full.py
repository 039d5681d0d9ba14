"""A disk with no room, as what a test puts in the place of a call of the disk."""

import errno
import os


def no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
