"""Repair the problems that a check finds. If a file cannot be repaired, move it to quarantine. Other processes may have
the space open.

The repair holds the reclaim lock, so no file is recycled meanwhile. As any process does, the repair locks a branch or a
message before it changes the branch or message. If another process holds the lock of a branch or message, the repair
reports the file and does not touch it.
"""

from spool.admin.findings import Finding, Kind, RecoveryReport
from spool.admin.queues import add_queues
from spool.coordination.locks import PREPARED_LIST, xid_byte
from spool.disk.content import ensure_directory, opened, protect_files
from spool.disk.disk import DIRECTORY_MODE, FILE_MODE, FlushFailed
from spool.disk.quarantine import keep_copy, quarantine, quarantine_bytes
from spool.errors import SpoolError, SystemFailure
from spool.format.reader import read_header
from spool.log.sequence import highest_number, number_locked, settle_all, write_empty
from spool.log.settled_lock import settled
from spool.log.visibility import catch_up, rebuild, revalidate
from spool.maintenance.disk_space import free_room
from spool.maintenance.reclaim import reset_retired_digest
from spool.model import layout
from spool.model.text import plural
from spool.model.xid import Xid
from spool.store.store import Store, log
from spool.transactions import delivery
from spool.transactions.two_phase import finish_moves

from .check import examine, find_problems, not_done
from .decision import Decision, Step, distinct
from .numbers import write_number

_WAIT_SECONDS = 30.0
_MAX_ROUNDS = 4


def repair(store: Store) -> list[Finding]:
    """Carry out the decision about each problem; return every finding with the action that was taken, the findings of
    damage first. Files that the space does not need are removed afterwards.

    Raises:
        SystemFailure: another process has held the reclaim lock for 30 seconds.
    """
    for _ in store.deadline(_WAIT_SECONDS).polls():
        with store.files.disk.exclusively(layout.RECLAIM_LOCK) as locked:
            if locked:
                findings = distinct(_repair(store))
        if locked:
            free_room(store)
            if not any(finding.is_damage_left for finding in findings):
                from spool.watch.last_recovery import record_recovery  # (imported here: an opening needs no repair)

                record_recovery(store.files.disk, RecoveryReport(alone=False), store.clock.now())
            return findings
    raise SystemFailure(f"another process has been reclaiming or repairing for {_WAIT_SECONDS:g} s: try again later")


def _repair(store: Store) -> list[Finding]:
    """Check and repair in rounds, because a problem may become visible only after another problem is repaired.

    For example, the messages that a branch holds are known only once the branch has its committed name.
    """
    for name in [each for each in layout.DIRECTORIES if not store.files.disk.exists(each)]:
        ensure_directory(store.files.disk, name)
    repaired: list[Finding] = []
    for _ in range(_MAX_ROUNDS):
        settle_all(store, store.deadline())  # otherwise the check would report the unpublished commit of a dead writer
        rebuild(store)  # read the files again: they may have changed since the last reading
        finish_moves(store, reclaim_locked=True)
        problems = find_problems(store, reclaim_locked=True)
        done = [(problem, _carry_out(store, problem)) for problem in problems]
        changed = [problem.finding(action) for problem, action in done if action != not_done(problem)]
        repaired += changed
        if not changed:
            break
    return repaired + [problem.finding(not_done(problem)) for problem in problems]


def _carry_out(store: Store, problem: Decision) -> str:
    """Carry a decision out as ``_apply`` does. If the call fails, log the error and return an empty string."""
    try:
        return _apply(store, problem)
    except FlushFailed:
        store.stop()
        raise
    except FileNotFoundError:
        return ""  # another process removed or moved the file
    except (OSError, SpoolError) as error:
        log.error("%s: %s", problem.name, error)
        return ""


