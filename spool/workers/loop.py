"""The one loop of workers and routes: a pure function tells a driver its next step. Only the driver does I/O.

| driver                             | claims                      | calls                    | waits for a call       |
|------------------------------------|-----------------------------|--------------------------|------------------------|
| ``spool.workers.worker.Worker``    | in each of its threads      | in the same thread       | for another thread     |
| ``spool.aio.worker.TaskWorker``    | in one task                 | in a task, or a thread   | for any task           |
| ``forwarder.routes.loop.RouteLoop``| rounds, one ahead at most   | in tasks of Spark        | for the earlier round  |
| ``forwarder.task.deliver``         | nothing: reads one message  | in threads of a process  | for any thread         |

``spool.workers.pauses.Breaker`` decides about pauses, and ``spool.workers.states`` about each attempt.
"""

import enum

from spool.workers.pauses import Breaker


class Step(enum.Enum):
    """The next step of a driver."""

    TAKE = "claim a message, and begin its call"
    CALL = "wait until a call has ended"
    PAUSE = "wait for the end of a pause"
    END = "claim no more messages; the calls under way go on to their ends"


def next_step(
    breaker: Breaker, *, is_stopping: bool, is_full: bool = False, is_empty: bool = False, is_busy: bool = False
) -> Step:
    """Return the next step. The driver waits only for a moment, because no signal and no ``stop`` ends its wait.

    Args:
        is_stopping: whether the driver was asked to stop.
        is_full: whether a call has to end before another message may be claimed.
        is_empty: whether the last claim found no message, and no attempt has ended since that claim began.
        is_busy: whether a message is claimed, or a call is under way, after which another claim may find a message.
    """
    if is_stopping or breaker.is_over:
        return Step.END
    if is_full:
        return Step.CALL
    if breaker.pause_left() > 0:
        return Step.PAUSE
    if is_empty and breaker.once:
        return Step.CALL if is_busy else Step.END
    return Step.TAKE
