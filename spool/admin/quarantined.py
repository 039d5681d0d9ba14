"""Show the files in ``quarantine/``, with advice for each, and put dropped files back.

Only a dropped file can be put back. ``restore`` moves the file to its queue's folder, and the next intake takes the
file. A damaged file cannot be put back: its undamaged messages are delivered anyway, and its other messages may not be
whole.

If the file system does not order renames, a file that is put back has both names for a moment. No intake may read the
folder during that moment. If the process dies then, the next intake or the next ``restore`` first removes the name in
quarantine.
"""

import os
from collections import Counter
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial

from spool.admin.findings import Finding, Kind
from spool.coordination.locks import drop_folder_byte
from spool.disk.content import closed_at_end, replace_by_copy, unlink_if_there, write_new
from spool.disk.disk import Disk
from spool.disk.durability import Move
from spool.disk.kernel import Unsupported
from spool.disk.quarantine import MAX_REASON_BYTES, FileCause, FileReason, decode_reason
from spool.disk.stat import FileIdentity
from spool.errors import CorruptedFile, InvalidArgument, QueueNotFound
from spool.format.reader import open_file
from spool.model import layout
from spool.model.text import printable
from spool.store.settings_reader import read_settings
from spool.store.store import Store

BEGINNING_BYTES = 1024
UNKNOWN_CAUSE = "unknown"
_CURES = {
    FileCause.TOO_LARGE: "raise max_body_bytes in {space}/space.toml",
    FileCause.QUEUE_LIMIT: "raise max_messages or max_bytes of the queue: spool-admin queue change {queue}",
    FileCause.NO_QUEUE: "create the queue: spool-admin queue create {queue}",
}


@dataclass(frozen=True)
class QuarantinedFile:
    """A file in ``quarantine/``.

    name: the name of the file in ``quarantine/``.
    since: the time when the file was moved into ``quarantine/``, in seconds since the epoch; None if no reason is
        recorded.
    size: the size in bytes; None if the entry is no regular file.
    kind: the kind of reason, as listed in docs/commands.md, e.g. ``refused``; None if no reason is recorded.
    reason: a sentence that names the kind of file and the problem.
    is_damage: whether the file had acknowledged messages of the space. In this case the space counts as damaged until
        the file is deleted.
    queue: for a dropped file, the queue for which it was dropped; for a damaged file, the queue of its message;
        otherwise None.
    can_be_restored: whether ``restore_quarantined`` accepts the file.
    advice: the next step for an administrator.
    beginning: the first bytes of the file, at most 1,024.
    """

    name: str
    since: float | None
    size: int | None
    kind: str | None
    reason: str
    is_damage: bool
    queue: str | None
    can_be_restored: bool
    advice: str
    beginning: bytes

    @property
    def cause(self) -> str:
        """The kind; ``unknown`` if no reason is recorded."""
        return self.kind or UNKNOWN_CAUSE

    @property
    def problem(self) -> str:
        """The reason, without the first words, which are the same for all dropped files of a queue."""
        return self.reason.partition(f": dropped for queue {self.queue}: ")[2] or self.reason


def findings(disk: Disk) -> list[Finding]:
    """List the files in quarantine, with the reasons. A file that had acknowledged messages gets the kind DAMAGED."""
    found = []
    for entry in _entries(disk):
        path = f"{layout.QUARANTINE}/{entry}"
        reason = _reason(disk, path)
        kind = Kind.DAMAGED if reason.cause is not None and reason.cause.is_damage else Kind.QUARANTINED
        found.append(Finding(kind, path, reason.text, reason=reason.cause or ""))
    return found


def count_by_queue(disk: Disk) -> Counter[str | None]:
    """Count the files in quarantine by queue. The key None counts the files that belong to no queue."""
    return Counter(_reason(disk, f"{layout.QUARANTINE}/{entry}").queue for entry in _entries(disk))


def _entries(disk: Disk) -> list[str]:
    return [name for name in sorted(disk.names(layout.QUARANTINE)) if not name.endswith(layout.REASON_SUFFIX)]


def look(disk: Disk, name: str) -> QuarantinedFile:
    """Describe a file in quarantine.

    Raises:
        InvalidArgument: no file in quarantine has this name.
    """
    path = _path(disk, name)
    entry = path.rpartition("/")[2]
    identity, noted = disk.identity(path), disk.identity(path + layout.REASON_SUFFIX)
    regular = identity is not None and identity.is_regular
    reason = _reason(disk, path)
    return QuarantinedFile(
        name=entry,
        since=None if noted is None else noted.modified_ns / 1e9,
        size=identity.size if identity is not None and regular else None,
        kind=reason.cause,
        reason=reason.text,
        is_damage=reason.cause is not None and reason.cause.is_damage,
        queue=reason.queue,
        can_be_restored=regular and _was_refused(reason),
        advice=_advice(reason, regular, disk.root),
        beginning=_read(disk, path, BEGINNING_BYTES) if regular else b"",
    )


