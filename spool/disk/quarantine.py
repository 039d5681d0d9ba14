"""Where unreadable files go, with the reason beside each: nothing is ever silently deleted."""

import logging
from shlex import quote

from spool.disk.content import copy, same_bytes, write_new
from spool.disk.disk import Disk
from spool.model import layout

log = logging.getLogger("spool")
IS_MESSAGES = "it became messages"  # how the reason of a dropped file that is set aside then begins
REASON_SUFFIX = ".reason.txt"
MAX_REASON_BYTES = 64 << 10
_MAX_STEM = 200


def quarantine(disk: Disk, name: str, reason: str) -> str:
    """Move a file to quarantine under a name that is free; returns the new name.

    The reason is written first. The move is durable: a file that takes the old name must not outlive it.
    """
    target = _free_name(disk, name, reason)
    disk.give_to_owner(name)
    disk.rename(name, target)
    disk.flush_directory(layout.QUARANTINE)
    entry = target.rpartition("/")[2]
    log.warning("%s was moved to %s: %s (spool-admin quarantine show %s)", name, target, reason, quote(entry))
    return target


def quarantine_bytes(disk: Disk, name: str, data: bytes, reason: str) -> str:
    """Keep bytes that belong to no file of their own, e.g. one damaged body."""
    target = _free_name(disk, name, reason)
    write_new(disk, target, data, durable=True)
    log.warning("%s was kept as %s: %s", name, target, reason)
    return target


def is_quarantined(disk: Disk, name: str) -> bool:
    """Whether a damaged file is in quarantine: it was moved there, or its bytes lie there, too."""
    there = f"{layout.QUARANTINE}/{stem_of(name)}"
    if not disk.exists(there + REASON_SUFFIX) or not disk.exists(there):
        return False
    return not disk.exists(name) or same_bytes(disk, name, there)


def keep_copy(disk: Disk, name: str, reason: str) -> str:
    """Copy a file to quarantine, and leave it in place for what can be read of it; returns the copy's name."""
    target = _free_name(disk, name, reason)
    copy(disk, name, target)
    log.warning("a copy of %s was kept as %s: %s", name, target, reason)
    return target


def _free_name(disk: Disk, name: str, reason: str) -> str:
    stem = stem_of(name)
    attempt = 0
    while True:
        target = f"{layout.QUARANTINE}/{stem}" + (f".{attempt}" if attempt else "")
        attempt += 1
        if disk.exists(target):
            continue
        try:
            data = f"{name}: {reason}\n".encode("utf-8", "replace")
            write_new(disk, target + REASON_SUFFIX, data, durable=True)
        except FileExistsError:
            continue
        return target


def stem_of(name: str) -> str:
    """Return the beginning of a file's name in quarantine; only a number may follow it."""
    stem = name.rpartition("/")[2]
    while len(stem.encode("utf-8", "surrogateescape")) > _MAX_STEM:
        stem = stem[: len(stem) - 8]
    return f"{name.partition('/')[0]}.{stem}"
