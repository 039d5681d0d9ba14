"""One attempt for a message, as a pure state machine. Threads, asyncio tasks and Spark tasks all use it.

An attempt begins when a message is claimed and ends in *concluded*, *withdrawn* or *abandoned*. A driver
(``spool.workers.worker``, ``spool.aio.worker``, ``forwarder.routes.in_threads``, ``forwarder.task`` with
``forwarder.round``) turns each thing that happens into an ``Event``, and then acts according to the new state.

| state    | event                         | next      | the driver                                          |
|----------|-------------------------------|-----------|-----------------------------------------------------|
| claimed  | BEGIN                         | calling   | records the call, then makes the call               |
| claimed  | STOP, END, NO_ROOM            | abandoned | releases the message; pauses if there is no room    |
| calling  | ANSWER: a value, an exception | answered  | commits the effects of the outcome                  |
| calling  | UNREACHED                     | abandoned | releases the message and pauses                     |
| calling  | STOP                          | calling   | waits for the call, within its time limit           |
| calling  | LATE, END                     | withdrawn | counts an attempt; ignores the result, if one comes |
| answered | COMMITTED                     | concluded | goes on with the next message                       |
| answered | NO_ROOM                       | abandoned | releases the message and pauses                     |
| answered | LOCKED                        | answered  | attempts the commit again                           |
| answered | NO_LOCK                       | abandoned | releases the message                                |
| answered | ROLLED_BACK                   | withdrawn | counts an attempt                                   |
| answered | STOP, END, LATE               | answered  | waits for the commit                                |
| the ends | any                           | the same  | does nothing                                        |

Effect on the message: *concluded* is one commit with the effects of the outcome; *withdrawn* counts an attempt;
*abandoned* counts none. A message that has failed for good moves to its error queue even if that queue is full.
"""

import enum
from collections.abc import Collection

from spool.workers.outcome import Outcome, Retried


class State(enum.Enum):
    """The state of an attempt. ``is_end``: whether the state is final, so that no event changes the state."""

    CLAIMED = "claimed"
    CALLING = "calling"
    ANSWERED = "answered"
    CONCLUDED = "concluded"
    WITHDRAWN = "withdrawn"
    ABANDONED = "abandoned"

    @property
    def is_end(self) -> bool:
        return self in _ENDS


class Event(enum.Enum):
    """Something that happens to an attempt."""

    BEGIN = "the call begins"
    ANSWER = "the call has ended, with an outcome"
    UNREACHED = "the call has ended, and did not reach the service"
    STOP = "the driver stops: SIGTERM, the end of a pass, or a service that another call found unreachable"
    END = "the driver ends at once: a second signal, or a cancelled task"
    LATE = "the call has reached its time limit"
    NO_ROOM = "a queue has no room for a message that the outcome puts or moves there"
    LOCKED = "another process has held a lock of the space for too long, so the commit did not happen"
    NO_LOCK = "the same, and the driver stops"
    COMMITTED = "the effects of the outcome are committed"
    ROLLED_BACK = "the commit failed for another reason"


_ENDS = frozenset({State.CONCLUDED, State.WITHDRAWN, State.ABANDONED})

_NEXT = {
    (State.CLAIMED, Event.BEGIN): State.CALLING,
    (State.CLAIMED, Event.STOP): State.ABANDONED,
    (State.CLAIMED, Event.END): State.ABANDONED,
    (State.CLAIMED, Event.NO_ROOM): State.ABANDONED,
    (State.CALLING, Event.ANSWER): State.ANSWERED,
    (State.CALLING, Event.UNREACHED): State.ABANDONED,
    (State.CALLING, Event.STOP): State.CALLING,
    (State.CALLING, Event.LATE): State.WITHDRAWN,
    (State.CALLING, Event.END): State.WITHDRAWN,
    (State.ANSWERED, Event.COMMITTED): State.CONCLUDED,
    (State.ANSWERED, Event.NO_ROOM): State.ABANDONED,
    (State.ANSWERED, Event.LOCKED): State.ANSWERED,
    (State.ANSWERED, Event.NO_LOCK): State.ABANDONED,
    (State.ANSWERED, Event.ROLLED_BACK): State.WITHDRAWN,
    (State.ANSWERED, Event.STOP): State.ANSWERED,
    (State.ANSWERED, Event.END): State.ANSWERED,
    (State.ANSWERED, Event.LATE): State.ANSWERED,
}


def next_state(state: State, event: Event) -> State:
    """Return the state after an event. ValueError: the event cannot happen in this state, so the caller has a
    defect."""
    if state in _ENDS:
        return state
    found = _NEXT.get((state, event))
    if found is None:
        raise ValueError(f"an attempt that is {state.value} has no event {event.name}")
    return found


def end_of_call(outcome: Outcome) -> Event:
    """Return the event by which a call with this outcome ends."""
    return Event.UNREACHED if isinstance(outcome, Retried) and not outcome.counted else Event.ANSWER


def holds_up_its_message_alone(full: str | None, named: Collection[str | None], shared: Collection[str | None]) -> bool:
    """Return whether a full queue concerns only one message, so that the worker goes on with other messages.

    Args:
        full: the full queue; None if the limit of the whole space is reached.
        named: the reply queue and the failure queue of the message.
        shared: the queues that also take the answers to other messages.
    """
    return full is not None and full in named and full not in shared
