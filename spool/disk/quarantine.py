"""Where unreadable files go, with the reason beside each: nothing is ever silently deleted."""

import logging
from contextlib import ExitStack
from shlex import quote

from spool.disk.disk import Disk
from spool.model import layout

log = logging.getLogger("spool")
IS_MESSAGES = "it became messages"  # how the reason of a dropped file that is set aside then begins
REASON_SUFFIX = ".reason.txt"
MAX_REASON_BYTES = 64 << 10
_MAX_STEM = 200
_CHUNK_BYTES = 1 << 20


def quarantine(disk: Disk, name: str, reason: str) -> str:
    """Move a file there under a name that is free; returns the new name. The reason is written first; what comes to
    lie in the file's old place must not outlive its new one."""
    target = _free_name(disk, name, reason)
    disk.own(name)
    disk.rename(name, target)
    disk.flush_directory(layout.QUARANTINE)
    entry = target.rpartition("/")[2]
    log.warning("%s was moved to %s: %s (spool-admin quarantine show %s)", name, target, reason, quote(entry))
    return target


def quarantine_bytes(disk: Disk, name: str, data: bytes, reason: str) -> str:
    """Keep bytes that belong to no file of their own, e.g. one damaged body."""
    target = _free_name(disk, name, reason)
    _write(disk, target, data)
    log.warning("%s was kept as %s: %s", name, target, reason)
    return target


def kept(disk: Disk, name: str) -> bool:
    """Whether somebody has seen to a damaged file: it was moved to quarantine, or its bytes lie there, too."""
    there = f"{layout.QUARANTINE}/{stem_of(name)}"
    if not disk.exists(there + REASON_SUFFIX) or not disk.exists(there):
        return False
    return not disk.exists(name) or same_bytes(disk, name, there)


def keep_copy(disk: Disk, name: str, reason: str) -> str:
    """The same bytes there, while the file goes on to serve what can be read of it; returns the copy's name."""
    target = _free_name(disk, name, reason)
    copy_file(disk, name, target)
    log.warning("a copy of %s was kept as %s: %s", name, target, reason)
    return target


def copy_file(disk: Disk, name: str, target: str) -> None:
    """The same bytes in a new file, durable when this returns."""
    with ExitStack() as opened:
        source = disk.open(name)
        opened.callback(disk.close, source)
        copy = disk.create(target)
        opened.callback(disk.close, copy)
        offset = 0
        while data := disk.read_at(source, offset, _CHUNK_BYTES):
            disk.write_at(copy, offset, data)
            offset += len(data)
        disk.make_durable(copy, target.rpartition("/")[0])


def same_bytes(disk: Disk, one: str, other: str) -> bool:
    """False also if one of the two cannot be opened."""
    with ExitStack() as opened:
        handles = []
        for name in (one, other):
            try:
                handle = disk.open(name)
            except OSError:
                return False
            opened.callback(disk.close, handle)
            handles.append(handle)
        offset = 0
        while True:
            first, second = (disk.read_at(handle, offset, _CHUNK_BYTES) for handle in handles)
            if first != second:
                return False
            if not first:
                return True
            offset += len(first)


def _free_name(disk: Disk, name: str, reason: str) -> str:
    stem = stem_of(name)
    attempt = 0
    while True:
        target = f"{layout.QUARANTINE}/{stem}" + (f".{attempt}" if attempt else "")
        attempt += 1
        if disk.exists(target):
            continue
        try:
            _write(disk, target + REASON_SUFFIX, f"{name}: {reason}\n".encode("utf-8", "replace"))
        except FileExistsError:
            continue
        return target


def stem_of(name: str) -> str:
    """How the name begins that a file gets there; only a number may follow."""
    stem = name.rpartition("/")[2]
    while len(stem.encode("utf-8", "surrogateescape")) > _MAX_STEM:
        stem = stem[: len(stem) - 8]
    return f"{name.partition('/')[0]}.{stem}"


def _write(disk: Disk, name: str, data: bytes) -> None:
    handle = disk.create(name)
    try:
        disk.write_at(handle, 0, data)
        disk.make_durable(handle, layout.QUARANTINE)
    finally:
        disk.close(handle)
