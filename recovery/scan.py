"""The scan when a space opens: each phase reads its evidence, decides, and carries its decisions out.

The phases, in order: votes without a name, sequence numbers, files of branches, the index, votes of branches,
unfinished work, foreign files. A phase reads its evidence once, and a decision is a pure function of that evidence. A
dry run (`plan`) goes through the same phases and carries nothing out. If the scan is killed at any step, the next
opener runs it again.
"""

from collections.abc import Iterable, Mapping

from spool.admin.findings import Finding, Kind, RecoveryReport
from spool.disk.disk import FlushFailed
from spool.disk.quarantine import FileCause, quarantine
from spool.errors import SpoolError
from spool.index import Index
from spool.log.adoption import UnknownBranch, heuristic_fact
from spool.log.visibility import read_all, rebuild
from spool.model import layout
from spool.model.xid import Xid
from spool.policies.attempt_journal import count_journal
from spool.policies.heuristics import ROLLED_BACK
from spool.store.store import Store, log
from spool.transactions.two_phase import finish_moves, rollback_prepared

from . import branch_files, numbers, unfinished
from .check import check, lost_queues, missing_files
from .decision import Decision, Step
from .mirrored import bring_up_to_date, check_mirror, give_back_votes, look_at_mirror, with_mirrored
from .repair import repair

__all__ = ["check", "plan", "repair", "scan"]


def scan(store: Store, *, alone: bool) -> RecoveryReport:
    """Recover the space, or join the processes that have the space open. In both cases, the scan builds the index.

    Damage raises no error. The report names the damage, and the space serves all other messages. The caller holds the
    open lock.

    Args:
        alone: whether no other process has the space open. If so, the scan recovers the space.
    """
    begun = store.clock.monotonic()
    report = _Scan(store, alone=alone, dry=False).run()
    report.in_doubt = sorted(map(str, store.view.prepared.branches))
    report.seconds = store.clock.monotonic() - begun
    return report


def plan(store: Store, *, alone: bool = True) -> RecoveryReport:
    """Report the decisions of a `scan` without changing anything, so the disk of the store may be read-only."""
    return _Scan(store, alone=alone, dry=True).run()