def _apply(store: Store, problem: Decision) -> str:
    """Carry out the step of a problem; return the action in words, or "" if another process prevents it."""
    disk, name, action = store.files.disk, problem.name, ""
    mirror, place = store.files.mirror, name.removeprefix(f"{layout.COMMITTED}/")
    if mirror is not None and problem.kind is Kind.DAMAGED and place != name:
        there = examine(mirror.disk, place)
        if not (there.wrong or there.bad_tables or there.bad_bodies):
            raise _left_to_mirror(store, f"{name} whole")  # the mirror would follow a repair
    match problem.step:
        case Step.NONE:
            action = not_done(problem)
        case Step.TRUNCATE:
            with opened(disk, name, write=True) as handle:
                disk.truncate(handle, read_header(disk, handle).size)
                disk.flush(handle)
            action = "cut to its length"
        case Step.WRITE_NUMBER:
            write_number(disk, name, problem.number)
            action = "its number was written again"
        case Step.REPLACE_BY_EMPTY:
            action = f"moved to {_moved(store, problem)}; its number is an empty commit now"
            write_empty(store, problem.number)
            store.shared.feed.retract(problem.number)
        case Step.KEEP_COPY:
            action = f"kept as {keep_copy(disk, name, problem.file_reason())}; the space serves its undamaged messages"
        case Step.RECORD:
            action = _record(store, problem)
        case Step.QUARANTINE if problem.xid is not None:
            action = _quarantine_vote(store, problem, problem.xid)
        case Step.QUARANTINE if problem.number:
            action = _quarantine_number(store, problem)
        case Step.QUARANTINE:
            action = f"moved to {_moved(store, problem)}"
        case Step.QUARANTINE_MESSAGES:
            action = _quarantine_messages(store, problem)
        case Step.RESET_DIGEST:
            action = _reset_digest(store, problem)
        case Step.CREATE_QUEUE:
            add_queues(store, {problem.queue: {}})
            action = f"queue {problem.queue} was created with default options"
        case Step.CREATE_DIRECTORY:
            ensure_directory(disk, name)
            action = "created"
        case Step.RESTRICT if (identity := disk.identity(name)) is not None:
            disk.set_mode(name, DIRECTORY_MODE if identity.is_directory else FILE_MODE)
            action = "mode set to owner only"
        case Step.PROTECT if (identity := disk.identity(name)) is not None:
            protect_files(disk, name, identity)
            action = "sticky bit set"
    return action


def _record(store: Store, problem: Decision) -> str:
    return f"recorded as {quarantine_bytes(store.files.disk, problem.name, b'', problem.file_reason())}"


def _moved(store: Store, problem: Decision) -> str:
    """Move the file of a problem to quarantine; return the name of the file in quarantine."""
    return quarantine(store.files.disk, problem.name, problem.file_reason())


def _quarantine_number(store: Store, problem: Decision) -> str:
    """Move a file with an unissued sequence number to quarantine, unless that number has been issued meanwhile."""
    with number_locked(store.shared.control, store.deadline()):
        if problem.number <= highest_number(store.files.disk, store.shared.counters.read()):
            return ""
        return f"moved to {_moved(store, problem)}"


def _quarantine_vote(store: Store, problem: Decision, xid: Xid) -> str:
    """Remove a prepared branch from the list of prepared branches, as a rollback does, and keep its file in quarantine.

    If a process holds the lock of the branch, do nothing.
    """
    deadline = store.deadline()
    with store.shared.xids.trying(xid_byte(xid)) as ours:
        if not ours:
            return ""
        with settled(store, deadline):
            if xid in store.view.index.adopted:
                return ""
            with store.shared.control.holding(PREPARED_LIST, deadline, "the list of prepared branches"):
                store.shared.counters.bump_prepared(store.shared.counters.read())
                return f"moved to {_moved(store, problem)}"


def _quarantine_messages(store: Store, problem: Decision) -> str:
    """Move each damaged message to quarantine, as a get does. Messages that a process has claimed are not moved."""
    deadline, done = store.deadline(), 0
    for position in problem.positions:
        if not (claimed := store.shared.claims.claim(position.number, position.ordinal, 1)):
            continue
        try:
            revalidate(store, [(position.number, position.ordinal, 1)], deadline)
            if store.view.index.messages.find(position) is None:
                done += 1
            elif position not in store.view.prepared.held:
                delivery.set_aside(store, position, problem.detail, deadline)
                done += 1
        finally:
            store.shared.claims.release_all([(position.number, first, count) for first, count in claimed])
    held = len(problem.positions) - done
    return "" if held else f"{done} damaged messages moved to {layout.QUARANTINE}/"


def _reset_digest(store: Store, problem: Decision) -> str:
    """Record a new digest, in which the missing files count as removed.

    If the mirror has these files, raise SystemFailure, because the next opener would also remove the files from the
    mirror.
    """
    if lost := _only_in_mirror(store):
        raise _left_to_mirror(store, f"{plural(len(lost), 'commit')} that the space lost")
    record = _record(store, problem)
    reset_retired_digest(store, layout.committed_numbers(store.files.disk.names(layout.COMMITTED)))
    return f"{record}; no longer counted as missing"


def _left_to_mirror(store: Store, there: str) -> SystemFailure:
    return SystemFailure(
        f"the mirror {store.settings.known.config.mirror} has {there}: close the space, and make a new space out of "
        "the mirror with spool-admin mirror restore"
    )


def _only_in_mirror(store: Store) -> set[int]:
    """Return the numbers of published commits that the mirror has, and that the space lacks and has not reclaimed."""
    if store.files.mirror is None:
        return set()
    catch_up(store)
    with store.view.mutex:
        applied, retired = store.view.index.applied, set(store.view.index.retired)
    there = {number for number in store.files.mirror.numbers() if number <= applied}
    return there - retired - layout.committed_numbers(store.files.disk.names(layout.COMMITTED))
