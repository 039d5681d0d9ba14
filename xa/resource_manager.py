"""The resource manager: a queue space under X/Open's names, for any transaction manager that speaks XA.

A branch begins with ``start``; puts and gets of the same thread or task join it until ``end``; ``prepare`` votes, and
``commit`` or ``rollback`` decide, in whatever process. A process that decides a branch that another one prepared first
makes its bytes durable again.
"""

import threading
from dataclasses import dataclass, field

from spool.errors import (
    CommitUnknown,
    NotOpen,
    SpaceStopped,
    SpoolError,
    TransactionRolledBack,
    TransactionTimeout,
)  # fmt: skip
from spool.model.xid import Xid
from spool.policies import heuristics
from spool.runtime.clock import WaitExpired
from spool.runtime.context import associate, associated
from spool.space import Space
from spool.transactions import resolution, two_phase
from spool.transactions.coordinated import CoordinatedTransaction
from xa.codes import (
    TMENDRSCAN,
    TMFAIL,
    TMJOIN,
    TMNOFLAGS,
    TMONEPHASE,
    TMRESUME,
    TMSTARTRSCAN,
    TMSUCCESS,
    TMSUSPEND,
    XA_HEURCOM,
    XA_HEURRB,
    XA_OK,
    XA_RBPROTO,
    XA_RBROLLBACK,
    XA_RBTIMEOUT,
    XA_RDONLY,
    XA_RETRY,
    XAER_DUPID,
    XAER_INVAL,
    XAER_NOTA,
    XAER_OUTSIDE,
    XAER_PROTO,
    XAER_RMERR,
    XAER_RMFAIL,
    XAError,
)  # fmt: skip
from xa.states import BranchState, Call, next_state

_END_CALLS = {TMSUCCESS: Call.END_SUCCESS, TMFAIL: Call.END_FAIL, TMSUSPEND: Call.END_SUSPEND}


@dataclass
class _Branch:
    transaction: CoordinatedTransaction
    state: BranchState = BranchState.ACTIVE
    associations: int = 1
    suspended: set[int] = field(default_factory=set)


