"""Check a space as fsck checks a file system: read every byte, and decide about each problem.

The check changes nothing; `recovery.repair` carries the decisions out. The tests use the check as their oracle.
"""

import errno
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from spool.admin.findings import LEFT_ALONE, Finding, Kind
from spool.coordination.counters import Counters
from spool.disk.disk import DIRECTORY_MODE, FILE_MODE, PASSAGE_MODE, PUBLISHED_MODE, Disk
from spool.disk.quarantine import is_quarantined
from spool.errors import CorruptedFile
from spool.format.header import Header
from spool.format.reader import NO_FILE, bad_bodies, open_file, read_header
from spool.format.table import Table, decode_table
from spool.index import Index
from spool.log.replay import is_being_reclaimed
from spool.log.sequence import highest_number
from spool.log.visibility import catch_up, is_branch_file
from spool.maintenance.reclaim import digest_mismatch
from spool.model import layout
from spool.model.layout import CommittedName
from spool.model.position import Position
from spool.model.settings import SpaceConfig
from spool.model.xid import Xid
from spool.store.parts import View
from spool.store.store import Store

from .decision import Decision, Reason, Step, distinct


def check(store: Store) -> list[Finding]:
    """Return every finding of a space, the findings of damage first. The check changes nothing."""
    return distinct([decision.finding(not_done(decision)) for decision in find_problems(store)])


def not_done(decision: Decision) -> str:
    """Return the action that a report shows if the decision was not carried out."""
    return LEFT_ALONE if decision.kind is Kind.STRAY else ""


def find_problems(store: Store, *, reclaim_locked: bool = False) -> list[Decision]:
    """Return a decision about each problem.

    Args:
        reclaim_locked: whether the caller holds the reclaim lock. Otherwise the check takes the lock to compare the
            files with their digest. If another process holds the lock, the check skips that comparison.
    """
    disk, view = store.files.disk, store.view
    disk.check_stages_in_place()
    catch_up(store)
    with view.mutex:
        files = {number: state.adopted for number, state in view.index.files.items()}
        damage = list(view.index.damage)
    problems = [problem for number in sorted(files) for problem in _commit_problems(store, number)]
    problems += _prepared_branches(disk, view)
    problems += _strays(disk, store.shared.counters)
    problems += _foreign_files(disk)
    problems += lost_queues(store)
    problems += _directories(disk, store.settings.known.config)
    if reclaim_locked:
        problems += _missing_files_now(store)
    else:
        with disk.exclusively(layout.RECLAIM_LOCK) as locked:
            problems += _missing_files_now(store) if locked else []
    named = {problem.name for problem in problems}
    return problems + [
        _damaged(name, Reason.UNREADABLE, cause=wrong)
        for name, wrong in damage
        if name not in named and not is_quarantined(disk, name)
    ]


def _damaged(name: str, reason: Reason, step: Step = Step.NONE, cause: str = "", **about: Any) -> Decision:
    return Decision(Kind.DAMAGED, name, reason, step, cause=cause, **about)


# -- one file, read to its last byte ---------------------------------------------------------------------------------

_UNREADABLE = (*NO_FILE, errno.EIO, errno.EACCES)


@dataclass
class Examination:
    """The defects of one file.

    header: the header of the file; None if the file cannot be read as a file of messages.
    wrong: why the header is None; otherwise "".
    missing: whether the file does not exist.
    bad_tables: the defect of each damaged table.
    bad_bodies: (ordinal in the file, defect) of each damaged body.
    surplus: how many bytes the file has after the end that its header gives.
    """

    header: Header | None = None
    wrong: str = ""
    missing: bool = False
    bad_tables: list[str] = field(default_factory=list)
    bad_bodies: list[tuple[int, str]] = field(default_factory=list)
    surplus: int = 0


