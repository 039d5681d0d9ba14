"""The start-up scan: read the evidence, decide, do. It may be killed at any step and run again."""

from collections.abc import Iterable

from spool.admin.findings import Finding, Kind, RecoveryReport
from spool.coordination.locks import xid_byte
from spool.disk.content import opened
from spool.disk.disk import FlushFailed
from spool.disk.quarantine import quarantine
from spool.errors import SpoolError
from spool.index import Index
from spool.log.sequence import finish_dead_writer
from spool.log.visibility import read_all, rebuild
from spool.model import layout
from spool.model.xid import Xid
from spool.policies.claim_journal import count_journal
from spool.policies.heuristics import ROLLED_BACK, heuristic_fact
from spool.runtime.clock import Deadline
from spool.store.parts import View
from spool.store.store import Store, log
from spool.transactions.resolution import finish_moves
from spool.transactions.two_phase import UnknownBranch, rollback_prepared

from .check import check, lost_queues, missing_files
from .evidence import Decision, Evidence, Step, decide, read
from .mirrored import catch_up, check_mirror, give_back, look_at_mirror, lost_commits, plan_lost
from .repair import repair

__all__ = ["check", "plan", "repair", "scan"]

_QUIET = (Kind.ALIVE,)


def scan(store: Store, *, alone: bool) -> RecoveryReport:
    """Recover the space, or join the processes that have it open; the index is built when this returns.

    Damage does not raise: it is in the report, and the rest is served. Caller holds the open lock.

    Args:
        alone: no other process has the space open: recover it.
    """
    begun = store.clock.monotonic()
    deadline = store.deadline(None if alone else 30.0)
    evidence = read(store.files.disk, store.shared, alone=alone)
    check_mirror(store, evidence)
    named = [decision for decision in decide(evidence) if decision.step is Step.NAME] if evidence.unnamed else []
    if named:  # before anything else is decided
        _give_names(store, named)
        evidence = read(store.files.disk, store.shared, alone=alone)
    if lost := lost_commits(store.files.mirror, evidence):
        give_back(store, lost)
        evidence = read(store.files.disk, store.shared, alone=alone)
    if alone:
        page = store.shared.counters.read()
        store.shared.feed.start()
        store.shared.counters.start(
            issued=evidence.issued,
            published=evidence.published,
            # After a power cut *published* was itself read from a durable mark.
            durable=min(evidence.published, page.durable) if evidence.same_life else evidence.published,
            suspect=page.boot_id == store.files.disk.boot_id() and (page.is_stopped or page.is_suspect),
        )
        # Where renames are not ordered, a spare may also lie in committed/ after a power cut.
        store.files.recycler.clear(everything=not store.files.disk.ordered and not evidence.same_life)
        _finish_numbers(store, evidence)
    report = RecoveryReport(alone, [_finding(decision) for decision in named])
    decisions = decide(evidence)
    early = [d for d in decisions if d.step in (Step.RETURN, Step.QUARANTINE)]
    for decision in early:
        _carry_out(store, decision, deadline)
    rebuild(store, alone=alone, opening=True)
    if alone:
        report.findings += _damage(store.view)
        missing = missing_files(store.files.disk, store.view, store.view.index)
        report.findings += [problem.finding for problem in missing]
    report.findings += [problem.finding for problem in lost_queues(store)]
    decisions = decide(evidence, frozenset(store.view.index.adopted), _refused(evidence, store.view.index))
    for decision in decisions:
        if decision not in early:
            _carry_out(store, decision, deadline)
    if alone:
        catch_up(store, agrees=not missing)
    report.findings += [_finding(d) for d in decisions if d.kind not in _QUIET]
    report.in_doubt = sorted(map(str, store.view.prepared.branches))
    report.published = store.view.index.applied
    report.seconds = store.clock.monotonic() - begun
    return report


def plan(store: Store, *, alone: bool = True) -> RecoveryReport:
    """Report what `scan` would do. Nothing is changed: the store's disk may refuse every change."""
    evidence = read(store.files.disk, store.shared, alone=alone)
    if alone:
        if store.files.mirror is not None:
            look_at_mirror(store, store.files.mirror, evidence)
            plan_lost(evidence, lost_commits(store.files.mirror, evidence))
        index = read_all(store, store.settings.known, alone=True, published=evidence.published)
    else:
        rebuild(store)  # with restarts: other processes move files meanwhile
        index = store.view.index
    decisions = decide(evidence, frozenset(index.adopted), _refused(evidence, index))
    findings = [_finding(d) for d in decisions if d.kind not in _QUIET]
    findings += [Finding(Kind.DAMAGED, name, wrong) for name, wrong in index.damage]
    findings += [problem.finding for problem in missing_files(store.files.disk, store.view, index)] if alone else []
    findings += [problem.finding for problem in lost_queues(store, index if alone else None)]
    in_doubt = sorted(str(d.xid) for d in decisions if d.kind is Kind.IN_DOUBT)
    return RecoveryReport(alone, findings, in_doubt, index.applied)


