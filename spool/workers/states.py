"""One attempt for a message, as a pure state machine. Threads, asyncio tasks and Spark tasks all use it.

An attempt begins when a message is claimed and ends in *concluded*, *withdrawn* or *abandoned*. A driver
(``spool.workers.worker``, ``spool.aio.task_worker``, ``forwarder.routes.in_threads``, ``forwarder.task`` with
``forwarder.round``) turns each thing that happens into an ``Event``, and then acts according to the new state.

| state    | event                         | next      | the driver                                          |
|----------|-------------------------------|-----------|-----------------------------------------------------|
| claimed  | BEGIN                         | calling   | records the call, then makes the call               |
| claimed  | STOP, END, NO_ROOM, DAMAGED   | abandoned | releases the message; pauses if there is no room    |
| calling  | ANSWER: a value, an exception | answered  | commits the effects of the outcome                  |
| calling  | UNREACHED                     | abandoned | releases the message and pauses                     |
| calling  | STOP                          | calling   | waits for the call, within its time limit           |
| calling  | LATE, END, DIED               | withdrawn | counts an attempt; ignores the result, if one comes |
| answered | COMMITTED                     | concluded | goes on with the next message                       |
| answered | NO_ROOM                       | abandoned | releases the message and pauses                     |
| answered | LOCKED                        | answered  | attempts the commit again                           |
| answered | NO_LOCK                       | abandoned | releases the message                                |
| answered | ROLLED_BACK                   | withdrawn | counts an attempt                                   |
| answered | STOP, END, LATE               | answered  | waits for the commit                                |
| the ends | any                           | the same  | does nothing                                        |

Effect on the message: *concluded* is one commit with the effects of the outcome; *withdrawn* counts an attempt;
*abandoned* counts none. ``spool.workers.conclusion`` has the meaning of each end. A message that has failed for good
moves to its error queue even if that queue is full.
"""

import enum

from spool.workers.outcome import Outcome, Retried


class State(enum.Enum):
    """The state of an attempt."""

    __hash__ = object.__hash__  # (the hash of ``Enum`` is a Python function)

    CLAIMED = "claimed"
    CALLING = "calling"
    ANSWERED = "answered"
    CONCLUDED = "concluded"
    WITHDRAWN = "withdrawn"
    ABANDONED = "abandoned"


class Event(enum.Enum):
    """Something that happens to an attempt."""

    __hash__ = object.__hash__

    BEGIN = "the call begins"
    ANSWER = "the call has ended, with an outcome"
    UNREACHED = "the call has ended, and did not reach the service"
    STOP = "the driver stops: SIGTERM, the end of a pass, or a service that another call found unreachable"
    END = "the driver ends at once: a second signal, or a cancelled task"
    LATE = "the call has reached its time limit"
    DIED = "the process of the call has died"
    DAMAGED = "the body of the message is damaged"
    NO_ROOM = "a queue has no room for a message that the outcome puts or moves there"
    LOCKED = "another process has held a lock of the space for too long, so the commit did not happen"
    NO_LOCK = "the same, and the driver stops"
    COMMITTED = "the effects of the outcome are committed"
    ROLLED_BACK = "the commit failed for another reason"


ENDS = frozenset({State.CONCLUDED, State.WITHDRAWN, State.ABANDONED})
"""The final states: no event changes them."""

_NEXT = {
    (before, event): after
    for before, after, events in (
        (State.CLAIMED, State.CALLING, [Event.BEGIN]),
        (State.CLAIMED, State.ABANDONED, [Event.STOP, Event.END, Event.NO_ROOM, Event.DAMAGED]),
        (State.CALLING, State.ANSWERED, [Event.ANSWER]),
        (State.CALLING, State.ABANDONED, [Event.UNREACHED]),
        (State.CALLING, State.CALLING, [Event.STOP]),
        (State.CALLING, State.WITHDRAWN, [Event.LATE, Event.END, Event.DIED]),
        (State.ANSWERED, State.CONCLUDED, [Event.COMMITTED]),
        (State.ANSWERED, State.ABANDONED, [Event.NO_ROOM, Event.NO_LOCK]),
        (State.ANSWERED, State.ANSWERED, [Event.LOCKED, Event.STOP, Event.END, Event.LATE]),
        (State.ANSWERED, State.WITHDRAWN, [Event.ROLLED_BACK]),
    )
    for event in events
}


def next_state(state: State, event: Event) -> State:
    """Return the state after an event. ValueError: the event cannot happen in this state, so the caller has a
    defect."""
    if state in ENDS:
        return state
    if (found := _NEXT.get((state, event))) is None:
        raise ValueError(f"an attempt that is {state.value} has no event {event.name}")
    return found


def end_of_call(outcome: Outcome) -> Event:
    """Return the event by which a call with this outcome ends."""
    return Event.UNREACHED if isinstance(outcome, Retried) and not outcome.counted else Event.ANSWER
