"""Begin or end the mirror of a space, or create a space from a mirror. No process may have the space open."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from spool.coordination.locks import OpenLock
from spool.disk.advice import translated
from spool.disk.content import chunks, ensure_directory, new_file, opened, write_chunks
from spool.disk.disk import Disk
from spool.disk.requirements import check_kind, check_stages
from spool.errors import InvalidArgument, NotASpace, SpaceExists, SpoolError, SystemFailure
from spool.model import layout
from spool.model.paths import local_path
from spool.model.settings import space_config
from spool.model.settings_file import parse, with_mirror
from spool.opening import inspected, open_space, space_directory
from spool.runtime import call_guard
from spool.runtime.clock import Deadline
from spool.space import Space
from spool.store.identity import read_id, write_id
from spool.store.mirror import Mirror, begin_mirror, check_elsewhere, forget_ids, lies_inside, read_ids
from spool.store.settings_reader import read_settings_text, replace_text, write_settings
from spool.store.store import WAIT_SECONDS

if TYPE_CHECKING:
    from spool.recovery import mirrored

__all__ = ["begin", "describe", "drop", "restore"]


def describe(path: str | os.PathLike[str]) -> "mirrored.MirrorState | None":
    """Describe the mirror of a space, and whether the space opens with this mirror; None if the space has no mirror.

    Nothing is changed, and other processes may have the space open. Raises NotASpace, and DiskFailure.
    """
    from spool.recovery import mirrored

    with inspected(path) as (store, alone):
        return mirrored.describe(store.files, store.shared, alone=alone)


def begin(path: str | os.PathLike[str], mirror: str | os.PathLike[str]) -> Space:
    """Begin a new mirror of a space, and copy every commit into the mirror; returns the open space.

    An earlier mirror keeps its files, but is no longer a mirror of the space.

    Args:
        path: the directory of the space.
        mirror: an empty directory, preferably on another disk. A missing directory is created; its parent must exist.

    Raises:
        InvalidArgument: the mirror's directory is not empty or lies inside the space, or ``space.toml`` cannot hold the
            directory's name.
        SystemFailure: a process has the space open.
        NotASpace: ``path`` holds no space.
        the errors of ``open``, e.g. if a damaged commit cannot be copied: the space keeps its former mirror, or none.
    """
    mirror = os.path.abspath(local_path(mirror))
    space_config({"mirror": mirror}, {})  # checked before a file is created in the mirror
    with _closed(path) as disk:
        check_elsewhere(mirror, disk.root)
        text = read_settings_text(disk)
        parse(text, disk.path(layout.SETTINGS))
        side = disk.sibling(mirror)
        try:
            begin_mirror(disk, side, with_mirror(text, None))
        finally:
            side.close_all()
        write_settings(disk, with_mirror(text, side.root))
    try:
        with call_guard.deferred(disk.close_all), translated("opening the queue space"):
            return open_space(disk)
    except SpoolError:  # e.g. a commit is damaged
        with suppress(SystemFailure), _closed(path) as disk:
            write_settings(disk, text)
        raise


def drop(path: str | os.PathLike[str]) -> str:
    """End the mirror of a space; returns the mirror's directory, which is not touched.

    Raises:
        InvalidArgument: the space has no mirror.
        SystemFailure: a process has the space open.
        NotASpace: ``path`` holds no space.
    """
    with _closed(path) as disk:
        text = read_settings_text(disk)
        if (mirror := parse(text, disk.path(layout.SETTINGS)).mirror) is None:
            raise InvalidArgument(f"{disk.root} has no mirror")
        write_settings(disk, with_mirror(text, None))
        forget_ids(disk)
        return mirror


@contextmanager
def _closed(path: str | os.PathLike[str]) -> Iterator[Disk]:
    """Keep a space closed for all processes while the body runs."""
    disk = Disk.of(path)
    with call_guard.deferred(disk.close_all), translated("changing the mirror of the queue space"):
        try:
            if not disk.exists(layout.SETTINGS):
                read_settings_text(disk)  # raises if the directory is no space
            lock = OpenLock(disk)
            if not lock.enter(Deadline(disk.clock, WAIT_SECONDS, disk.clock.monotonic() + WAIT_SECONDS)):
                seen = lock.others() or lock.holders()  # (names this process only if this user sees no others)
                raise SystemFailure(
                    f"{' and '.join(seen) or 'a process'} {'have' if len(seen) > 1 else 'has'} {disk.root} open: close "
                    "it in every process first, then change its mirror"
                )
            yield disk
        finally:
            disk.close_all()


def restore(
    path: str | os.PathLike[str], mirror: str | os.PathLike[str], *, progress: Callable[[int, int], None] | None = None
) -> Space:
    """Create a new space, without a mirror, from a mirror; returns the open space. The mirror is not changed.

    An interrupted restore leaves no space. The next call begins from the start.

    Args:
        path: the directory of the new space. The directory must be empty, or left by an interrupted restore.
        mirror: the directory of the mirror.
        progress: called with the number of copied files and the number of all files.

    Raises:
        SpaceExists: the new space's directory is not empty.
        InvalidArgument: the new space's directory lies inside the mirror.
        NotASpace: ``mirror`` is no mirror.
        MirrorMismatch: a process has the space of the mirror open.
    """
    root, mirror = os.path.abspath(local_path(path)), os.path.abspath(local_path(mirror))
    if lies_inside(root, mirror):
        raise InvalidArgument(
            f"the new space {root} lies inside the mirror {mirror}, which is not changed: name a directory elsewhere"
        )
    with space_directory(path) as disk, call_guard.deferred(disk.close_all), translated("restoring the queue space"):
        side = disk.sibling(mirror)
        try:
            settings, id = _settings_of(side), read_id(side)
            Mirror(disk, side).hold_for_restore()
            _restore(disk, side, id, settings, progress or (lambda done, of: None))
        finally:
            side.close_all()
        return open_space(disk)


def _settings_of(mirror: Disk) -> str:
    """Return the settings for a space that is created from the mirror."""
    try:
        if read_ids(mirror):
            return with_mirror(Mirror(mirror, mirror).settings(), None)
    except FileNotFoundError:
        pass
    raise NotASpace(f"{mirror.root} is not the mirror of a queue space: it has no {layout.MIRROR_ID}")


def _restore(disk: Disk, mirror: Disk, id: str, settings: str, progress: Callable[[int, int], None]) -> None:
    """Copy every file of the mirror.

    Once all files are durable, write the settings. The settings make the directory a space.
    """
    config = parse(settings, mirror.path(layout.MIRROR_SETTINGS))
    check_kind(disk, config.network_file_system)
    if _is_taken(disk):
        raise SpaceExists(f"{disk.root} is not empty: choose an empty or a new directory, or move its files away")
    check_stages(disk)
    replace_text(disk, layout.RESTORING, settings)
    for name in (*layout.DIRECTORIES, *(f"{layout.DROP}/{queue}" for queue in config.queues)):
        ensure_directory(disk, name)
    for directory in (layout.COMMITTED, layout.PREPARED):
        for name in disk.names(directory):
            disk.unlink(f"{directory}/{name}")
    names = sorted(name for name in mirror.names("") if layout.parse_committed(name) or layout.parse_xid(name))
    for done, name in enumerate(names):
        progress(done, len(names))
        directory = layout.COMMITTED if layout.parse_committed(name) else layout.PREPARED
        with opened(mirror, name) as source, new_file(disk, f"{directory}/{name}") as target:
            write_chunks(disk, target, chunks(mirror, source))
            disk.flush(target)
    for directory in (layout.COMMITTED, layout.PREPARED):
        disk.flush_directory(directory)
    write_id(disk, id)
    write_settings(disk, settings)
    disk.unlink(layout.RESTORING)  # last: until then, a power cut leaves a directory that another restore accepts
    progress(len(names), len(names))


def _is_taken(disk: Disk) -> bool:
    """Return whether a directory has files that no interrupted restore has left."""
    if disk.exists(layout.SETTINGS):
        return True
    if disk.exists(layout.RESTORING):
        return False
    filled = (name for name in layout.DIRECTORIES if disk.exists(name) and disk.names(name))
    return any(filled) or layout.foreign(disk.names("")) not in ([], [f"{layout.RESTORING}.tmp"])