def examine(disk: Disk, name: str) -> Examination:
    """Return the defects of a file. ``name``: the path of the file, relative to the space."""
    try:
        handle = open_file(disk, name)
    except FileNotFoundError:
        return Examination(wrong="it is missing", missing=True)
    except CorruptedFile as error:
        return Examination(wrong=str(error).removeprefix(f"{name}: "))
    except PermissionError as error:
        return Examination(wrong=f"it cannot be read: {error.strerror}")
    try:
        return _examine(disk, handle)
    except CorruptedFile as error:
        return Examination(wrong=str(error))
    except OSError as error:
        if error.errno not in _UNREADABLE:
            raise  # the error does not come from this file
        return Examination(wrong=f"it cannot be read: {error.strerror}")
    finally:
        disk.close(handle)


def _examine(disk: Disk, handle: int) -> Examination:
    header = read_header(disk, handle)
    found = Examination(header, surplus=disk.handle_identity(handle).size - header.size)
    ordinal = 0
    for entry in header.sections:
        try:
            table = decode_table(disk.read_at(handle, entry.offset, entry.table_bytes), entry)
        except CorruptedFile as error:
            found.bad_tables.append(str(error))
            table = Table()
        for row, wrong in bad_bodies(disk, handle, entry, table):
            found.bad_bodies.append((ordinal + row, wrong))
        ordinal += entry.messages
    return found


# -- committed files --------------------------------------------------------------------------------------------------


def _commit_problems(store: Store, number: int) -> Iterator[Decision]:
    """Check a numbered file and the branches that it adopts.

    If a number is reclaimed during the check, its missing file is not a problem.
    """
    disk, view = store.files.disk, store.view
    name = layout.committed(number)
    found = examine(disk, name)
    problems = list(_numbered_file(disk, view, number, name, found))
    header = found.header
    for ordinal, adoption in enumerate(header.adopts if header is not None else (), 1):
        branch = CommittedName(number, ordinal)
        problems += _adopted_branch(disk, view, branch, adoption.xid, adoption.checksum, adoption.first)
    if problems and _still_needed(store, number):
        yield from problems


def _numbered_file(disk: Disk, view: View, number: int, name: str, found: Examination) -> Iterator[Decision]:
    header = found.header
    if header is None:
        step = Step.NONE if found.missing else Step.REPLACE_BY_EMPTY
        yield _damaged(name, Reason.UNREADABLE, step, found.wrong, number=number)
        return
    if header.number not in (number, -1):
        yield _damaged(name, Reason.OTHER_NUMBER, Step.REPLACE_BY_EMPTY, number=number, count=header.number)
        return
    if header.number == -1:
        cause = "its number does not match its checksum"
        yield _damaged(name, Reason.DAMAGED_NUMBER, Step.WRITE_NUMBER, cause, number=number)
    yield from _content(view, name, found, number, 0)
    if found.bad_tables and not is_quarantined(disk, name):
        yield _damaged(name, Reason.DAMAGED_TABLE, Step.KEEP_COPY, found.bad_tables[0])


def _adopted_branch(
    disk: Disk, view: View, branch: CommittedName, xid: Xid, checksum: int, first: int
) -> Iterator[Decision]:
    name = layout.committed(*branch)
    found = examine(disk, name)
    if found.missing and disk.exists(layout.prepared(xid)):
        name = layout.prepared(xid)
        found = examine(disk, name)
    if found.missing:
        if not is_quarantined(disk, name):
            yield _damaged(name, Reason.DAMAGED_BRANCH, Step.RECORD, f"{found.wrong} (branch {xid})")
        return
    wrong = found.wrong or next(iter(found.bad_tables), "")
    if found.header is not None and found.header.checksum != checksum:
        wrong = "it is not the branch that was committed"
    if wrong:
        yield _damaged(name, Reason.DAMAGED_BRANCH, Step.QUARANTINE, f"{wrong} (branch {xid})")
        return
    yield from _content(view, name, found, branch.number, first)
    if found.header is not None and found.header.is_numbered:
        cause = f"a branch has no number (branch {xid})"
        yield _damaged(name, Reason.DAMAGED_NUMBER, Step.WRITE_NUMBER, cause)


