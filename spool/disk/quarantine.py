"""Where unreadable files go, with the reason beside each: nothing is ever silently deleted."""

import logging
from shlex import quote

from spool.disk.content import copy, same_bytes, write_new
from spool.disk.disk import Disk
from spool.model import layout

log = logging.getLogger("spool")
IS_MESSAGES = "it became messages"  # how the reason of a dropped file that is set aside then begins
MAX_REASON_BYTES = 64 << 10
HELD_MESSAGES = "acknowledged messages lay in it"  # the last line of the reason, if that is so
_MAX_STEM = 200


def quarantine(disk: Disk, name: str, reason: str, *, held_messages: bool = False) -> str:
    """Move a file to quarantine under a name that is free; returns the new name.

    The reason is written first. The move is durable: a file that takes the old name must not outlive it.

    Args:
        held_messages: acknowledged messages lay in the file, so the space is damaged.
    """
    target = _free_name(disk, name, reason, held_messages)
    disk.give_to_owner(name)
    disk.rename(name, target)
    disk.flush_directory(layout.QUARANTINE)
    entry = target.rpartition("/")[2]
    log.warning("%s was moved to %s: %s (spool-admin quarantine show %s)", name, target, reason, quote(entry))
    return target


def quarantine_bytes(disk: Disk, name: str, data: bytes, reason: str) -> str:
    """Keep bytes of acknowledged messages that have no file of their own, e.g. one damaged body."""
    target = _free_name(disk, name, reason, held_messages=True)
    write_new(disk, target, data, durable=True)
    log.warning("%s was kept as %s: %s", name, target, reason)
    return target


def is_quarantined(disk: Disk, name: str) -> bool:
    """Whether a damaged file is in quarantine: it was moved there, or its bytes lie there, too."""
    there = f"{layout.QUARANTINE}/{stem_of(name)}"
    if not disk.exists(there + layout.REASON_SUFFIX) or not disk.exists(there):
        return False
    return not disk.exists(name) or same_bytes(disk, name, there)


def keep_copy(disk: Disk, name: str, reason: str) -> str:
    """Copy a file with acknowledged messages to quarantine; returns the copy's name.

    The file stays in place for the messages of it that can be read.
    """
    target = _free_name(disk, name, reason, held_messages=True)
    copy(disk, name, target)
    log.warning("a copy of %s was kept as %s: %s", name, target, reason)
    return target


def _free_name(disk: Disk, name: str, reason: str, held_messages: bool) -> str:
    stem = stem_of(name)
    lines = [f"{name}: {reason}", *([HELD_MESSAGES] if held_messages else []), ""]
    attempt = 0
    while True:
        target = f"{layout.QUARANTINE}/{stem}" + (f".{attempt}" if attempt else "")
        attempt += 1
        if disk.exists(target):
            continue
        try:
            write_new(
                disk, target + layout.REASON_SUFFIX, "\n".join(lines).encode("utf-8", "backslashreplace"), durable=True
            )
        except FileExistsError:
            continue
        return target


def stem_of(name: str) -> str:
    """Return the beginning of a file's name in quarantine; only a number may follow it."""
    stem = name.rpartition("/")[2]
    while len(stem.encode("utf-8", "surrogateescape")) > _MAX_STEM:
        stem = stem[: len(stem) - 8]
    return f"{name.partition('/')[0]}.{stem}"
