"""The resource manager: a queue space under X/Open's names, for any transaction manager that uses XA.

``start`` begins a branch; puts and gets of the same thread or task join the branch until ``end``. ``prepare`` votes.
Afterwards, any process can decide by ``commit`` or ``rollback``. If a process commits a branch of another process, it
first makes the branch's bytes durable again.
"""

import logging
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn, TypeVar, cast
from weakref import finalize

from spool import Space
from spool.engine import BranchExists, CoordinatedTransaction, Joinable, UnknownBranch, WaitExpired, deferred
from spool.errors import CommitUnknown, NotOpen, SpaceStopped, SpoolError, TransactionRolledBack, TransactionTimeout
from spool.model.checks import check_time_limit
from spool.model.xid import FORMATS_BOUND_TO_A_LIFE, Xid
from xa.branch import Branch, BranchState, XaCall
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
)

_END_CALLS = {TMSUCCESS: XaCall.END_SUCCESS, TMFAIL: XaCall.END_FAIL, TMSUSPEND: XaCall.END_SUSPEND}

log = logging.getLogger("spool")

F = TypeVar("F", bound=Callable[..., Any])


def _about_a_branch(failure: int = XAER_RMERR) -> Callable[[F], F]:
    """Decorate a call about one branch: check its xid, and raise our errors with X/Open's codes.

    Calls about one branch are serialised. Calls about different branches run side by side; votes and commits that come
    during a flush share the next flush.

    ``failure``: the code for a failure of the disk. XA_RBROLLBACK if the failure ends the branch; XA_RETRY if the
    branch is prepared, because XAER_RMERR would tell the coordinator that the branch was rolled back.
    """

    def around(method: F) -> F:
        @wraps(method)
        def call(self: "ResourceManager", xid: Xid, *arguments: Any, **options: Any) -> Any:
            try:
                if type(xid) is not Xid or xid not in self._branches:  # (a known xid was checked earlier)
                    xid = Xid.checked(*xid)
            except (TypeError, ValueError) as error:
                raise XAError(XAER_INVAL, str(error)) from None
            turn = threading.Lock()
            try:
                with self._engine.call, turn:
                    while (earlier := self._turns.setdefault(xid, turn)) is not turn:
                        with earlier:  # the earlier call holds this lock until its end
                            if self._turns.get(xid) is earlier:  # an exception kept that call from removing its lock
                                del self._turns[xid]
                    try:
                        return method(self, xid, *arguments, **options)
                    finally:
                        del self._turns[xid]
            except (SpoolError, OSError) as error:
                if isinstance(error, UnknownBranch):
                    self._branches.pop(xid, None)
                raise _translated(error, failure) from error

        return cast(F, call)

    return around


def _translated(error: SpoolError | OSError, failure: int) -> XAError:
    """Return the XAError that the caller gets for an error of ours. ``failure``: see ``_about_a_branch``."""
    if isinstance(error, UnknownBranch):
        code = XAER_NOTA
    elif isinstance(error, NotOpen | SpaceStopped) or (failure != XA_RETRY and isinstance(error, CommitUnknown)):
        code = XAER_RMFAIL
    elif failure == XA_RETRY:
        code = XA_RETRY
    elif isinstance(error, TransactionTimeout | WaitExpired):
        code = XA_RBTIMEOUT
    elif isinstance(error, TransactionRolledBack):
        code = XA_RBROLLBACK
    elif isinstance(error, OSError):
        code = failure
    else:
        refused = XA_RBROLLBACK if failure == XA_RBROLLBACK else XAER_RMERR
        code = XA_RBPROTO if error.diagnostic == "QMEPROTO" else refused
    return XAError(code, str(error))