def restore(store: Store, name: str) -> str:
    """Put a dropped file back into its queue's folder, and return its new name. The move is durable when this call
    returns.

    Raises:
        QueueNotFound: the queue does not exist any more.
        InvalidArgument: the file is no dropped file, or the folder has another file of the same name.
    """
    disk = store.files.disk
    path = _path(disk, name)
    entry = path.rpartition("/")[2]
    reason, file = _reason(disk, path), look(disk, name)
    if reason.queue is None or not file.can_be_restored:
        raise InvalidArgument(f"{entry} cannot be put back: {file.advice}")
    queues = read_settings(disk).queues
    if reason.queue not in queues:
        raise QueueNotFound(f"{entry} was dropped for queue {reason.queue}, which was deleted: create it again first")
    target = f"{layout.DROP}/{reason.queue}/{reason.dropped}"
    try:
        restoring = _Restoring(disk, path, target)
        disk.durability.move([restoring], partial(_no_intake_at, store, reason.queue), durably=True)
    except FileExistsError:
        raise InvalidArgument(f"{target} waits to be taken: run spool-intake first, or move it away") from None
    marker = queues[reason.queue].drop_marker
    if marker is not None:  # without its marker, the file would wait
        with suppress(FileExistsError):
            write_new(disk, target + marker, b"", durable=True)
    _forget_reason(disk, path)
    return target


def finish_restoring(disk: Disk, target: str, identity: FileIdentity) -> None:
    """If a process died during ``restore``, the file may have two names: remove the name in quarantine.

    Otherwise the file could be restored again after an intake took it.
    """
    for entry in disk.names(layout.QUARANTINE):
        path = f"{layout.QUARANTINE}/{entry}"
        if identity.same_file(disk.identity(path)):
            disk.flush_directory(target.rpartition("/")[0])
            disk.unlink(path)
            _forget_reason(disk, path)


def delete(disk: Disk, name: str) -> None:
    """Remove a file and its reason. The removal is durable when this call returns.

    Raises:
        InvalidArgument: no file has this name, or the name belongs to a directory that is not empty.
    """
    path = _path(disk, name)
    identity = disk.identity(path)
    if identity is None or not identity.is_directory:
        disk.unlink(path)
    else:
        try:
            disk.remove_directory(path)
        except OSError as error:
            raise InvalidArgument(f"{path} is a directory that cannot be removed: {error.strerror}") from None
    _forget_reason(disk, path)


def _path(disk: Disk, name: str) -> str:
    entry = name.removeprefix(f"{layout.QUARANTINE}/")
    fits = entry not in ("", ".", "..") and not {"/", "\0"} & set(entry) and not entry.endswith(layout.REASON_SUFFIX)
    path = f"{layout.QUARANTINE}/{entry}"
    if not fits or not disk.exists(path):
        raise InvalidArgument(f"nothing in quarantine is called {entry!r}: spool-admin quarantine list names all")
    return path


class _Restoring(Move):
    disk: Disk

    def link(self) -> bool:
        try:
            self._link()
        except FileExistsError:
            identity = self.disk.identity(self.source)
            if identity is None or not identity.same_file(self.disk.identity(self.target)):
                raise  # (if both names are of one file, the process of an earlier call died here)
        return True

    def _link(self) -> None:
        try:
            self.disk.link(self.source, self.target)
        except Unsupported:  # this user may not link another user's file, so a copy replaces the file
            part = f"{layout.QUARANTINE}/.part.{os.urandom(8).hex()}"
            try:
                replace_by_copy(self.disk, self.source, part)
            except BaseException:
                with suppress(OSError):
                    self.disk.unlink(part)
                raise
            self.disk.link(self.source, self.target)


def _no_intake_at(store: Store, queue: str) -> AbstractContextManager[None]:
    """Keep intakes away from a queue's folder, because a file that is put back there has two names for a moment."""
    return store.shared.xids.holding(drop_folder_byte(queue), store.deadline(), f"the folder {layout.DROP}/{queue}")


def _forget_reason(disk: Disk, path: str) -> None:
    unlink_if_there(disk, path + layout.REASON_SUFFIX)
    disk.flush_directory(layout.QUARANTINE)


def _reason(disk: Disk, path: str) -> FileReason:
    try:
        return decode_reason(_read(disk, path + layout.REASON_SUFFIX, MAX_REASON_BYTES))
    except FileNotFoundError:
        return decode_reason(b"")
    except CorruptedFile:
        return FileReason("its reason cannot be read", None)


def _read(disk: Disk, path: str, length: int) -> bytes:
    """Return the first bytes of a file; b"" if this user may not read the file."""
    with suppress(PermissionError), closed_at_end(disk, open_file(disk, path)) as handle:
        return disk.read_at(handle, 0, length)
    return b""


def _was_refused(reason: FileReason) -> bool:
    return reason.cause is not None and reason.cause.is_refusal and reason.dropped is not None


def _advice(reason: FileReason, regular: bool, space: str) -> str:
    """Return the next step. The step is the same for all files of one queue that have the same cause."""
    if not regular:
        return "it is no regular file: inspect it, then delete it"
    if reason.cause is FileCause.CHANGED:
        return "its messages are in the queue, or were: put the missing content as a new message, then delete it"
    if _was_refused(reason) and reason.cause in _CURES:
        cure = _CURES[reason.cause].format(queue=reason.queue, space=printable(space))
        return f"{cure}, then restore the file; or delete it"
    if _was_refused(reason):
        return "fix the problem in a copy, mv the copy over the file, then restore the file; or delete it"
    if reason.cause is not None and reason.cause.is_damage:
        return (
            "it cannot be restored, because its bytes are not proven; every message that is whole is served. Save "
            "the readable part (docs/format.md describes it), put that again, then delete the file"
        )
    otherwise = "unless its queue has no durability, or the disk has lost bytes"
    return f"no acknowledged message lay in it, {otherwise}: inspect it, then delete it"
