"""Mending what a check found, or moving it to quarantine with the reason. Others may have the space open meanwhile.

Reclaim is kept away all the time, so no file is recycled under our hands; whatever decides about a branch or a message
is taken as every process takes it: by its lock. What is held by others stays, and is named.
"""

from collections.abc import Callable
from dataclasses import replace

from recovery.check import Mend, Problem, look, numbers_there
from spool.admin.findings import Finding
from spool.admin.queues import add_queue, keep_directory
from spool.coordination.locks import NUMBER, PREPARED_LIST, xid_byte
from spool.disk.disk import DIRECTORY_MODE, FILE_MODE, FlushFailed
from spool.disk.quarantine import keep_copy, quarantine, quarantine_bytes
from spool.errors import SpoolError, SystemFailure
from spool.format.format import stamp
from spool.format.reader import read_header
from spool.log.sequence import highest_issued, settle_all, with_number_lock, write_empty
from spool.log.visibility import catch_up, rebuild, revalidate
from spool.maintenance.reclaim import balance
from spool.model import layout
from spool.model.xid import Xid
from spool.store.store import Store, log
from spool.transactions import claiming, delivery
from spool.transactions.two_phase import finish_moves

_SECONDS = 30.0
_ROUNDS = 4


def repair(store: Store) -> list[Finding]:
    """Every finding, with what was done about it; SystemFailure if another process does the same all the time."""
    for _ in store.deadline(_SECONDS).polls():
        with store.files.disk.exclusively(layout.RECLAIM_LOCK) as ours:
            if ours:
                return _repair(store)
    raise SystemFailure("another process is removing or repairing files all the time: try again later")


def _repair(store: Store) -> list[Finding]:
    """In rounds, because one thing may hide another: what a branch held is only known when it lies in its place."""
    for name in layout.DIRECTORIES:
        if not store.files.disk.exists(name):
            keep_directory(store.files.disk, name)
    told: list[Finding] = []
    for _ in range(_ROUNDS):
        settle_all(store, store.deadline())  # or what a dead writer committed would look undecided
        rebuild(store)  # as the files are now, not as they were when this process read them
        finish_moves(store)
        problems = look(store, ours=True)
        done = [replace(problem.finding, action=_mended(store, problem)) for problem in problems]
        mended = [new for old, new in zip(problems, done, strict=True) if new != old.finding]
        told += mended
        if not mended:
            break
    return told + [problem.finding for problem in problems]


def _mended(store: Store, problem: Problem) -> str:
    """What was done, in words; empty if it could not be."""
    if problem.mend is Mend.NOTHING:
        return problem.finding.action
    try:
        return _MENDS[problem.mend](store, problem)
    except FlushFailed:
        store.stop()
        raise
    except FileNotFoundError:
        return ""  # another process did something about it
    except (OSError, SpoolError) as error:
        log.error("%s: %s", problem.finding.name, error)
        return ""


def _cut(store: Store, problem: Problem) -> str:
    handle = store.files.disk.open(problem.finding.name, write=True)
    try:
        store.files.disk.truncate(handle, read_header(store.files.disk, handle).size)
        store.files.disk.flush(handle)
    finally:
        store.files.disk.close(handle)
    return "cut to its length"


def _stamp(store: Store, problem: Problem) -> str:
    handle = store.files.disk.open(problem.finding.name, write=True)
    try:
        store.files.disk.write_at(handle, *stamp(problem.number))
        store.files.disk.flush(handle)
    finally:
        store.files.disk.close(handle)
    return "its number was written again"


def _empty(store: Store, problem: Problem) -> str:
    moved = quarantine(store.files.disk, problem.finding.name, problem.finding.detail)
    write_empty(store, problem.number)
    return f"moved to {moved}; its number is an empty commit now"


def _keep_copy(store: Store, problem: Problem) -> str:
    return (
        f"kept as {keep_copy(store.files.disk, problem.finding.name, problem.finding.detail)}; what is whole is served"
    )


