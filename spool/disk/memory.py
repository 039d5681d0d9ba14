"""A file as memory that processes share: what one writes there, all see at once, without a system call.

A page of a mapped file that cannot be written or read ends the process (SIGBUS). So a file is mapped only where its
blocks are overwritten in place: a full disk cannot refuse that. On other file systems the same bytes are read and
written by calls, which can fail in the ordinary way.
"""

import mmap
from typing import Protocol


class SharedBytes(Protocol):
    """The first bytes of a file, as slices. Two processes that use the same ones at once may see half a change."""

    def __getitem__(self, place: slice, /) -> bytes: ...

    def __setitem__(self, place: slice, data: bytes, /) -> None: ...

    def close(self) -> None:
        """Let go of the memory; what is done with it afterwards raises ValueError."""


class Calls(Protocol):
    """What of a ``Disk`` reads and writes the bytes of an open file."""

    def read_at(self, handle: int, offset: int, length: int) -> bytes: ...

    def write_at(self, handle: int, offset: int, data: bytes) -> None: ...


class ByCalls:
    """The bytes of an open file, read and written by calls."""

    def __init__(self, disk: Calls, handle: int) -> None:
        self._disk = disk
        self._handle = handle

    def __getitem__(self, place: slice) -> bytes:
        return self._disk.read_at(self._handle, place.start, place.stop - place.start)

    def __setitem__(self, place: slice, data: bytes) -> None:
        self._disk.write_at(self._handle, place.start, data)

    def close(self) -> None:
        """The handle stays open: it is its owner's."""


def share(disk: Calls, handle: int, length: int, *, in_place: bool) -> SharedBytes:
    """Share the first bytes of an open file, which must have as many. ``in_place``: whether they may be mapped."""
    return mmap.mmap(handle, length) if in_place else ByCalls(disk, handle)