class ResourceManager:
    """X/Open's xa_* calls on one open space. Calls may come from many threads.

    ``timeout``: the seconds after which a branch that was not prepared is rolled back; None: never.
    """

    def __init__(self, space: Space, timeout: float | None = None) -> None:
        check_time_limit(timeout)
        self.space = space
        self._engine = space.engine
        self._timeout = timeout
        self._branches: dict[Xid, Branch] = {}
        self._scan: list[Xid] | None = None
        self._scanning = threading.RLock()
        self._turns: dict[Xid, threading.Lock] = {}  # one for each branch with a call in progress, held by that call

    # -- doing work -------------------------------------------------------------------------------------------------

    @_about_a_branch()
    def start(self, xid: Xid, flags: int = TMNOFLAGS) -> int:
        """Associate the caller with a new branch, or with an existing one (TMJOIN, TMRESUME).

        XAER_INVAL: the xid has one of the format ids of the space's own transactions, which end with their process.
        XAER_DUPID: the branch exists, here or in another process. XAER_OUTSIDE: the caller is in a transaction that
        is not under XA. XAER_PROTO: the caller is in a branch already, or the branch belongs to another process.
        """
        if flags not in (TMNOFLAGS, TMJOIN, TMRESUME):
            raise _bad_flags("xa_start takes TMNOFLAGS, TMJOIN or TMRESUME", flags)
        if xid.format_id in FORMATS_BOUND_TO_A_LIFE:
            raise XAError(XAER_INVAL, f"the format id {xid.format_id} belongs to the space's own transactions")
        current = self._engine.joined()
        if current is not None:
            self._refuse_when_in(current)
        branch = self._branches.get(xid)
        if flags == TMNOFLAGS:
            if branch is not None:
                raise XAError(XAER_DUPID, f"there is a branch {xid} already: use TMJOIN, or another xid")
            try:
                branch = Branch(self._engine, self._engine.begin_branch(xid, self._timeout))
            except BranchExists as error:
                raise XAError(XAER_DUPID, str(error)) from None
            self._branches[xid] = branch
        elif branch is None:
            self._raise_not_here(xid)
        else:
            branch.state = branch.after(XaCall.JOIN if flags == TMJOIN else XaCall.RESUME)
            branch.associations += 1
        self._engine.join(branch.transaction)
        return XA_OK

    def _refuse_when_in(self, current: Joinable) -> None:
        for xid, branch in list(self._branches.items()):
            if branch.transaction is current and branch.associations:
                raise XAError(XAER_PROTO, f"the caller is in the branch {xid}: end it first")
        if isinstance(current, CoordinatedTransaction) and current.xid.format_id not in FORMATS_BOUND_TO_A_LIFE:
            if current.is_active:
                raise XAError(
                    XAER_PROTO,
                    f"the caller is in the branch {current.xid} of another ResourceManager: end it there first",
                )
        elif current.is_active:
            raise XAError(XAER_OUTSIDE, "the caller is in a transaction of its own: commit it or roll it back first")

    @_about_a_branch()
    def end(self, xid: Xid, flags: int = TMSUCCESS) -> int:
        """End the caller's work in the branch (TMSUCCESS), end and undo it (TMFAIL), or suspend it (TMSUSPEND)."""
        call = _END_CALLS.get(flags)
        if call is None:
            raise _bad_flags("xa_end takes TMSUCCESS, TMFAIL or TMSUSPEND", flags)
        branch = self._branches.get(xid) or self._raise_not_here(xid)
        if branch.associations > 1 and branch.state is BranchState.ACTIVE and call is XaCall.END_SUCCESS:
            branch.associations -= 1  # other callers are still associated
        else:
            branch.state = branch.after(call)
            branch.associations = max(0, branch.associations - 1)
        if call is XaCall.END_FAIL:
            branch.transaction.set_rollback_only("its transaction manager said TMFAIL")
        if branch.state is BranchState.ROLLBACK_ONLY:
            branch.transaction.barred = f"the branch {xid} is rollback-only: call end(xid, TMFAIL), then rollback(xid)"
        else:
            branch.transaction.barred = None
        if self._engine.joined() is branch.transaction:
            self._engine.join(None)
        return XA_OK

    def branch(self, xid: Xid) -> "_BranchBlock":
        """Return a ``with`` block for the work in a new branch: ``start`` on entering, ``end`` on leaving.

        If an exception leaves the block, the branch is ended with TMFAIL and rolled back. The caller's next puts and
        gets are then not part of the branch. The block may call ``end`` and ``prepare`` itself; a prepared branch waits
        for its coordinator's decision, even after an exception. Raises the errors of ``start`` and ``end``.
        """
        return _BranchBlock(self, xid)

    # -- deciding ---------------------------------------------------------------------------------------------------

    @_about_a_branch(XA_RBROLLBACK)
    def prepare(self, xid: Xid) -> int:
        """Phase one. XA_OK: the branch can commit, even after a power cut. XA_RDONLY: the empty branch has ended."""
        branch = self._branches.get(xid) or self._raise_not_here(xid)
        state = branch.after(XaCall.PREPARE)
        voted = False
        try:
            voted = branch.transaction.prepare()
        finally:
            if voted:
                branch.state = state
            else:
                self._forget_ended(xid, branch)
        return XA_OK if voted else XA_RDONLY

    @_about_a_branch(XA_RETRY)
    def commit(self, xid: Xid, flags: int = TMNOFLAGS) -> int:
        """Phase two, or both phases in one call (TMONEPHASE). XA_RETRY: the commit cannot finish now; call again."""
        if flags == TMONEPHASE:
            return self._commit_one_phase(xid)
        if flags != TMNOFLAGS:
            raise _bad_flags("xa_commit takes TMNOFLAGS or TMONEPHASE", flags)
        if (branch := self._branches.get(xid)) is not None:
            branch.after(XaCall.COMMIT)
        elif not self._engine.is_prepared(xid):  # (otherwise the commit would wait for the owner)
            self._refuse_if_owned(xid)
        try:
            self._engine.commit_branch(xid, vote_known=branch is not None)
        except UnknownBranch:
            self._answer_decided(xid)  # perhaps an administrator has decided
            raise
        self._branches.pop(xid, None)
        return XA_OK

    def _commit_one_phase(self, xid: Xid) -> int:
        try:
            branch = self._branches.get(xid) or self._raise_not_here(xid)
            branch.after(XaCall.COMMIT_ONE_PHASE)
            try:
                branch.transaction.commit()
            finally:
                self._forget_ended(xid, branch)
        except (SpoolError, OSError) as error:
            raise _translated(error, XA_RBROLLBACK) from error
        return XA_OK

    @_about_a_branch(XA_RETRY)
    def rollback(self, xid: Xid) -> int:
        """Undo a branch, prepared or not. Raises XAER_PROTO while a caller is in the branch: call ``end`` first."""
        if (branch := self._branches.get(xid)) is not None:
            branch.after(XaCall.ROLLBACK)
            if branch.state is not BranchState.PREPARED:
                try:
                    if branch.transaction.is_active:
                        branch.transaction.rollback("its transaction manager rolled it back")
                finally:
                    self._forget_ended(xid, branch)
                return XA_OK
        self._answer_decided(xid)
        self._engine.roll_back_branch(xid)
        self._branches.pop(xid, None)
        return XA_OK

    def _forget_ended(self, xid: Xid, branch: Branch) -> None:
        """Forget a branch if its transaction has ended. If an exception prevents this, ``rollback`` forgets it."""
        if not branch.transaction.is_active:
            self._branches.pop(xid, None)  # (a finalizer of its block may have removed it)

    def recover(self, flags: int = TMSTARTRSCAN | TMENDRSCAN) -> list[Xid]:
        """Return the branches that wait for their coordinators, like xa_recover of the XA Specification.

        The list has the prepared, durable, undecided branches of foreign coordinators. It also has the branches that an
        administrator decided and that no coordinator has forgotten: ``commit`` or ``rollback`` raises the decision.

        TMSTARTRSCAN begins a scan and returns the whole list; TMENDRSCAN ends a scan; without a flag a scan continues.
        """
        if flags not in (TMNOFLAGS, TMSTARTRSCAN, TMENDRSCAN, TMSTARTRSCAN | TMENDRSCAN):
            raise _bad_flags("xa_recover takes TMSTARTRSCAN and TMENDRSCAN", flags)
        try:
            with self._scanning, self._engine.call:
                if flags & TMSTARTRSCAN:
                    known = {xid for xid, one in list(self._branches.items()) if one.state is BranchState.PREPARED}
                    self._scan = self._engine.in_doubt(known_votes=known)
                    self._scan += set(map(Xid.parse, self._engine.decisions())).difference(self._scan)
                elif self._scan is None:
                    raise XAError(XAER_INVAL, "no scan is open: begin one with TMSTARTRSCAN")
                found, self._scan = self._scan, [] if not flags & TMENDRSCAN else None
                return found
        except (SpoolError, OSError) as error:
            raise _translated(error, XAER_RMERR) from error

    # -- decisions of an administrator ------------------------------------------------------------------------------

    @_about_a_branch(XA_RETRY)
    def decide_heuristically(self, xid: Xid, *, commit: bool) -> None:
        """Decide a branch as an administrator, in the place of its coordinator.

        The coordinator's calls raise this decision until ``forget``.
        """
        self._answer_decided(xid)
        self._engine.decide(xid, commit=commit)
        self._branches.pop(xid, None)

    @_about_a_branch()
    def forget(self, xid: Xid) -> int:
        """Forget a heuristic decision, which the coordinator now knows; raises XAER_NOTA if no decision exists."""
        if not self._engine.forget(xid):
            raise XAError(XAER_NOTA, f"no heuristic decision about {xid} is recorded")
        return XA_OK

    def _answer_decided(self, xid: Xid) -> None:
        decision = self._engine.decision(xid)
        if decision is not None:
            code = XA_HEURCOM if decision == "committed" else XA_HEURRB
            raise XAError(code, f"an administrator decided about {xid}: {decision}; acknowledge it with xa_forget")

    def _refuse_if_owned(self, xid: Xid) -> None:
        if (owner := self._engine.owner_of(xid)) is not None:
            named = "another ResourceManager of this process" if owner == "this process" else owner
            raise XAError(XAER_PROTO, f"the branch {xid} belongs to {named} until it is prepared")

    def _raise_not_here(self, xid: Xid) -> NoReturn:
        """Raise an error that says where the branch is. A branch belongs to one process until it is prepared."""
        self._refuse_if_owned(xid)
        if self._engine.is_prepared(xid):
            raise XAError(XAER_PROTO, f"the branch {xid} is prepared: commit it or roll it back")
        raise XAError(XAER_NOTA, f"there is no branch {xid}")


