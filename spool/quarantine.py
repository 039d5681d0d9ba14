"""Where unreadable files go, with the reason beside each: nothing is ever silently deleted."""

import logging

from spool import layout
from spool.disk import Disk

log = logging.getLogger("spool")
REASON_SUFFIX = ".reason.txt"
_MAX_STEM = 200


def quarantine(disk: Disk, name: str, reason: str) -> str:
    """Move a file there under a name that is free; returns the new name. The reason is written first."""
    target = _free_name(disk, name, reason)
    disk.rename(name, target)
    log.warning("%s was moved to %s: %s", name, target, reason)
    return target


def quarantine_bytes(disk: Disk, name: str, data: bytes, reason: str) -> str:
    """Keep bytes that belong to no file of their own, e.g. one damaged body."""
    target = _free_name(disk, name, reason)
    _write(disk, target, data)
    log.warning("%s was kept as %s: %s", name, target, reason)
    return target


def _free_name(disk: Disk, name: str, reason: str) -> str:
    stem = name.rpartition("/")[2]
    while len(stem.encode("utf-8", "surrogateescape")) > _MAX_STEM:
        stem = stem[: len(stem) - 8]
    stem = f"{name.partition('/')[0]}.{stem}"
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


def _write(disk: Disk, name: str, data: bytes) -> None:
    handle = disk.create(name)
    try:
        disk.write_at(handle, 0, data)
    finally:
        disk.close(handle)
