"""What tells one file from another, whatever their names, and what kind of file it is."""

import os
import stat
from typing import NamedTuple


class FileIdentity(NamedTuple):
    """What tells one file from another, whatever their names.

    ``modified_ns``: when its bytes changed last, or what a program set since. ``changed_ns``: when anything of it
    changed last, its name included; no program can set that. Both in nanoseconds since the epoch.
    """

    device: int
    inode: int
    links: int
    size: int
    modified_ns: int
    mode: int
    owner: int
    changed_ns: int

    @property
    def is_regular(self) -> bool:
        return stat.S_ISREG(self.mode)

    @property
    def is_plain(self) -> bool:
        """A regular file that has no other name."""
        return self.is_regular and self.links == 1

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_symlink(self) -> bool:
        return stat.S_ISLNK(self.mode)

    @property
    def permissions(self) -> int:
        return stat.S_IMODE(self.mode)

    def same_file(self, other: "FileIdentity | None") -> bool:
        return other is not None and (self.device, self.inode) == (other.device, other.inode)


def identity_of(found: os.stat_result) -> FileIdentity:
    return FileIdentity(
        found.st_dev,
        found.st_ino,
        found.st_nlink,
        found.st_size,
        found.st_mtime_ns,
        found.st_mode,
        found.st_uid,
        found.st_ctime_ns,
    )
