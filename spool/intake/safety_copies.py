"""Safety copies of dropped files. The copies are needed for renames on file systems that do not order renames.

On these file systems, a power cut can lose both names of a renamed file. So the intake gives a file its second name by
a link. The kernel refuses a link to a file that this user neither owns nor can write (fs.protected_hardlinks). Before
the rename of such a file, the intake makes a copy in the folder ``.spare.<inode of the original>/`` of the capture
directory. Until the copy is complete, this folder is named ``.part.…``. The copy is durable before the rename. The copy
is removed before any commit of the file. The copy is used only if the original is lost.

A file that is too large for ``max_body_bytes`` gets no copy, because it goes to quarantine anyway.

Only one intake at a time copies files of a queue's folder (``drop_folder_byte``).
"""

import errno
import os
import re
from contextlib import suppress

from spool.disk.content import copy, is_directory, same_bytes
from spool.disk.disk import Disk
from spool.model import layout

_PART, _SPARE = ".part.", ".spare."
_FOLDER = re.compile(r"\.(part|spare)\.[0-9]+")


def make(disk: Disk, first: str, directory: str, most: int) -> None:
    """Copy a dropped file. The copy is durable once the capture directory is flushed. Raises OSError if the file does
    not exist, or has more than ``most`` bytes."""
    if (original := disk.identity(first)) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), first)
    part = f"{directory}/{_PART}{original.inode}"
    disk.make_directory(part)
    try:
        copy(disk, first, f"{part}/{first.rpartition('/')[2]}", most)
        disk.rename(part, f"{directory}/{_SPARE}{original.inode}")
    except OSError:
        remove(disk, part)
        raise


def remove(disk: Disk, folder: str) -> None:
    for name in disk.names(folder):
        disk.unlink(f"{folder}/{name}")
    disk.remove_directory(folder)


def folders(disk: Disk, directory: str) -> list[str]:
    """Return the folders of copies in a capture directory. Return [] if the directory was removed."""
    with suppress(FileNotFoundError):
        if is_directory(disk, directory):
            paths = [f"{directory}/{name}" for name in sorted(disk.names(directory)) if _FOLDER.fullmatch(name)]
            return [path for path in paths if is_directory(disk, path)]
    return []


def recover(disk: Disk, directory: str, queue: str) -> None:
    """Recover the copies of an intake that died. If an original is lost, its copy becomes the captured file. Otherwise
    the copy is removed. The changes are durable when this call returns."""
    left = folders(disk, directory)
    for folder in [folder for folder in left if _SPARE in folder]:
        for name in disk.names(folder):
            captured, first = f"{directory}/{name}", f"{layout.DROP}/{queue}/{name}"
            if not disk.exists(captured) and not _is_original(disk, first, folder):
                disk.link(f"{folder}/{name}", captured)
    disk.flush_directory(directory)  # a captured file's name must be durable before its copy is removed
    for folder in left:
        remove(disk, folder)
    disk.flush_directory(directory)


def _is_original(disk: Disk, first: str, folder: str) -> bool:
    """Return whether a dropped file is the original of a copy, because it has the original's inode or the copy's bytes.
    The bytes are also compared, because a file system may give the original another inode number."""
    identity = disk.identity(first)
    if identity is None or not identity.is_regular:
        return False
    copy = f"{folder}/{first.rpartition('/')[2]}"
    return folder.endswith(f"{_SPARE}{identity.inode}") or same_bytes(disk, first, copy)
