"""Check the requirements on a file system that `spool.create` and `spool.open` can check without a trial.

`spool.admin.doctor` checks the other requirements by trials.
"""

import errno
from shlex import quote

from spool.disk.disk import Disk
from spool.disk.kernel import Unsupported
from spool.errors import UnsafeFileSystem
from spool.model import layout

# These directories may be on another device, because no file is renamed from or to them.
APART = (layout.DROP, layout.RUN)


def check_kind(disk: Disk, allowed: str | None) -> None:
    """Raise UnsafeFileSystem if the space lies on a network file system whose kind is not `allowed`."""
    kind = disk.network_file_system()
    if kind is not None and kind != allowed:
        raise UnsafeFileSystem(
            f"{disk.root} lies on {kind}, a network file system, where locks and renames can fail silently: "
            f"choose a local directory, or insist with network_file_system = {kind!r}"
        )


def check_stages(disk: Disk) -> None:
    """Raise UnsafeFileSystem if a directory of the space is a file or a symlink, or lies on another device."""
    for name in layout.DIRECTORIES:
        if defect := misplacement(disk, name):
            raise UnsafeFileSystem(f"{disk.path(name)} {defect}")


def misplacement(disk: Disk, name: str) -> str:
    """Return the reason why a directory of the space cannot be used where it is, or "" if it can be used."""
    space, directory = disk.identity(""), disk.identity(name)
    if directory is None or space is None:
        return ""
    if not directory.is_directory:
        kind = "a symlink" if directory.is_symlink else "a file"
        cure = "move the directory that it names to its place" if directory.is_symlink else "move away the file"
        return f"is {kind}, and the space needs its own directory there: {cure}"
    if directory.device != space.device and name not in APART:
        return "lies on another device than the space, so nothing can be renamed into it: unmount the other file system"
    return ""


def on_another_machine(root: str) -> UnsafeFileSystem:
    """Return the error for a task that does not run on the machine of the space, i.e. under the same kernel."""
    return UnsafeFileSystem(
        f"{root} is open on another machine, whose locks are not seen here: a task has to run on the machine of its "
        "space (spool-admin docs scaling)"
    )


def unsafe(disk: Disk, doing: str, error: Unsupported) -> UnsafeFileSystem:
    """Return the error for an operation that the file system does not support. ``doing``: the name of the call."""
    reason = {
        errno.EXDEV: "a part of the space lies on another device, or is mounted on its own",
        errno.ENOLCK: "it has no locks that keep processes apart",
    }.get(error.errno or 0, "it does not support an operation that a queue space needs")
    return UnsafeFileSystem(
        f"{doing}: the file system of {disk.root} cannot be used: {reason} ({error.strerror}); nothing was lost: "
        f"run spool-admin doctor {quote(disk.root)}, and choose another directory"
    )