class ResourceManager:
    """X/Open's xa_* calls on one open space. Calls may come from many threads.

    ``timeout``: seconds after which a branch that was not prepared is rolled back; None: never.
    """

    def __init__(self, space: Space, timeout: float | None = None) -> None:
        self.space = space
        self._engine = space.engine
        self._store = space.engine.store
        self._timeout = timeout
        self._branches: dict[Xid, _Branch] = {}
        self._told: set[Xid] = set()
        self._scan: list[Xid] | None = None
        self._scanning = threading.RLock()
        self._busy: set[Xid] = set()  # branches with a call under way
        self._idle = threading.Condition()

    # -- doing work -------------------------------------------------------------------------------------------------

    def start(self, xid: Xid, flags: int = TMNOFLAGS) -> int:
        """Associate the caller with a new branch, or with one that goes on (TMJOIN, TMRESUME).

        XAER_DUPID: the branch exists, here or in another process. XAER_OUTSIDE: the caller is in a transaction that
        is not under XA. XAER_PROTO: it is in a branch already, or the branch belongs to another process.
        """
        xid = _check_xid(xid)
        if flags not in (TMNOFLAGS, TMJOIN, TMRESUME):
            raise XAError(XAER_INVAL, f"xa_start takes TMNOFLAGS, TMJOIN or TMRESUME, not {flags:#x}")
        with _translated(), self._store.guard, self._turn(xid):
            self._refuse_when_associated()
            branch = self._branches.get(xid)
            if flags == TMNOFLAGS:
                self._branches[xid] = branch = self._begin(xid, branch)
            elif branch is None:
                raise self._not_here(xid)
            else:
                branch.state = next_state(branch.state, Call.JOIN if flags == TMJOIN else Call.RESUME)
                branch.associations += 1
            associate(self._store, branch.transaction)
        return XA_OK

    def _begin(self, xid: Xid, known: _Branch | None) -> _Branch:
        if known is not None or self._is_prepared(xid):
            raise XAError(XAER_DUPID, f"there is a branch {xid} already: use TMJOIN, or another xid")
        if xid in self._store.view.index.adopted:  # its file would be taken for the one that was committed
            raise XAError(XAER_DUPID, f"a branch {xid} was committed a while ago: an xid is used once, take another")
        transaction = CoordinatedTransaction(self._engine, timeout=self._timeout, xid=xid)
        if not transaction.lock_xid_now():
            raise XAError(XAER_DUPID, f"another process has the branch {xid}: use another xid")
        return _Branch(transaction)

    def _refuse_when_associated(self) -> None:
        current = associated(self._store)
        if current is None:
            return
        for xid, branch in list(self._branches.items()):
            if branch.transaction is current and branch.associations:
                raise XAError(XAER_PROTO, f"the caller is in the branch {xid}: end it first")
        if current.is_active:
            raise XAError(XAER_OUTSIDE, "the caller is in a transaction of its own: commit it or roll it back first")

    def end(self, xid: Xid, flags: int = TMSUCCESS) -> int:
        """The caller's work in the branch is done (TMSUCCESS), is done and must be undone (TMFAIL), or pauses."""
        call = _END_CALLS.get(flags)
        if call is None:
            raise XAError(XAER_INVAL, f"xa_end takes TMSUCCESS, TMFAIL or TMSUSPEND, not {flags:#x}")
        xid = _check_xid(xid)
        with _translated(), self._store.guard, self._turn(xid):
            branch = self._known(xid)
            if branch.associations > 1 and branch.state is BranchState.ACTIVE and call is Call.END_SUCCESS:
                branch.associations -= 1  # others are still at it
            else:
                branch.state = next_state(branch.state, call)
                branch.associations = max(0, branch.associations - 1)
            if call is Call.END_FAIL:
                branch.transaction.set_rollback_only("its transaction manager said TMFAIL")
            if associated(self._store) is branch.transaction:
                associate(self._store, None)
        return XA_OK

    # -- deciding ---------------------------------------------------------------------------------------------------

    def prepare(self, xid: Xid) -> int:
        """Phase one. XA_OK: the branch will commit if told to, even after a power cut. XA_RDONLY: nothing to do."""
        xid = _check_xid(xid)
        with _translated(XA_RBROLLBACK), self._store.guard, self._turn(xid):
            branch = self._known(xid)
            state = next_state(branch.state, Call.PREPARE)
            voted = False
            try:
                voted = branch.transaction.prepare()
            finally:
                if voted:
                    branch.state = state
                    self._told.add(xid)
                else:
                    del self._branches[xid]
        return XA_OK if voted else XA_RDONLY

    def commit(self, xid: Xid, flags: int = TMNOFLAGS) -> int:
        """Phase two, or both in one (TMONEPHASE). XA_RETRY: it cannot finish now, and can be asked again."""
        xid = _check_xid(xid)
        if flags not in (TMNOFLAGS, TMONEPHASE):
            raise XAError(XAER_INVAL, f"xa_commit takes TMNOFLAGS or TMONEPHASE, not {flags:#x}")
        with _translated(), self._store.guard, self._turn(xid):
            branch = self._branches.get(xid)
            if branch is not None:
                call = Call.COMMIT_ONE_PHASE if flags == TMONEPHASE else Call.COMMIT
                next_state(branch.state, call)
            if flags == TMONEPHASE:
                return self._commit_one_phase(xid, branch)
            with _translated(XA_RETRY):
                told = xid in self._told
                try:
                    two_phase.commit_prepared(self._engine, xid, self._store.deadline(), vote_known=told)
                except two_phase.UnknownBranch as error:
                    self._answer_decided(xid)  # perhaps an administrator did
                    raise self._nota(error) from None
            self._forget_here(xid)
        return XA_OK

    def _commit_one_phase(self, xid: Xid, branch: _Branch | None) -> int:
        if branch is None:
            raise self._not_here(xid)
        del self._branches[xid]
        with _translated(XA_RBROLLBACK):
            branch.transaction.commit()
        return XA_OK

    def rollback(self, xid: Xid) -> int:
        """Undo a branch, prepared or not."""
        xid = _check_xid(xid)
        with _translated(XA_RETRY), self._store.guard, self._turn(xid):
            branch = self._branches.get(xid)
            if branch is not None:
                next_state(branch.state, Call.ROLLBACK)
                if branch.state is not BranchState.PREPARED:
                    del self._branches[xid]
                    if branch.transaction.is_active:
                        branch.transaction.rollback("its transaction manager rolled it back")
                    return XA_OK
            self._answer_decided(xid)
            try:
                two_phase.rollback_prepared(self._store, xid, self._store.deadline())
            except two_phase.UnknownBranch as error:
                raise self._nota(error) from None
            self._forget_here(xid)
        return XA_OK

    def recover(self, flags: int = TMSTARTRSCAN | TMENDRSCAN) -> list[Xid]:
        """The branches in doubt: prepared, durable, undecided, and no live process's own business.

        TMSTARTRSCAN begins a scan (the whole list comes at once), TMENDRSCAN ends it; neither goes on with one.
        """
        if flags & ~(TMSTARTRSCAN | TMENDRSCAN):
            raise XAError(XAER_INVAL, f"xa_recover takes TMSTARTRSCAN and TMENDRSCAN, not {flags:#x}")
        with self._scanning, _translated(), self._store.guard:
            if flags & TMSTARTRSCAN:
                told = set(self._told)
                self._scan = resolution.in_doubt(self._store, self._store.deadline(), known_votes=told)
            elif self._scan is None:
                raise XAError(XAER_INVAL, "no scan is open: begin one with TMSTARTRSCAN")
            found, self._scan = self._scan, [] if not flags & TMENDRSCAN else None
            return found

    # -- decisions of an administrator ------------------------------------------------------------------------------

    def decide_heuristically(self, xid: Xid, *, commit: bool) -> None:
        """Decide a branch as an administrator, in the place of its coordinator, which is told when it asks, until
        ``forget``."""
        xid = _check_xid(xid)
        with _translated(XA_RETRY), self._store.guard, self._turn(xid):
            self._answer_decided(xid)
            try:
                resolution.decide_heuristically(self._engine, xid, self._store.deadline(), commit=commit)
            except two_phase.UnknownBranch as error:
                raise self._nota(error) from None
            self._forget_here(xid)

    def forget(self, xid: Xid) -> int:
        """The coordinator knows about the heuristic decision; XAER_NOTA if there was none."""
        xid = _check_xid(xid)
        with _translated(), self._store.guard, self._turn(xid):
            if not resolution.forget(self._store, xid, self._store.deadline()):
                raise XAError(XAER_NOTA, f"no heuristic decision about {xid} is recorded")
        return XA_OK

    def _answer_decided(self, xid: Xid) -> None:
        outcome = heuristics.heuristic_outcome(self._store, xid)
        if outcome is not None:
            code = XA_HEURCOM if outcome == heuristics.COMMITTED else XA_HEURRB
            raise XAError(code, f"an administrator decided about {xid}: {outcome}; acknowledge it with xa_forget")

    def _turn(self, xid: Xid) -> "_Turn":
        return _Turn(self._busy, self._idle, xid)

    # -- small things -----------------------------------------------------------------------------------------------

    def _known(self, xid: Xid) -> _Branch:
        branch = self._branches.get(xid)
        if branch is None:
            raise self._not_here(xid)
        return branch

    def _not_here(self, xid: Xid) -> XAError:
        """A branch that is not prepared belongs to one process."""
        if two_phase.has_owner(self._store.shared.xids, xid):
            return XAError(XAER_PROTO, f"the branch {xid} belongs to another process until it is prepared")
        if self._is_prepared(xid):
            return XAError(XAER_PROTO, f"the branch {xid} is prepared: commit it or roll it back")
        return XAError(XAER_NOTA, f"there is no branch {xid}")

    def _nota(self, error: two_phase.UnknownBranch) -> XAError:
        self._forget_here(error.xid)
        return XAError(XAER_NOTA, str(error))

    def _is_prepared(self, xid: Xid) -> bool:
        return two_phase.is_prepared(self._store, xid)

    def _forget_here(self, xid: Xid) -> None:
        self._branches.pop(xid, None)
        self._told.discard(xid)


