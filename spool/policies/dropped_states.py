"""The table of the states of a dropped file: a decision follows from the evidence about a file in one place.

| place | function | evidence |
|---|---|---|
| the folder of a queue | ``by_name`` | the name, the names beside it, the options of the queue |
| the same | ``by_kind`` | the kind of the file, its device |
| the same, or captured | ``by_writer`` | whether the file has a writer; a rename or a marker; the time of the change |
| captured, in a commit | ``committed`` | the file when it was read, the file now |
| the same, of a dead intake | ``committed_by_the_dead`` | whether the file has a writer, its times |
| captured, and watched | ``late`` | the file when it was read, the file now, the time |

Only the file's owner and root can ask the kernel whether a program has the file open for writing (a lease, fcntl(2)).
For another user's file, the evidence is weaker. Either the writer declared the file complete, by a rename into place
(``folder_watcher``) or by a marker, or the file has not changed for ``drop_settle`` seconds. If the queue has a
``drop_settle``, each of its files must also be unchanged for this time.

A writer may pause for more than ``drop_settle`` seconds. So the intake also watches an unchanged file after it has
taken the file. Without evidence that a file is complete, the file remains where it was dropped.
"""

import enum
import fnmatch
import os
import re
from collections.abc import Callable, Container
from functools import lru_cache
from typing import NamedTuple

from spool.disk.advice import user_name
from spool.disk.content import opened
from spool.disk.quarantine import FileCause
from spool.disk.stat import FileIdentity
from spool.model import layout
from spool.model.settings import QueueConfig
from spool.model.text import plural
from spool.store.store import Store


class Action(enum.Enum):
    """The step that a decision names."""

    NONE = enum.auto()  # the file was removed
    MARK = enum.auto()  # the file is a marker, and is captured before its file
    IGNORE = enum.auto()  # no file of this name is ever taken
    LEAVE = enum.auto()  # the file waits
    REPORT = enum.auto()  # the file waits, and the log names it
    TAKE = enum.auto()  # capture the file; put the messages of a captured file
    REMOVE = enum.auto()
    WATCH = enum.auto()  # keep the file for a while, because its writer may continue
    QUARANTINE = enum.auto()


class Proof(enum.Enum):
    """The evidence that a file is complete."""

    NO_WRITER = enum.auto()  # the kernel said that no program has the file open for writing
    DECLARED = enum.auto()  # the writer renamed the file into place, or created its marker
    UNCHANGED = enum.auto()  # the file has not changed for ``drop_settle`` seconds


class Verdict(NamedTuple):
    """A decision about one file.

    why: the reason, for the log or for quarantine.
    proof: the evidence that the file is complete, if the step is TAKE.
    """

    step: Action
    why: str = ""
    cause: FileCause = FileCause.REFUSED
    proof: Proof | None = None


NOTHING, TAKE, MARK, REMOVE, WATCH = map(Verdict, (Action.NONE, Action.TAKE, Action.MARK, Action.REMOVE, Action.WATCH))
_NO_WRITER, _DECLARED, _UNCHANGED = (Verdict(Action.TAKE, proof=proof) for proof in Proof)


class Seen(NamedTuple):
    """A file that was judged: the evidence that the file is complete, and the identity of the file at that time."""

    proof: Proof | None
    identity: FileIdentity

    def is_still(self, identity: FileIdentity | None) -> bool:
        """Return whether ``identity`` belongs to the same file, and the file is unchanged."""
        return identity is not None and self.identity.version == identity.version


# -- in the queue's folder --------------------------------------------------------------------------------------------


def by_name(name: str, names: Container[str], queue: QueueConfig) -> Verdict:
    """Decide by the name in the folder of a queue.

    ``names``: all names in the folder. A marker that an intake has already captured counts as a name in the folder.
    """
    if layout.is_unfinished(name):
        return Verdict(Action.IGNORE, "by its name, its writer has not completed it")
    marker = queue.drop_marker
    if marker is not None and name.endswith(marker):
        file = name.removesuffix(marker)
        return MARK if file in names else Verdict(Action.LEAVE, f"it is a marker, and waits for {file}")
    if _matching(queue.drop_ignore)(name):
        [pattern, *_] = [pattern for pattern in queue.drop_ignore if _matching((pattern,))(name)]
        return Verdict(Action.IGNORE, f"its name matches {pattern} (drop_ignore)")
    if marker is not None and name + marker not in names:
        return Verdict(Action.LEAVE, f"it waits for its marker, {name}{marker}")
    return TAKE


@lru_cache(maxsize=256)
def _matching(patterns: tuple[str, ...]) -> Callable[[str], object]:
    """Return a function that tells whether a name matches one of the patterns, in upper or lower case."""
    return re.compile("|".join(map(fnmatch.translate, patterns)) or r"(?!)", re.IGNORECASE).match


def by_kind(identity: FileIdentity | None, active: FileIdentity | None) -> Verdict:
    """Decide by the kind of the file. ``active``: the directory to which captured files are moved."""
    if identity is None:
        return NOTHING
    if not identity.is_regular:
        return Verdict(Action.REPORT, "it is no regular file, and is left alone")
    if active is not None and identity.device != active.device:
        return Verdict(Action.REPORT, "it lies on another device, and is left alone: copy it into the folder")
    return TAKE