def _bad_flags(takes: str, flags: object) -> XAError:
    return XAError(XAER_INVAL, f"{takes}, not {f'{flags:#x}' if isinstance(flags, int) else flags}")


def _drop_unprepared(branches: dict[Xid, Branch], xid: Xid) -> None:
    if xid in branches and branches[xid].state is not BranchState.PREPARED:
        branches.pop(xid, None)


class _BranchBlock:
    """The work in a new branch, as a ``with`` statement: see ``ResourceManager.branch``."""

    def __init__(self, manager: ResourceManager, xid: Xid) -> None:
        self._manager = manager
        self._xid = xid
        self._begun = False

    def __enter__(self) -> None:
        with deferred(self._roll_back):
            self._manager.start(self._xid)
            self._begun = True
            # A signal just before ``__exit__`` can prevent that call: then the housekeeper rolls back the branch. After
            # ``__exit__`` no code runs when the block is freed: Python would ignore a handler's exception there.
            self._when_dropped = finalize(self, _drop_unprepared, self._manager._branches, self._xid)
            self._when_dropped.atexit = False

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        with deferred():
            if kind is not None:
                self._roll_back()
            elif self._state() is BranchState.ACTIVE:
                self._manager.end(self._xid, TMSUCCESS)
            self._begun = False
            self._when_dropped.detach()

    def _state(self) -> BranchState | None:
        """Return the state of the branch; None if the branch has ended."""
        branch = self._manager._branches.get(self._xid)
        return None if branch is None else branch.state

    def _roll_back(self) -> None:
        """End the caller's work with TMFAIL, and roll the branch back, unless it is prepared or has ended."""
        state = self._state() if self._begun else None
        if state in (None, BranchState.PREPARED) or self._manager._engine.closed:
            return
        try:
            if state is not BranchState.IDLE:
                self._manager.end(self._xid, TMFAIL)
            self._manager.rollback(self._xid)
        except XAError as failure:
            log.warning("a branch could not be rolled back after an exception: %s", failure)
