"""The one loop of workers and routes: a pure function tells a driver its next step. Only the driver does I/O.

| driver | claims | calls | waits for a call |
|---|---|---|---|
| ``spool.workers.worker.Worker`` | in each of its threads | in the same thread | of another thread |
| ``spool.aio.task_worker.TaskWorker`` | in one task | in a new task or thread | of any task |
| ``forwarder.routes.loop.RouteLoop`` | rounds, one ahead at most | in processes of Spark | of the earlier round |

A task of a round, ``forwarder.task.deliver``, claims nothing: it calls the service with the messages of its chunk. A
route without Spark is a ``Worker``. ``spool.workers.pauses.Breaker`` decides about pauses, ``spool.workers.states``
about each attempt, and ``spool.workers.conclusion`` has the meaning of each end.
"""

import enum

from spool.workers.pauses import Breaker


class DriverStep(enum.Enum):
    """The next step of a driver."""

    TAKE = "claim a message, and begin its call"
    CALL = "wait until a call has ended"
    PAUSE = "wait for the end of a pause"
    END = "claim no more messages; the calls under way go on to their ends"


def next_step(
    breaker: Breaker, *, is_stopping: bool, is_full: bool = False, is_empty: bool = False, is_busy: bool = False
) -> DriverStep:
    """Return the next step. The driver waits only for a moment, because no signal and no ``stop`` ends its wait.

    Args:
        is_stopping: whether the driver was asked to stop.
        is_full: whether a call has to end before another message may be claimed.
        is_empty: whether the last claim found no message, and no attempt has ended since that claim began.
        is_busy: whether a message is claimed, or a call is under way, after which another claim may find a message.
    """
    if is_stopping or breaker.is_over:
        return DriverStep.END
    if is_full:
        return DriverStep.CALL
    if breaker.pause_left() > 0:
        return DriverStep.PAUSE
    if is_empty and breaker.once:
        return DriverStep.CALL if is_busy else DriverStep.END
    return DriverStep.TAKE