def _record(store: Store, problem: Problem) -> str:
    return f"recorded as {quarantine_bytes(store.files.disk, problem.finding.name, b'', problem.finding.detail)}"


def _quarantine(store: Store, problem: Problem) -> str:
    if problem.xid is not None:
        return _quarantine_vote(store, problem, problem.xid)
    if problem.number:
        return _quarantine_number(store, problem)
    return f"moved to {quarantine(store.files.disk, problem.finding.name, problem.finding.detail)}"


def _quarantine_number(store: Store, problem: Problem) -> str:
    """A file with a number that is still to come, unless it has come meanwhile."""
    with_number_lock(store, store.deadline())
    try:
        if problem.number <= highest_issued(store, store.shared.counters.read()):
            return ""
        return f"moved to {quarantine(store.files.disk, problem.finding.name, problem.finding.detail)}"
    finally:
        store.shared.control.unlock(NUMBER)


def _quarantine_vote(store: Store, problem: Problem, xid: Xid) -> str:
    """A prepared branch, if no process is at it: as in a rollback, but that the file is kept."""
    deadline = store.deadline()
    byte = xid_byte(xid)
    if not store.shared.xids.try_lock(byte):
        return ""
    try:
        with_number_lock(store, deadline)
        try:
            settle_all(store, deadline)
            catch_up(store)
            if xid in store.view.index.adopted:
                return ""
            store.shared.control.lock(PREPARED_LIST, deadline, "the list of prepared branches")
            try:
                store.shared.counters.bump_prepared()
                moved = quarantine(store.files.disk, problem.finding.name, problem.finding.detail)
            finally:
                store.shared.control.unlock(PREPARED_LIST)
        finally:
            store.shared.control.unlock(NUMBER)
    finally:
        store.shared.xids.unlock(byte)
    return f"moved to {moved}"


def _set_aside(store: Store, problem: Problem) -> str:
    """Each as a get does it that meets it, unless a process holds it."""
    deadline = store.deadline()
    done = 0
    for position in problem.positions:
        got = store.shared.claims.claim(position.number, position.ordinal, 1)
        if not got:
            continue
        try:
            revalidate(store, deadline)
            if store.view.index.messages.find(position) is None:
                done += 1
            elif position not in store.view.prepared.held:
                delivery.set_aside(store, position, problem.finding.detail, deadline)
                done += 1
        finally:
            claiming.release(store, [(position.number, first, count) for first, count in got])
    held = len(problem.positions) - done
    return "" if held else f"{done} damaged messages moved to {layout.QUARANTINE}/"


def _balance(store: Store, problem: Problem) -> str:
    record = _record(store, problem)
    balance(store, numbers_there(store))
    return f"{record}, and no longer counted on"


def _make_queue(store: Store, problem: Problem) -> str:
    add_queue(store, problem.queue)
    return f"queue {problem.queue} was created with default options"


def _make_directory(store: Store, problem: Problem) -> str:
    keep_directory(store.files.disk, problem.finding.name)
    return "made"


def _close(store: Store, problem: Problem) -> str:
    identity = store.files.disk.identity(problem.finding.name)
    if identity is None:
        return ""
    store.files.disk.set_mode(problem.finding.name, DIRECTORY_MODE if identity.is_directory else FILE_MODE)
    return "closed to others"


_MENDS: dict[Mend, Callable[[Store, Problem], str]] = {
    Mend.CUT: _cut,
    Mend.STAMP: _stamp,
    Mend.EMPTY: _empty,
    Mend.KEEP_COPY: _keep_copy,
    Mend.RECORD: _record,
    Mend.QUARANTINE: _quarantine,
    Mend.SET_ASIDE: _set_aside,
    Mend.BALANCE: _balance,
    Mend.MAKE_QUEUE: _make_queue,
    Mend.MAKE_DIRECTORY: _make_directory,
    Mend.CLOSE: _close,
}
