"""Move unreadable files to quarantine instead of deleting them, and write a reason file for each.

A reason file has a sentence for people. The last line of a reason file is a JSON object for programs, with the kind of
the file. For a message or a dropped file the object also has the queue. For a dropped file the object also has the
former name.
"""

import enum
import json
import logging
from shlex import quote
from typing import NamedTuple

from spool.disk.content import copy, same_bytes, write_new
from spool.disk.disk import Disk
from spool.model import layout

log = logging.getLogger("spool")

MAX_REASON_BYTES = 64 << 10
_MAX_TEXT = 8 << 10  # in characters; a text of this length, with the JSON object, needs less than MAX_REASON_BYTES
_MAX_STEM = 200


class FileCause(enum.StrEnum):
    """The kind of a file in quarantine. Only files of the kinds DAMAGED and MESSAGE had acknowledged messages."""

    DAMAGED = "damaged"  # a file of the space whose bytes were durable
    MESSAGE = "message"  # one message whose body is damaged
    UNFLUSHED = "unflushed"  # a file of the space whose messages were never acknowledged
    FOREIGN = "foreign"  # a file or directory of another program
    REFUSED = "refused"  # a dropped file that cannot become messages
    TOO_LARGE = "too-large"  # a dropped file with a body above the space's max_body_bytes
    QUEUE_LIMIT = "queue-limit"  # a dropped file that needs more room than its whole queue has
    NO_QUEUE = "no-queue"  # a dropped file whose queue was deleted
    CHANGED = "changed"  # a dropped file that changed after it became messages

    @property
    def is_damage(self) -> bool:
        return self in (FileCause.DAMAGED, FileCause.MESSAGE)

    @property
    def is_refusal(self) -> bool:
        """Whether the file is a dropped file that an intake refused. Such a file can be restored."""
        return self in (FileCause.REFUSED, FileCause.TOO_LARGE, FileCause.QUEUE_LIMIT, FileCause.NO_QUEUE)


class FileReason(NamedTuple):
    """The reason why a file is in quarantine.

    text: the sentence for people.
    cause: the kind of the file, or None if no kind is recorded.
    queue: the queue of a dropped file or a message.
    dropped: the name under which a file was dropped.
    """

    text: str
    cause: FileCause | None
    queue: str | None = None
    dropped: str | None = None

    def encode(self, name: str) -> bytes:
        about = {"kind": self.cause, "queue": self.queue, "dropped": self.dropped}
        fields = {key: value for key, value in about.items() if value is not None}
        text = f"{name}: {self.text}"
        text = text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"
        return f"{text}\n{json.dumps(fields)}\n".encode("utf-8", "backslashreplace")


def decode_reason(data: bytes) -> FileReason:
    """Read a reason file. If another program wrote the file, the reason has no cause."""
    text, _, last = data.decode("utf-8", "replace").strip().rpartition("\n")
    try:
        fields = json.loads(last)
        cause, queue, dropped = FileCause(fields["kind"]), fields.get("queue"), fields.get("dropped")
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return FileReason(f"{text}\n{last}".strip() or "no reason is recorded", None)
    is_queue = isinstance(queue, str) and layout.is_queue_name(queue) is not None
    is_name = isinstance(dropped, str) and dropped not in ("", ".", "..") and not {"/", "\0"} & set(dropped)
    return FileReason(text, cause, queue if is_queue else None, dropped if is_queue and is_name else None)


def quarantine(disk: Disk, name: str, reason: FileReason) -> str:
    """Move a file to quarantine under a free name; returns the new name.

    The reason is written before the move. The move is durable when this call returns. Otherwise a power cut could undo
    the move after another file got the old name, and the moved file would be lost.
    """
    target = _free_name(disk, name, reason)
    disk.give_to_owner(name)
    disk.rename(name, target)
    disk.flush_directory(layout.QUARANTINE)
    entry = target.rpartition("/")[2]
    log.warning("%s was moved to %s: %s (spool-admin quarantine show %s)", name, target, reason.text, quote(entry))
    return target


def quarantine_bytes(disk: Disk, name: str, data: bytes, reason: FileReason) -> str:
    """Write bytes of acknowledged messages, e.g. a damaged body, to a file in quarantine. Return the file's name."""
    target = _free_name(disk, name, reason)
    write_new(disk, target, data, durable=True)
    log.warning("%s was kept as %s: %s", name, target, reason.text)
    return target


def is_quarantined(disk: Disk, name: str) -> bool:
    """Return whether a damaged file, or a copy of the file, is in quarantine."""
    there = f"{layout.QUARANTINE}/{stem_of(name)}"
    if not disk.exists(there + layout.REASON_SUFFIX) or not disk.exists(there):
        return False
    return not disk.exists(name) or same_bytes(disk, name, there)


def keep_copy(disk: Disk, name: str, reason: FileReason) -> str:
    """Copy a file with acknowledged messages to quarantine; returns the copy's name.

    The file remains in place, because some of its messages can still be read.
    """
    target = _free_name(disk, name, reason)
    copy(disk, name, target)
    log.warning("a copy of %s was kept as %s: %s", name, target, reason.text)
    return target


def _free_name(disk: Disk, name: str, reason: FileReason) -> str:
    """Find a free name in quarantine, write the reason file for this name, and return the name."""
    stem = stem_of(name)
    attempt = 0
    while True:
        target = f"{layout.QUARANTINE}/{stem}" + (f".{attempt}" if attempt else "")
        attempt += 1
        if disk.exists(target):
            continue
        try:
            write_new(disk, target + layout.REASON_SUFFIX, reason.encode(name), durable=True)
        except FileExistsError:
            continue
        return target


def stem_of(name: str) -> str:
    """Return the beginning of a file's name in quarantine. Only a number may follow this beginning."""
    stem = name.rpartition("/")[2].replace(layout.REASON_SUFFIX, ".reason")  # (a dropped file may have this suffix)
    while len(stem.encode("utf-8", "surrogateescape")) > _MAX_STEM:
        stem = stem[: len(stem) - 8]
    return f"{name.partition('/')[0]}.{stem}"
