"""A branch of a resource manager: its states, and the rollback of a branch that its program has dropped.

The table of states follows the XA Specification's tables 6-2 and 6-4. A state combines the state of the branch
(S0..S5) with its associations (T0..T2). ACTIVE is S1 with at least one active association; SUSPENDED is S1 with
suspended associations only.

A program drops a branch when it drops the branch's resource manager, or the object of a ``with`` block that has not
ended. The housekeeper rolls dropped branches back. When a space is closed, each branch that is not prepared is logged.
"""

import enum
import logging
import warnings
from functools import partial

from spool.engine import CoordinatedTransaction, Engine
from spool.model.text import plural
from xa.codes import XAER_PROTO, XAError

log = logging.getLogger("spool")

_warn = warnings.warn  # (at its end, the interpreter may remove the module ``warnings`` before the last branch)


class BranchState(enum.Enum):
    """The state of a branch; X/Open's name of the state is in brackets."""

    __hash__ = object.__hash__  # (Enum's own hash is written in Python, and is slower)

    ACTIVE = "active (S1)"
    SUSPENDED = "suspended (S1, T2)"
    IDLE = "idle (S2)"
    PREPARED = "prepared (S3)"
    ROLLBACK_ONLY = "rollback-only (S4)"
    ENDED = "ended (S0)"


class XaCall(enum.Enum):
    """The calls of a transaction manager about one branch."""

    __hash__ = object.__hash__

    JOIN = "xa_start(TMJOIN)"
    RESUME = "xa_start(TMRESUME)"
    END_SUCCESS = "xa_end(TMSUCCESS)"
    END_FAIL = "xa_end(TMFAIL)"
    END_SUSPEND = "xa_end(TMSUSPEND)"
    PREPARE = "xa_prepare"
    COMMIT_ONE_PHASE = "xa_commit(TMONEPHASE)"
    COMMIT = "xa_commit"
    ROLLBACK = "xa_rollback"


ENDINGS = frozenset({XaCall.PREPARE, XaCall.COMMIT_ONE_PHASE, XaCall.COMMIT, XaCall.ROLLBACK})
"""The calls after which a branch takes no more work."""

TRANSITIONS: dict[tuple[BranchState, XaCall], BranchState] = {
    (BranchState.ACTIVE, XaCall.JOIN): BranchState.ACTIVE,
    (BranchState.ACTIVE, XaCall.END_SUCCESS): BranchState.IDLE,
    (BranchState.ACTIVE, XaCall.END_FAIL): BranchState.ROLLBACK_ONLY,
    (BranchState.ACTIVE, XaCall.END_SUSPEND): BranchState.SUSPENDED,
    (BranchState.SUSPENDED, XaCall.RESUME): BranchState.ACTIVE,
    (BranchState.SUSPENDED, XaCall.END_SUCCESS): BranchState.IDLE,
    (BranchState.SUSPENDED, XaCall.END_FAIL): BranchState.ROLLBACK_ONLY,
    (BranchState.IDLE, XaCall.JOIN): BranchState.ACTIVE,
    (BranchState.IDLE, XaCall.PREPARE): BranchState.PREPARED,
    (BranchState.IDLE, XaCall.COMMIT_ONE_PHASE): BranchState.ENDED,
    (BranchState.IDLE, XaCall.ROLLBACK): BranchState.ENDED,
    (BranchState.PREPARED, XaCall.COMMIT): BranchState.ENDED,
    (BranchState.PREPARED, XaCall.ROLLBACK): BranchState.ENDED,
    (BranchState.ROLLBACK_ONLY, XaCall.END_SUCCESS): BranchState.ROLLBACK_ONLY,
    (BranchState.ROLLBACK_ONLY, XaCall.END_FAIL): BranchState.ROLLBACK_ONLY,
    (BranchState.ROLLBACK_ONLY, XaCall.ROLLBACK): BranchState.ENDED,
}


def refusal(state: BranchState, call: XaCall) -> XAError:
    """Return the XAER_PROTO error for a call that does not fit the state. Its text names the calls that fit."""
    if call in ENDINGS and state in (BranchState.ACTIVE, BranchState.SUSPENDED):
        fitting = f"call xa_end({'TMFAIL' if call is XaCall.ROLLBACK else 'TMSUCCESS'}) first"
    else:
        fitting = f"call one of {', '.join(sorted(c.value for s, c in TRANSITIONS if s is state))}"
    return XAError(XAER_PROTO, f"{call.value} does not fit a branch that is {state.value}: {fitting}")


class Branch:
    """A branch that this process began: its transaction, its state, and how many callers are associated with it.

    Only a resource manager refers to this object; the callers' contexts refer to the transaction.
    """

    __slots__ = ("_at_close", "_engine", "associations", "state", "transaction")

    def __init__(self, engine: Engine, transaction: CoordinatedTransaction) -> None:
        self.transaction = transaction
        self.state = BranchState.ACTIVE
        self.associations = 1
        self._engine = engine
        self._at_close = partial(_name_at_close, engine.path, transaction)
        engine.at_close(self._at_close)

    def after(self, call: XaCall) -> BranchState:
        """Return the state after a successful call; raises XAError with XAER_PROTO if the call does not fit the state.

        If the call would end a branch with which a caller is still associated, the branch refuses puts and gets until
        ``end``. This happens when a program leaves its work without ``end``, usually because of an exception.
        """
        found = TRANSITIONS.get((self.state, call))
        if found is not None:
            return found
        if self.state is BranchState.ACTIVE and call in ENDINGS:
            self.transaction.barred = (
                f"the branch {self.transaction.xid} takes no work: {call.value} was called before xa_end and was "
                "refused; call end(xid, TMFAIL), then rollback(xid)"
            )
        raise refusal(self.state, call)

    def __del__(self) -> None:
        """Have the housekeeper roll back a dropped branch.

        Python can delete an object between any two instructions of any thread, so this method takes no lock and touches
        no file.
        """
        self._engine.not_at_close(self._at_close)
        if self._engine.closed or not self.transaction.is_active:
            return
        self._engine.roll_back_later(self.transaction, "its program has left it")
        _warn(
            f"{self._engine.path}: a program has left the branch {self.transaction.xid} without prepare or "
            "rollback, and the branch is rolled back within seconds: work in it inside `with rm.branch(xid):`",
            ResourceWarning,
            2,
        )


def _name_at_close(path: str, transaction: CoordinatedTransaction) -> None:
    if transaction.is_active:
        puts, gets = transaction.work()
        where, work = (path, transaction.xid), (plural(puts, "put"), plural(gets, "get"))
        log.warning(
            "%s was closed before the branch %s was prepared or rolled back: its %s and %s are undone", *where, *work
        )