def _content(view: View, name: str, found: Examination, number: int, first: int) -> Iterator[Decision]:
    """Check the bodies of messages that are still in a queue, and the file's length.

    Args:
        first: the ordinal that the file's first message has in its commit.
    """
    with view.mutex:
        live = [
            (position, wrong)
            for ordinal, wrong in found.bad_bodies
            if view.index.messages.find(position := Position(number, first + ordinal)) is not None
        ]
    if live:
        positions = tuple(position for position, _ in live)
        yield _damaged(name, Reason.DAMAGED_BODY, Step.QUARANTINE_MESSAGES, live[0][1], positions=positions)
    if found.surplus:
        yield _damaged(name, Reason.SURPLUS_BYTES, Step.TRUNCATE, count=found.surplus)


def _still_needed(store: Store, number: int) -> bool:
    """Return False if the index lacks a commit, or if the commit has no live message and is being reclaimed."""
    catch_up(store)
    with store.view.mutex:
        state = store.view.index.files.get(number)
        return state is not None and (
            state.live > 0 or not is_being_reclaimed(store.files.disk, store.view.index, number)
        )


def _missing_files_now(store: Store) -> list[Decision]:
    catch_up(store)
    return missing_files(store.files.disk, store.view, store.view.index)


def missing_files(disk: Disk, view: View, index: Index) -> list[Decision]:
    """Find files that another program deleted or put back: see ``digest_mismatch``."""
    change = digest_mismatch(disk, view, index)
    if change is None:
        return []
    missing, number = change
    name = f"{layout.COMMITTED}/" if number is None else layout.committed(number)
    reason = Reason.MISSING_COMMIT if missing > 0 else Reason.RESTORED_COMMIT
    return [_damaged(name, reason, Step.RESET_DIGEST, number=number or 0, count=abs(missing))]


# -- everything else --------------------------------------------------------------------------------------------------


def _prepared_branches(disk: Disk, view: View) -> Iterator[Decision]:
    for entry in sorted(disk.names(layout.PREPARED)):
        xid, name = layout.parse_xid(entry), f"{layout.PREPARED}/{entry}"
        if xid is None or xid in view.index.adopted:
            continue
        found = examine(disk, name)
        header = found.header
        if found.missing:
            continue  # another process has committed the branch or rolled it back meanwhile
        wrong = found.wrong or next(iter((*found.bad_tables, *(why for _, why in found.bad_bodies))), "")
        if header is not None and not is_branch_file(header, xid):
            yield _damaged(name, Reason.OTHER_BRANCH, Step.QUARANTINE, xid=xid)
            continue
        if wrong or header is None:
            yield _damaged(name, Reason.UNREADABLE, Step.QUARANTINE, wrong, xid=xid)
            continue
        yield Decision(Kind.IN_DOUBT, name, Reason.UNDECIDED, count=header.messages)
        if header.is_numbered:
            cause = "the bytes for its number are damaged; all others are whole"
            yield _damaged(name, Reason.DAMAGED_NUMBER, Step.WRITE_NUMBER, cause)
        if found.surplus:
            yield _damaged(name, Reason.SURPLUS_BYTES, Step.TRUNCATE, count=found.surplus)


def _strays(disk: Disk, counters: Counters) -> Iterator[Decision]:
    """Find foreign entries in the space's own directories."""
    for directory, is_ours in layout.OWN_NAMES.items():
        entries = sorted(disk.names(directory))
        last = highest_number(disk, counters.read())  # read after the names, because other processes commit meanwhile
        for entry in entries:
            name = f"{directory}/{entry}"
            identity = disk.identity(name)
            if identity is None:
                continue
            parsed = layout.parse_committed(entry) if directory == layout.COMMITTED else None
            irregular = not identity.is_regular and directory in (layout.FREE, layout.RUN, layout.ACTIVE)
            captured = entry.startswith(layout.CAPTURE_PREFIX)  # the entry has the name of a directory of dropped files
            is_capture = captured and directory == layout.ACTIVE and identity.is_directory
            if not is_ours(entry) or (irregular and not is_capture) or (captured and not is_capture):
                yield Decision(Kind.STRAY, name, Reason.FOREIGN, Step.QUARANTINE)
            elif parsed is not None and parsed.number > last:
                yield Decision(Kind.STRAY, name, Reason.FUTURE_NUMBER, Step.QUARANTINE, number=parsed.number)