class _Scan:
    """One scan. ``dry``: whether the scan only reports its decisions, and carries nothing out."""

    def __init__(self, store: Store, *, alone: bool, dry: bool) -> None:
        self._store = store
        self._alone = alone
        self._dry = dry
        self._deadline = store.deadline(None if alone else 30.0)
        self._findings: list[Finding] = []

    def run(self) -> RecoveryReport:
        disk, xids = self._store.files.disk, self._store.shared.xids
        names = sorted(disk.names(layout.COMMITTED))
        stamped = numbers.read_stamped(disk) if self._alone else {}
        votes = branch_files.unnamed_votes(disk, stamped)
        prepared = branch_files.read_prepared(disk, xids, votes)
        active = unfinished.read(disk, xids)
        if self._alone:
            named = max(prepared.named, unfinished.highest_named(disk, active))
            evidence = self._numbers(numbers.read(disk, self._store.shared.counters, names, named, stamped), votes)
            known, page = numbers.count(evidence), evidence.page
            if not self._dry and give_back_votes(self._store.files, prepared):
                prepared = branch_files.read_prepared(disk, xids)
            adopted = branch_files.read_adopted(disk, xids, names, known)
            unnamed, issued = {*evidence.unnamed.values(), *votes.values()}, known.issued
            absent = (*evidence.unnamed, *evidence.from_mirror)  # a dry run does not put these commits in place
            published = min([known.published, *(number - 1 for number in absent)])
        else:
            (page := self._store.shared.counters.read()).check()
            if not self._dry:
                check_mirror(self._store.files, None)
            adopted, unnamed, issued, published = branch_files.NONE_ADOPTED, set(), layout.MAX_NUMBER, None
        is_proven = (not self._alone or known.same_life) and not (page.is_stopped or page.is_suspect)
        files = self._carry_out(branch_files.decide_files(prepared, adopted, proven=is_proven))
        self._carry_out(branch_files.decide_marks(prepared) if self._alone else [])
        index, is_complete = self._index(published)
        refused = [xid for xid in prepared.whole if heuristic_fact(index, xid) == ROLLED_BACK]
        decided = self._carry_out(branch_files.decide_votes(prepared, adopted, files, index.adopted, refused))
        attempts = unfinished.with_attempts(disk, active, index)
        self._carry_out(unfinished.decide(active, unnamed, attempts, alone=self._alone))
        self._carry_out(unfinished.decide_foreign([*prepared.foreign, *_foreign(names, issued)]))
        if self._alone and not self._dry:
            bring_up_to_date(self._store.files, index, agrees=is_complete)
        in_doubt = sorted(str(vote.xid) for vote in decided if vote.kind is Kind.IN_DOUBT)
        return RecoveryReport(self._alone, self._findings, in_doubt, index.applied)

    def _name_votes(self, decisions: list[Decision]) -> None:
        """Give votes their names, before a commit can overwrite a vote in ``free/``. So an error is raised."""
        self._report(decisions)
        for decision in decisions:
            if decision.xid is not None and not self._dry:
                self._store.files.disk.rename(decision.name, layout.prepared(decision.xid))

    def _numbers(self, evidence: numbers.NumberedFiles, votes: Mapping[Xid, str]) -> numbers.NumberedFiles:
        """Check that the mirror fits the space, give votes their names, then settle the sequence numbers."""
        store = self._store
        if not self._dry:
            check_mirror(store.files, evidence)
        elif store.files.mirror is not None:
            look_at_mirror(store.files.disk, store.files.mirror, evidence)
        self._name_votes(branch_files.decide_names(votes))
        evidence = with_mirrored(store.files.mirror, evidence)
        decisions = numbers.decide(evidence)
        self._report(decisions)
        if not self._dry:
            numbers.apply(store, evidence, decisions)
        return evidence

    def _index(self, published: int | None) -> tuple[Index, bool]:
        """Build the index, and report damage; return the index, and whether no file is missing.

        Args:
            published: the last number that a dry run of the first opener reads.
        """
        store, missing = self._store, []
        if not self._dry:
            rebuild(store, alone=self._alone, opening=True)
        elif not self._alone:
            rebuild(store)  # this call starts again if other processes move files meanwhile
        index = store.view.index
        if self._dry and self._alone:
            index = read_all(store, store.settings.known, alone=True, published=published)
        if self._alone or self._dry:  # otherwise the first opener has reported the damage
            served = "the space serves its readable messages; spool-admin check tells more"
            self._findings += [Finding(Kind.DAMAGED, name, f"{wrong}; {served}") for name, wrong in index.damage]
        if self._alone:
            missing = missing_files(store.files.disk, store.view, index)
            self._report(missing, "")
        self._report(lost_queues(store, index if self._dry and self._alone else None), "")
        return index, not missing

    def _report(self, decisions: Iterable[Decision], action: str | None = None) -> None:
        self._findings += [decision.finding(action) for decision in decisions if decision.is_told]

    def _carry_out(self, decisions: list[Decision]) -> list[Decision]:
        """Report the decisions and carry them out; return them.

        A failure is logged, and the next scan tries again. A failed flush stops the space.
        """
        self._report(decisions)
        for decision in decisions:
            try:
                if not self._dry:
                    self._apply(decision)
            except FlushFailed:
                self._store.stop()
                raise
            except (UnknownBranch, FileNotFoundError):
                pass  # another process carried the decision out meanwhile
            except (OSError, SpoolError) as error:
                log.error("%s: %s", decision.name, error)
        return decisions

    def _apply(self, decision: Decision) -> None:
        store, name, xid = self._store, decision.name, decision.xid
        match decision.step:
            case Step.QUARANTINE:
                quarantine(store.files.disk, name, decision.file_reason(FileCause.UNFLUSHED))
            case Step.MOVE:
                finish_moves(store)  # it moves every committed branch
            case Step.REMOVE:
                unfinished.remove(store.files.disk, store.shared.xids, name, xid)
            case Step.RETURN if xid is not None:
                branch_files.return_to_prepared(store.files.disk, name, xid)
            case Step.WRITE_NUMBER:
                numbers.write_number(store.files.disk, name, 0)
            case Step.ROLL_BACK if xid is not None:
                rollback_prepared(store, xid, self._deadline, decision.detail)
            case Step.COUNT if xid is not None:
                count_journal(store, xid, self._deadline)


def _foreign(names: Iterable[str], issued: int) -> list[str]:
    """Return the entries of ``committed/`` that are not commits, or whose numbers are not issued yet."""
    parsed = {name: layout.parse_committed(name) for name in names}
    return [f"{layout.COMMITTED}/{name}" for name, found in parsed.items() if found is None or found.number > issued]