def _check_xid(xid: Xid) -> Xid:
    try:
        return Xid.checked(*xid)
    except (TypeError, ValueError) as error:
        raise XAError(XAER_INVAL, str(error)) from None


class _Turn:
    """The calls about one branch come one after the other; those about others go on meanwhile, also during a flush."""

    def __init__(self, busy: set[Xid], idle: threading.Condition, xid: Xid) -> None:
        self._busy = busy
        self._idle = idle
        self._xid = xid

    def __enter__(self) -> None:
        with self._idle:
            while self._xid in self._busy:
                self._idle.wait()
            self._busy.add(self._xid)

    def __exit__(self, *_: object) -> None:
        with self._idle:
            self._busy.remove(self._xid)
            self._idle.notify_all()


class _translated:
    """Our errors as X/Open's. ``failure``: what it means here that the disk failed. XA_RBROLLBACK where the branch ends
    by it; XA_RETRY where the branch is prepared: XAER_RMERR would tell the coordinator that it was rolled back."""

    def __init__(self, failure: int = XAER_RMERR) -> None:
        self.failure = failure

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None and isinstance(error, SpoolError | OSError):
            raise XAError(self._code(error), str(error)) from error

    def _code(self, error: BaseException) -> int:
        if isinstance(error, NotOpen | SpaceStopped):
            return XAER_RMFAIL
        if self.failure == XA_RETRY:
            return XA_RETRY
        if isinstance(error, CommitUnknown):
            return XAER_RMFAIL
        if isinstance(error, TransactionTimeout | WaitExpired):
            return XA_RBTIMEOUT
        if isinstance(error, TransactionRolledBack):
            return XA_RBROLLBACK
        if isinstance(error, OSError):
            return self.failure
        return XA_RBPROTO if isinstance(error, SpoolError) and error.diagnostic == "QMEPROTO" else XAER_RMERR