_FILES = (layout.SETTINGS, layout.SPACE_ID, layout.MIRROR_ID)  # the space's own files
_UNFINISHED = tuple(f"{name}.tmp" for name in _FILES)


def _foreign_files(disk: Disk) -> Iterator[Decision]:
    """Find files beside the space's directories, and reason files in quarantine that are not regular files.

    Repair does not touch these files. A crash may leave a half-written ``.tmp`` file of the space, or a reason file
    without the quarantined file: neither is a problem.
    """
    names = [name for name in disk.names("") if name not in (*_FILES, *layout.DIRECTORIES)]
    kept_names = set(disk.names(layout.QUARANTINE))
    reasons = {name for name in kept_names if name.endswith(layout.REASON_SUFFIX)}
    orphans = {reason for reason in reasons if reason.removesuffix(layout.REASON_SUFFIX) not in kept_names}
    for name in sorted([*names, *(f"{layout.QUARANTINE}/{name}" for name in orphans)]):
        identity = disk.identity(name)
        if identity is None or (name in _UNFINISHED and identity.is_regular):
            continue
        if not (name.endswith(layout.REASON_SUFFIX) and identity.is_plain):
            yield Decision(Kind.STRAY, name, Reason.FOREIGN)


def lost_queues(store: Store, index: Index | None = None) -> Iterator[Decision]:
    """Find messages that no process can take, because space.toml has lost their queue.

    Args:
        index: the index of the only process with the space open. If the index is None, other processes may create and
            delete queues meanwhile. In that case messages and settings are read again until both show the same moment.
    """
    for _ in store.deadline().polls():
        settings = store.settings.current()
        if index is None:
            catch_up(store)
        with store.view.mutex:
            queues = (store.view.index if index is None else index).messages.queues
            lost = {n: q.live for n, q in queues.items() if q.live and n not in settings.config.queues}
        if not lost or store.shared.counters.read().settings == settings.version:
            break
    for queue, live in sorted(lost.items()):
        yield _damaged(layout.SETTINGS, Reason.MISSING_QUEUE, Step.CREATE_QUEUE, queue=queue, count=live)


def _directories(disk: Disk, config: SpaceConfig) -> Iterator[Decision]:
    """Find directories that are missing, and files and directories that other users may read or write."""
    published = {} if config.monitor_group is None else {layout.RUN: PASSAGE_MODE, layout.STATUS: PUBLISHED_MODE}
    for name in (*layout.DIRECTORIES, *(f"{layout.DROP}/{queue}" for queue in config.queues)):
        identity = disk.identity(name)
        if identity is None:
            yield Decision(Kind.MISSING, name, Reason.MISSING_DIRECTORY, Step.CREATE_DIRECTORY)
        elif not name.startswith(layout.DROP) and identity.permissions & ~published.get(name, DIRECTORY_MODE):
            yield _exposed(name, identity.permissions)
        elif name.startswith(f"{layout.DROP}/") and identity.lets_users_remove_files_of_others:
            permissions = identity.permissions
            yield Decision(Kind.EXPOSED, name, Reason.UNPROTECTED, Step.PROTECT, count=permissions)
    for directory in layout.OWN_NAMES:
        for entry in sorted(disk.names(directory)):
            name = f"{directory}/{entry}"
            identity = disk.identity(name)
            allowed = published.get(name, FILE_MODE)
            if identity is not None and identity.is_regular and identity.permissions & ~allowed:
                yield _exposed(name, identity.permissions)


def _exposed(name: str, permissions: int) -> Decision:
    return Decision(Kind.EXPOSED, name, Reason.EXPOSED, Step.RESTRICT, count=permissions)