def _refused(evidence: Evidence, index: Index) -> frozenset[Xid]:
    return frozenset(xid for xid in evidence.prepared if heuristic_fact(index, xid) == ROLLED_BACK)


def _finding(decision: Decision) -> Finding:
    return Finding(decision.kind, decision.name, decision.detail, decision.step.value)


def _give_names(store: Store, decisions: Iterable[Decision]) -> None:
    """Give commits the names that a power cut took. Raises what the disk raises: nothing else may go on.

    Without a flush: another power cut takes these names and no others, and leaves what it left now.
    """
    for decision in decisions:
        assert decision.number is not None
        store.files.disk.rename_new(decision.name, layout.committed(*decision.number))


def _finish_numbers(store: Store, evidence: Evidence) -> None:
    """Finish each unpublished number, as that of a dead writer."""
    for number in range(evidence.published + 1, evidence.issued + 1):
        if not store.shared.numbers.try_lock(number):
            raise SpoolError(f"commit {number} has a writer although no process has the space open")
        try:
            finish_dead_writer(store, number)
        finally:
            store.shared.numbers.unlock(number)


def _carry_out(store: Store, decision: Decision, deadline: Deadline) -> None:
    """Carry out one decision. A failure is logged, and the next scan tries again; a failed flush stops the space."""
    try:
        _STEPS[decision.step](store, decision, deadline)
    except FlushFailed:
        store.stop()
        raise
    except (UnknownBranch, FileNotFoundError):
        pass  # another process did it meanwhile
    except (OSError, SpoolError) as error:
        log.error("%s: %s", decision.name, error)


def _return_to_prepared(store: Store, decision: Decision, deadline: Deadline) -> None:
    assert decision.xid is not None
    assert decision.number is not None
    source, target = layout.committed(*decision.number), layout.prepared(decision.xid)
    if store.files.disk.exists(target):  # the same file under two names, or the file that was voted for
        store.files.disk.unlink(source)
        return
    store.files.disk.rename(source, target)
    with opened(store.files.disk, target, write=True) as handle:
        store.files.disk.make_durable(handle, layout.PREPARED)


def _quarantine(store: Store, decision: Decision, deadline: Deadline) -> None:
    quarantine(store.files.disk, decision.name, decision.detail)


def _roll_back(store: Store, decision: Decision, deadline: Deadline) -> None:
    assert decision.xid is not None
    rollback_prepared(store, decision.xid, deadline, decision.detail)


def _count(store: Store, decision: Decision, deadline: Deadline) -> None:
    assert decision.xid is not None
    count_journal(store, decision.xid, deadline)


def _remove(store: Store, decision: Decision, deadline: Deadline) -> None:
    """Remove a file in active/ under its branch's lock: its owner may be a process that came meanwhile."""
    if decision.xid is None:
        store.files.disk.unlink(decision.name)
        return
    byte = xid_byte(decision.xid)
    if store.shared.xids.try_lock(byte):
        try:
            store.files.disk.unlink(decision.name)
        finally:
            store.shared.xids.unlock(byte)


def _move(store: Store, decision: Decision, deadline: Deadline) -> None:
    finish_moves(store)


def _nothing(store: Store, decision: Decision, deadline: Deadline) -> None:
    pass


_STEPS = {
    Step.NAME: _nothing,  # done before all others
    Step.FINISH: _nothing,  # done before all others, in the order of the numbers
    Step.QUARANTINE_NUMBER: _nothing,
    Step.FILL: _nothing,
    Step.RETURN: _return_to_prepared,
    Step.QUARANTINE: _quarantine,
    Step.MOVE: _move,
    Step.ROLL_BACK: _roll_back,
    Step.REMOVE: _remove,
    Step.COUNT: _count,
    Step.NOTHING: _nothing,
}


def _damage(view: View) -> list[Finding]:
    """Name what was durable and cannot be read. The file stays where it is: what is whole in it is still served."""
    return [
        Finding(Kind.DAMAGED, name, wrong, "what can be read of it is served; spool-admin check tells more")
        for name, wrong in view.index.damage
    ]
