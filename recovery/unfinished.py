"""Unfinished work in ``active/``: branches of dead processes, their journals of claims, copies, and dropped files.

This module also decides about entries of ``active/``, ``prepared/`` and ``committed/`` that do not belong to a space.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from spool.admin.findings import Kind
from spool.coordination.locks import LockFile, capture_byte, xid_byte
from spool.disk.disk import Disk
from spool.index import Index
from spool.model import layout
from spool.model.xid import Xid
from spool.policies.attempt_journal import all_journals, read_journal, uncounted

from .decision import Decision, Reason, Step


@dataclass(frozen=True)
class ActiveFiles:
    """The entries of ``active/``.

    journals: the xids of the claim journals.
    branches: the branches that have a file.
    copies: the paths of unfinished copies.
    captured: for each directory of captured files, whether a live intake works on it.
    foreign: the paths of entries that do not belong to a space.
    owned: the xids whose lock a live process holds.
    """

    journals: tuple[Xid, ...]
    branches: tuple[Xid, ...]
    copies: tuple[str, ...]
    captured: Mapping[str, bool]
    foreign: tuple[str, ...]
    owned: frozenset[Xid]


# -- reading ----------------------------------------------------------------------------------------------------------


def read(disk: Disk, xids: LockFile) -> ActiveFiles:
    """Read the names of the entries, and the locks of their owners."""
    journals, branches, copies, foreign = all_journals(disk), [], [], []
    captured = {}
    for name in sorted(disk.names(layout.ACTIVE)):
        path = f"{layout.ACTIVE}/{name}"
        xid = layout.parse_xid(name)
        if xid is not None and not _is_irregular(disk, path):
            branches.append(xid)
        elif name.startswith(layout.CAPTURE_PREFIX):
            captured[path] = not xids.is_free(capture_byte(name))
        elif name.endswith(layout.COPY_SUFFIX):
            copies.append(path)
        elif not name.endswith(layout.JOURNAL_SUFFIX) or _is_irregular(disk, path):
            foreign.append(path)
    owned = frozenset(xid for xid in {*journals, *branches} if not xids.is_free(xid_byte(xid)))
    # A transaction that ended since the listing has committed or removed its file before it released its lock.
    branches = [xid for xid in branches if xid in owned or disk.exists(layout.active(xid))]
    return ActiveFiles(tuple(journals), tuple(branches), tuple(copies), captured, tuple(foreign), owned)


def _is_irregular(disk: Disk, name: str) -> bool:
    """Return whether an entry is no regular file, e.g. a directory or symlink. Recovery never removes such an entry."""
    identity = disk.identity(name)
    return identity is not None and not identity.is_regular


def highest_named(disk: Disk, active: ActiveFiles) -> int:
    """Return the highest number that a claim journal names; 0 if no journal names a number."""
    return max((number for xid in active.journals for number, _, _ in read_journal(disk, xid).ranges), default=0)


# -- deciding ---------------------------------------------------------------------------------------------------------


def with_attempts(disk: Disk, active: ActiveFiles, index: Index) -> frozenset[Xid]:
    """Return the journals that name an existing message whose attempt has begun and was not counted."""
    return frozenset(xid for xid in active.journals if uncounted(index, read_journal(disk, xid)))


def decide(active: ActiveFiles, unnamed: Collection[str], attempts: Collection[Xid], *, alone: bool) -> list[Decision]:
    """Decide about each entry of ``active/``.

    Args:
        unnamed: the paths of commits that have no committed name.
        attempts: from ``with_attempts``.
        alone: whether no other process has the space open, so that no copy is in progress.
    """
    decisions = []
    for xid in active.journals:
        dead = Kind.COUNTED, Reason.HOLDER_DIED if xid in attempts else Reason.NO_ATTEMPT, Step.COUNT
        decisions.append(_about_branch(active, xid, layout.attempt_journal(xid), dead))
    for xid in active.branches:
        dead = Kind.ROLLED_BACK, Reason.OWNER_DIED, Step.REMOVE
        if layout.active(xid) not in unnamed:
            decisions.append(_about_branch(active, xid, layout.active(xid), dead))
    if alone:
        decisions += [Decision(Kind.TORN, name, Reason.UNFINISHED_COPY, Step.REMOVE) for name in active.copies]
    for name, lives in active.captured.items():
        kind, reason = (Kind.ALIVE, Reason.INTAKE_LIVES) if lives else (Kind.TAKEN, Reason.INTAKE_DIED)
        decisions.append(Decision(kind, name, reason, Step.LEAVE))
    return decisions + decide_foreign(active.foreign)


def _about_branch(active: ActiveFiles, xid: Xid, name: str, dead: tuple[Kind, Reason, Step]) -> Decision:
    kind, reason, step = (Kind.ALIVE, Reason.OWNER_LIVES, Step.LEAVE) if xid in active.owned else dead
    return Decision(kind, name, reason, step, xid=xid)


def decide_foreign(names: Iterable[str]) -> list[Decision]:
    """Decide about entries that do not belong to a space: recovery does not touch these entries."""
    return [Decision(Kind.STRAY, name, Reason.FOREIGN, Step.LEAVE) for name in names]


# -- applying ---------------------------------------------------------------------------------------------------------


def remove(disk: Disk, xids: LockFile, name: str, xid: Xid | None) -> None:
    """Remove a file in ``active/``, unless a process has taken the lock of its branch since the scan read the locks."""
    if xid is None:
        disk.unlink(name)
        return
    with xids.trying(xid_byte(xid)) as ours:
        if ours:
            disk.unlink(name)