def by_writer(
    writer: bool | None, owner: int, settle: float, *, declared: bool, settled: bool, must_settle: bool = False
) -> Verdict:
    """Decide whether a regular file is complete.

    Args:
        writer: whether a program has the file open for writing; None if this user may not ask the kernel.
        owner: the user who owns the file.
        settle: the seconds of ``drop_settle``.
        declared: whether the writer declared the file complete.
        settled: whether the file has not changed for ``settle`` seconds.
        must_settle: whether the file is in the folder of a queue that has a ``drop_settle``.
    """
    if must_settle and not settled:
        return Verdict(Action.LEAVE, f"it waits until it has not changed for {settle:g} s (drop_settle of the queue)")
    if writer:
        return Verdict(Action.LEAVE, "a program has it open for writing: it waits")
    if writer is None and not (declared or settled):
        unsure = f"user {owner} may still be writing it: it waits until it has not changed for "
        return Verdict(Action.LEAVE, f"{unsure}{settle:g} s (drop_settle)")
    return _NO_WRITER if writer is not None else _DECLARED if declared else _UNCHANGED


def judge_named(
    store: Store, path: str, queue: str, identity: FileIdentity, declared: Callable[[], bool]
) -> tuple[Verdict, FileIdentity]:
    """Decide whether a regular file in the folder of a queue is complete. Return also the file's identity now.

    Args:
        identity: the identity of the file when the caller listed the folder.
        declared: a function that returns whether the writer declared the file complete.
    """
    try:
        with opened(store.files.disk, path) as handle:
            identity = store.files.disk.handle_identity(handle)
            return judge(store, handle, queue, identity, declared), identity
    except OSError as error:
        return unreadable(identity, error), identity


def judge(
    store: Store, handle: int, queue: str, identity: FileIdentity, declared: Callable[[], bool] | None = None
) -> Verdict:
    """Decide whether an open file is complete.

    ``declared``: None for a captured file. No program can open the file by its name, so it need not settle again.
    """
    config, writer = store.settings.known.config, store.files.disk.has_writer(handle)
    of_queue = config.queues[queue].drop_settle if queue in config.queues else None
    settle = config.drop_settle if of_queue is None else of_queue
    is_declared = writer is None and declared is not None and declared()
    # If the time of the change is in the future, the clock was set back after the change.
    settled = abs(store.clock.now() - identity.changed_ns / 1e9) >= settle
    must = declared is not None and of_queue is not None
    return by_writer(writer, identity.owner, settle, declared=is_declared, settled=settled, must_settle=must)


def unreadable(identity: FileIdentity | None, error: OSError) -> Verdict:
    """Decide about a file that cannot be opened or read."""
    if identity is None or isinstance(error, FileNotFoundError):
        return NOTHING
    if not identity.is_regular:  # a captured entry that was replaced after drop/ was listed
        return Verdict(Action.QUARANTINE, "it is no regular file")
    if not isinstance(error, PermissionError):
        return Verdict(Action.REPORT, f"it cannot be read ({error.strerror}), and waits")
    whose, letter = ("owner", "u") if identity.owner == os.geteuid() else ("group", "g")
    return Verdict(
        Action.REPORT,
        f"it belongs to user {user_name(identity.owner)}, and this user may not read it: let its {whose} read "
        f"it (chmod {letter}+r, or a umask of 027 or 022 for the program that drops files)",
    )


# -- captured, and in a commit ----------------------------------------------------------------------------------------


def committed(seen: Seen, identity: FileIdentity | None) -> Verdict:
    """Decide about a file whose messages are committed. ``seen``: the file when it was read."""
    if seen.proof is Proof.UNCHANGED:
        return WATCH
    if seen.proof is Proof.DECLARED and identity is not None and not seen.is_still(identity):
        return _changed(seen.identity.size, identity)
    return REMOVE


def committed_by_the_dead(identity: FileIdentity | None, writer: bool | None) -> Verdict:
    """Decide about a file that a commit of a dead intake names. It is not known in which state the intake read it."""
    if identity is None or not identity.is_regular or writer is False:
        return REMOVE
    if identity.modified_ns < identity.changed_ns:  # the rename of the capture came after the last write
        return WATCH
    reason = "it became messages, its intake died, and it may have changed since: compare it with them"
    return Verdict(Action.QUARANTINE, reason, FileCause.CHANGED)


def late(size: int, modified_ns: int, identity: FileIdentity | None, is_over: bool) -> Verdict:
    """Decide about a watched file. ``size``, ``modified_ns``: of the file when it was read."""
    if identity is None:
        return NOTHING
    if (identity.size, identity.modified_ns) != (size, modified_ns):
        return _changed(size, identity)
    return REMOVE if is_over else WATCH


def _changed(read: int, identity: FileIdentity) -> Verdict:
    reason = f"it became messages when it had {plural(read, 'byte')}, and was changed since: compare it with them"
    if identity.size > read:
        reason = (
            f"it became messages, and has grown since: they have its first {plural(read, 'byte')}, and the "
            f"{plural(identity.size - read, 'byte')} after those are only in this file; tail -c +{read + 1} FILE "
            "prints them"
        )
    return Verdict(Action.QUARANTINE, reason, FileCause.CHANGED)
