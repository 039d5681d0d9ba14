"""One branch as a state machine: a pure table, after the XA Specification's tables 6-2 and 6-4.

The states are those of a branch (S0..S5) with the association (T0..T2) folded in as far as one branch sees it: ACTIVE
is S1 with at least one association, SUSPENDED is S1 with none but suspended ones.
"""

import enum

from xa.codes import XAER_PROTO, XAError


class State(enum.Enum):
    """Where a branch stands; the X/Open state is in brackets."""

    ACTIVE = "active (S1)"
    SUSPENDED = "suspended (S1, T2)"
    IDLE = "idle (S2)"
    PREPARED = "prepared (S3)"
    ROLLBACK_ONLY = "rollback-only (S4)"
    ENDED = "ended (S0)"


class Call(enum.Enum):
    """What a transaction manager asks for."""

    JOIN = "xa_start(TMJOIN)"
    RESUME = "xa_start(TMRESUME)"
    END_SUCCESS = "xa_end(TMSUCCESS)"
    END_FAIL = "xa_end(TMFAIL)"
    END_SUSPEND = "xa_end(TMSUSPEND)"
    PREPARE = "xa_prepare"
    COMMIT_ONE_PHASE = "xa_commit(TMONEPHASE)"
    COMMIT = "xa_commit"
    ROLLBACK = "xa_rollback"


_TABLE: dict[tuple[State, Call], State] = {
    (State.ACTIVE, Call.JOIN): State.ACTIVE,
    (State.ACTIVE, Call.END_SUCCESS): State.IDLE,
    (State.ACTIVE, Call.END_FAIL): State.ROLLBACK_ONLY,
    (State.ACTIVE, Call.END_SUSPEND): State.SUSPENDED,
    (State.SUSPENDED, Call.RESUME): State.ACTIVE,
    (State.SUSPENDED, Call.END_SUCCESS): State.IDLE,
    (State.SUSPENDED, Call.END_FAIL): State.ROLLBACK_ONLY,
    (State.IDLE, Call.JOIN): State.ACTIVE,
    (State.IDLE, Call.PREPARE): State.PREPARED,
    (State.IDLE, Call.COMMIT_ONE_PHASE): State.ENDED,
    (State.IDLE, Call.ROLLBACK): State.ENDED,
    (State.PREPARED, Call.COMMIT): State.ENDED,
    (State.PREPARED, Call.ROLLBACK): State.ENDED,
    (State.ROLLBACK_ONLY, Call.END_SUCCESS): State.ROLLBACK_ONLY,
    (State.ROLLBACK_ONLY, Call.END_FAIL): State.ROLLBACK_ONLY,
    (State.ROLLBACK_ONLY, Call.ROLLBACK): State.ENDED,
}


def after(state: State, call: Call) -> State:
    """The state after a call that succeeds; XAError with XAER_PROTO if the call does not fit the state."""
    found = _TABLE.get((state, call))
    if found is None:
        fitting = ", ".join(sorted(c.value for s, c in _TABLE if s is state)) or "nothing any more"
        raise XAError(XAER_PROTO, f"{call.value} does not fit a branch that is {state.value}; what fits: {fitting}")
    return found
