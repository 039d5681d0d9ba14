"""One branch as a state machine: a pure table, after the XA Specification's tables 6-2 and 6-4.

A state combines the state of the branch (S0..S5) with its associations (T0..T2). ACTIVE is S1 with at least one active
association; SUSPENDED is S1 with suspended associations only.
"""

import enum

from xa.codes import XAER_PROTO, XAError


class BranchState(enum.Enum):
    """The state of a branch; X/Open's name of the state is in brackets."""

    __hash__ = object.__hash__  # (Enum's own hash is written in Python, and slower)

    ACTIVE = "active (S1)"
    SUSPENDED = "suspended (S1, T2)"
    IDLE = "idle (S2)"
    PREPARED = "prepared (S3)"
    ROLLBACK_ONLY = "rollback-only (S4)"
    ENDED = "ended (S0)"


class Call(enum.Enum):
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


ENDINGS = frozenset({Call.PREPARE, Call.COMMIT_ONE_PHASE, Call.COMMIT, Call.ROLLBACK})
"""The calls after which a branch takes no more work."""

TRANSITIONS: dict[tuple[BranchState, Call], BranchState] = {
    (BranchState.ACTIVE, Call.JOIN): BranchState.ACTIVE,
    (BranchState.ACTIVE, Call.END_SUCCESS): BranchState.IDLE,
    (BranchState.ACTIVE, Call.END_FAIL): BranchState.ROLLBACK_ONLY,
    (BranchState.ACTIVE, Call.END_SUSPEND): BranchState.SUSPENDED,
    (BranchState.SUSPENDED, Call.RESUME): BranchState.ACTIVE,
    (BranchState.SUSPENDED, Call.END_SUCCESS): BranchState.IDLE,
    (BranchState.SUSPENDED, Call.END_FAIL): BranchState.ROLLBACK_ONLY,
    (BranchState.IDLE, Call.JOIN): BranchState.ACTIVE,
    (BranchState.IDLE, Call.PREPARE): BranchState.PREPARED,
    (BranchState.IDLE, Call.COMMIT_ONE_PHASE): BranchState.ENDED,
    (BranchState.IDLE, Call.ROLLBACK): BranchState.ENDED,
    (BranchState.PREPARED, Call.COMMIT): BranchState.ENDED,
    (BranchState.PREPARED, Call.ROLLBACK): BranchState.ENDED,
    (BranchState.ROLLBACK_ONLY, Call.END_SUCCESS): BranchState.ROLLBACK_ONLY,
    (BranchState.ROLLBACK_ONLY, Call.END_FAIL): BranchState.ROLLBACK_ONLY,
    (BranchState.ROLLBACK_ONLY, Call.ROLLBACK): BranchState.ENDED,
}


def refusal(state: BranchState, call: Call) -> XAError:
    """Return the XAER_PROTO error for a call that does not fit the state. Its text names the calls that fit."""
    if call in ENDINGS and state in (BranchState.ACTIVE, BranchState.SUSPENDED):
        fitting = f"call xa_end({'TMFAIL' if call is Call.ROLLBACK else 'TMSUCCESS'}) first"
    else:
        fitting = f"call one of {', '.join(sorted(c.value for s, c in TRANSITIONS if s is state))}"
    return XAError(XAER_PROTO, f"{call.value} does not fit a branch that is {state.value}: {fitting}")
