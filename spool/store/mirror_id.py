"""The bond of a space and its mirror: both hold the same random id, in a file ``mirror.id``.

A directory without the id is no mirror. So an opener writes nothing into a mount point whose disk is missing, and
nothing into the mirror of another space. While a new mirror is being created, the space's file has two lines: the id of
the mirror that the settings still name, and the id of the new mirror. The next opener keeps the id of the mirror that
the settings name then.
"""

import os
from collections.abc import Sequence

from spool.disk.content import read_start
from spool.disk.disk import Disk
from spool.errors import MirrorMismatch
from spool.model import layout
from spool.model.text import quoted
from spool.store.settings import replace_text

_MAX_BYTES = 4096


def new_id() -> str:
    return os.urandom(16).hex()


def read_ids(disk: Disk) -> tuple[str, ...]:
    """Return the ids of a space, or the id of a mirror; none if the file is missing."""
    try:
        return tuple(read_start(disk, layout.MIRROR_ID, _MAX_BYTES).decode("ascii", "replace").split())
    except FileNotFoundError:
        return ()


def write_ids(disk: Disk, ids: Sequence[str]) -> None:
    """Replace all ids atomically; the ids are durable when this returns."""
    replace_text(disk, layout.MIRROR_ID, "".join(f"{one}\n" for one in ids))


def forget_ids(space: Disk) -> None:
    """Forget the mirror: the space continues without a mirror, and later commits are not copied."""
    if space.exists(layout.MIRROR_ID):
        space.unlink(layout.MIRROR_ID)
        space.flush_directory("")


def check_ids(space: Disk, mirror: Disk) -> None:
    """Raise MirrorMismatch unless the directory is the mirror that was begun for this space."""
    begin = f"spool-admin -s {quoted(space.root)} mirror begin DIRECTORY"
    found, known = read_ids(mirror), read_ids(space)
    if not found:
        state = "is no mirror: it is empty, or missing" if not layout.foreign(_names(mirror)) else "is no mirror"
        raise MirrorMismatch(
            f"{mirror.root}, the mirror of {space.root} by its space.toml, {state}. Mount the disk with the mirror, "
            f"or begin a new mirror: {begin}"
        )
    if not set(found) & set(known):
        raise MirrorMismatch(
            f"{mirror.root} is the mirror of another space than {space.root}, or of the same space before it continued "
            f"without this mirror. Name the right directory in space.toml, or begin a new mirror: {begin}"
        )


def keep_id(space: Disk, mirror: Disk) -> None:
    """Keep only the id of this mirror. ``check_ids`` has accepted the mirror."""
    found = read_ids(mirror)
    if read_ids(space) != found:
        write_ids(space, found)


def _names(disk: Disk) -> list[str]:
    try:
        return disk.names("")
    except FileNotFoundError:
        return []
