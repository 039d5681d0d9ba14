"""Results of stat(2) and statfs(2): the identity of a file, and the guarantees of a file system."""

import ctypes
import os
import stat
from operator import attrgetter
from typing import NamedTuple

from spool.disk.kernel import SYNCFS_TELLS, last_error

_libc = ctypes.CDLL(None, use_errno=True)

# The kinds of file systems by the magic number of statfs(2).
_EXT, _XFS, _BTRFS, _TMPFS = 0xEF53, 0x58465342, 0x9123683E, 0x01021994
_LOCAL = {
    _EXT: "ext4", _XFS: "xfs", _BTRFS: "btrfs", _TMPFS: "tmpfs", 0x858458F6: "ramfs", 0xF2F52010: "f2fs",
    0x2FC12FC1: "zfs", 0x794C7630: "overlay", 0x65735546: "fuse", 0x4D44: "vfat", 0x2011BAB0: "exfat",
    0x7366746E: "ntfs3",
}  # fmt: skip
_NETWORK = {
    0x6969: "nfs", 0x517B: "smb", 0xFE534D42: "smb2", 0xFF534D42: "cifs", 0x5346414F: "afs", 0x00C36400: "ceph",
    0x01021997: "9p", 0x0BD00BD0: "lustre", 0x47504653: "gpfs", 0x7461636F: "ocfs2", 0x01161970: "gfs2",
}  # fmt: skip


class FileSystem(NamedTuple):
    """The file system of a space. ``free_inodes`` is None if this kind of file system has no fixed number of inodes."""

    kind: str
    read_only: bool
    free_bytes: int
    free_inodes: int | None


def file_system(path: str) -> FileSystem:
    magic, found = _magic(path), os.statvfs(path)
    kind = _NETWORK.get(magic) or _LOCAL.get(magic) or f"unknown ({magic:#x})"
    inodes = found.f_favail if found.f_files else None
    return FileSystem(kind, bool(found.f_flag & os.ST_RDONLY), found.f_bavail * found.f_frsize, inodes)


def network_file_system(path: str) -> str | None:
    """Return the kind of the network file system, or None if the file system is local or unknown."""
    return _NETWORK.get(_magic(path))


def overwrites_in_place(path: str) -> bool:
    """Return whether the file system overwrites bytes in place. Then an overwrite succeeds even on a full disk."""
    return _magic(path) in (_EXT, _XFS, _TMPFS)


def _magic(path: str) -> int:
    """Return ``f_type`` of statfs(2)."""
    buffer = ctypes.create_string_buffer(256)
    if _libc.statfs(os.fsencode(path), buffer) != 0:
        raise last_error(path)
    return int.from_bytes(buffer.raw[:8], "little") & 0xFFFFFFFF


class Guarantees(NamedTuple):
    """The guarantees of a file system about flushes. By default nothing is guaranteed.

    ``spool.disk.durability`` chooses a strategy by these guarantees.

    orders_renames: whether renames reach the disk in their order.
    names_follow: whether renames are ordered, and ``fdatasync`` of an overwritten file makes only its bytes durable.
        The name then becomes durable later.
    carries_new_names: whether a flush of a file makes its name durable, provided that no other file had the name
        before.
    needs_turns: whether two flushes of one directory at the same time could lose names.
    flushes_all: whether syncfs(2) flushes everything and reports errors. If False, the call may flush nothing and
        report success (FUSE), or delay the flushes of other processes.
    """

    orders_renames: bool = False
    names_follow: bool = False
    carries_new_names: bool = False
    needs_turns: bool = False
    flushes_all: bool = False


def guarantees_of(path: str) -> Guarantees:
    """Return the guarantees of the file system. Nothing is guaranteed if the path is no directory yet."""
    if not os.path.isdir(path):
        return Guarantees()
    is_ext, is_ordered = _magic(path) == _EXT, renames_are_ordered(path)
    return Guarantees(
        orders_renames=is_ordered,
        names_follow=is_ordered and is_ext,
        carries_new_names=is_ordered or is_ext4(path),
        needs_turns=is_ext and not is_ordered,
        flushes_all=SYNCFS_TELLS and is_ordered,
    )


def renames_are_ordered(path: str) -> bool:
    magic = _magic(path)
    if magic == _EXT:
        return _has_journal(path)
    return magic in (_XFS, _BTRFS)


def _has_journal(path: str) -> bool:
    """Return whether an ext file system has a journal.

    For a file system with a journal, ``/proc/fs/jbd2`` has an entry ``<device>-<inode>``.
    """
    try:
        name = _device_name(path)
        return any(entry.startswith(f"{name}-") for entry in os.listdir("/proc/fs/jbd2"))
    except OSError:
        return False  # unknown; the flushes for a file system without a journal are correct in any case


def is_ext4(path: str) -> bool:
    """Return whether the ext4 driver lists the device of the path. (ext2 has the same magic number as ext4.)"""
    try:
        return _magic(path) == _EXT and os.path.isdir(f"/sys/fs/ext4/{_device_name(path)}")
    except OSError:
        return False


def _device_name(path: str) -> str:
    device = os.stat(path).st_dev
    return os.path.basename(os.readlink(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}"))


# -- one file ---------------------------------------------------------------------------------------------------------


class FileIdentity(NamedTuple):
    """The identity of a file, independent of its names. Times are in nanoseconds since the epoch.

    modified_ns: the time of the last change of the bytes; programs can set this time.
    changed_ns: the time of the last change of any kind, e.g. of a name; no program can set this time.
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
        """Return whether this is a regular file without a second name."""
        return self.is_regular and self.links == 1

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_symlink(self) -> bool:
        return stat.S_ISLNK(self.mode)

    @property
    def lets_users_remove_files_of_others(self) -> bool:
        """Return whether several users may create files in this directory, and the directory has no sticky bit."""
        return self.is_directory and bool(self.mode & 0o022) and not self.mode & stat.S_ISVTX

    @property
    def version(self) -> tuple[int, int, int, int]:
        """Return a value that identifies the file and its content, if programs do not set its times."""
        return self.device, self.inode, self.size, self.modified_ns

    @property
    def permissions(self) -> int:
        return stat.S_IMODE(self.mode)

    def same_file(self, other: "FileIdentity | None") -> bool:
        return other is not None and (self.device, self.inode) == (other.device, other.inode)


_stat_fields = attrgetter("st_dev", "st_ino", "st_nlink", "st_size", "st_mtime_ns", "st_mode", "st_uid", "st_ctime_ns")


def identity_of(found: os.stat_result) -> FileIdentity:
    return tuple.__new__(FileIdentity, _stat_fields(found))  # without a call of Python code


def is_same_original(one: str, other: str) -> bool:
    """Return whether two results of ``Disk.lasting_identity`` are of the same file, not of a file and its copy.

    If only one result has a handle, e.g. because a container may not ask the kernel, the inode numbers decide.
    """
    (inode, _, handle), (other_inode, _, other_handle) = one.partition("-"), other.partition("-")
    return inode == other_inode and (handle == other_handle or not handle or not other_handle)
