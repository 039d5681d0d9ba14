"""The content of whole files: write, copy or replace a file, with the calls of ``Disk``."""

import errno
import os
import stat
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from itertools import zip_longest

from spool.disk.disk import Disk
from spool.disk.stat import FileIdentity

_CHUNK_BYTES = 1 << 20
_FILES_AHEAD = 64


@contextmanager
def closed_at_end(disk: Disk, handle: int) -> Iterator[int]:
    """Close a handle at the end of the block."""
    try:
        yield handle
    finally:
        disk.close(handle)


def opened(disk: Disk, name: str, *, write: bool = False) -> AbstractContextManager[int]:
    """Open a file, and close it at the end of the block."""
    return closed_at_end(disk, disk.open(name, write=write))


def new_file(disk: Disk, name: str) -> AbstractContextManager[int]:
    """Create a file, and close it at the end of the block. Raises FileExistsError if the name is taken."""
    return closed_at_end(disk, disk.create(name))


def open_first(disk: Disk, names: Iterable[str]) -> int | None:
    """Open the first of the named files that exists. Another process may rename the file to the next name at any
    time."""
    for name in names:
        with suppress(FileNotFoundError):
            return disk.open(name)
    return None


def read_start(disk: Disk, name: str, length: int) -> bytes:
    """Return the first ``length`` bytes of a file, or all bytes of a shorter file."""
    with opened(disk, name) as handle:
        return disk.read_at(handle, 0, length)


def opened_ahead(disk: Disk, names: Sequence[str], length: int) -> Generator[int | None, None, None]:
    """Open files for reading, one after the other. Yield each handle, or None for a file that cannot be opened.

    While the caller reads one file, the kernel already reads the first ``length`` bytes of the next files. Otherwise
    the caller would wait for each file, and the disk would be idle while the caller works.
    """
    for begin in range(0, len(names), _FILES_AHEAD):
        handles: list[int | None] = []
        try:
            for name in names[begin : begin + _FILES_AHEAD]:
                handles.append(None)
                with suppress(OSError):
                    handles[-1] = there = disk.open(name)
                    disk.will_read(there, length)
            yield from handles
        finally:
            for handle in [handle for handle in handles if handle is not None]:
                disk.close(handle)


def chunks(disk: Disk, handle: int, start: int = 0, end: int | None = None) -> Iterator[bytes]:
    """Read a file in pieces, from ``start`` to the offset ``end``. Raises OSError if the file ends before ``end``.

    Without ``end``, read to the end of the file.
    """
    offset = start
    while offset != end:
        data = disk.read_at(handle, offset, _CHUNK_BYTES if end is None else min(_CHUNK_BYTES, end - offset))
        if not data:
            if end is None:
                return
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        yield data
        offset += len(data)


def write_chunks(disk: Disk, handle: int, pieces: Iterable[bytes], offset: int = 0) -> None:
    """Write the pieces one after the other, the first piece at ``offset``."""
    for data in pieces:
        disk.write_at(handle, offset, data)
        offset += len(data)


def write_new(disk: Disk, name: str, data: bytes, *, durable: bool) -> None:
    """Write a new file. Raises FileExistsError if the name is taken.

    ``durable``: whether to make the bytes and the name of the file durable.
    """
    with new_file(disk, name) as handle:
        disk.write_at(handle, 0, data)
        if durable:
            disk.make_durable(handle, directory_of(name))


def copy(disk: Disk, source: str, target: str, most: int | None = None) -> None:
    """Copy a file to a new name. Raises FileExistsError if the name is taken.

    The copy is durable when this call returns. Long stretches of zeros take no room in the copy.

    Args:
        most: the greatest size to copy. If the file is larger, no byte is copied, and the error is OSError (EFBIG).
    """
    with opened(disk, source) as read, new_file(disk, target) as written:
        size = disk.handle_identity(read).size
        if most is not None and size > most:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        offset = end = 0
        for data in chunks(disk, read, 0, size):
            if data.count(0) < len(data):
                disk.write_at(written, offset, data)
                end = offset + len(data)
            offset += len(data)
        if end < size:
            disk.truncate(written, size)
        disk.make_durable(written, directory_of(target))


def protect_files(disk: Disk, folder: str, identity: FileIdentity) -> None:
    """Set the sticky bit of a folder, so that its users cannot rename or remove each other's files."""
    disk.set_mode(folder, identity.permissions | stat.S_ISVTX)


def replace(disk: Disk, name: str, pieces: Iterable[bytes], temporary: str) -> None:
    """Replace the file of this name atomically by a new file with this content.

    ``temporary``: a free name in a directory of the same file system. The bytes are durable before the new file gets
    the name. The content and the name are durable when this call returns.

    The file remains open during the rename: on some file systems, a flush through this handle then also makes the name
    durable.
    """
    with replacement(disk, pieces, temporary) as take_name:
        take_name(name)


@contextmanager
def replacement(disk: Disk, pieces: Iterable[bytes], temporary: str) -> Iterator[Callable[[str], None]]:
    """Write a new file durably. The body may call the yielded function with the name of the file to replace.

    See ``replace``. Without this call, the new file keeps its temporary name.
    """
    with new_file(disk, temporary) as handle:
        write_chunks(disk, handle, pieces)
        disk.make_durable(handle, directory_of(temporary), new=True)

        def take_name(name: str) -> None:
            disk.rename(temporary, name)
            disk.make_durable(handle, directory_of(name))

        yield take_name


def replace_by_copy(disk: Disk, name: str, temporary: str) -> None:
    """Replace a file by a copy with the same bytes on a new inode. The copy is durable when this call returns."""
    with opened(disk, name) as handle:
        replace(disk, name, chunks(disk, handle), temporary)


def unlink_if_there(disk: Disk, name: str) -> None:
    """Remove a file that an earlier process may have left."""
    if disk.exists(name):
        disk.unlink(name)


def unlink_unless_gone(disk: Disk, name: str) -> None:
    """Remove a file that another process may remove at the same time."""
    with suppress(FileNotFoundError):
        disk.unlink(name)


def is_directory(disk: Disk, name: str) -> bool:
    """Return whether this is the name of a directory. A symlink to a directory does not count."""
    identity = disk.identity(name)
    return identity is not None and identity.is_directory


def same_bytes(disk: Disk, one: str, other: str) -> bool:
    """Return whether two files hold the same bytes. Return False if one of the files cannot be opened."""
    with ExitStack() as stack:
        try:
            handles = [stack.enter_context(opened(disk, name)) for name in (one, other)]
        except OSError:
            return False
        return all(a == b for a, b in zip_longest(*(chunks(disk, handle) for handle in handles)))


def ensure_directory(disk: Disk, name: str) -> None:
    """Create a missing directory and make it durable, because its files would be lost together with the directory."""
    disk.make_directory(name)
    for directory in (name, directory_of(name)):
        disk.flush_directory(directory)


def ensure_directories(disk: Disk, parent: str, names: Iterable[str]) -> None:
    """Create missing directories in one directory, and make all of them durable.

    If the file system keeps the order of names, one flush makes thousands of new directories durable.
    """
    for name in names:
        disk.make_directory(name)
        if disk.durability.needs_links:
            disk.flush_directory(name)
    disk.flush_directory(parent)


def directory_of(name: str) -> str:
    """Return the directory part of a file's path in the space."""
    return name.rpartition("/")[0]
