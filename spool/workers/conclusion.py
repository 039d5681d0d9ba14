"""The end of an attempt, and its meaning: one table for threads, asyncio tasks, and the rounds of a route.

| why the attempt ended                                  | event       | effect            | attempt | driver    |
|--------------------------------------------------------|-------------|-------------------|---------|-----------|
| the call returned a reply, or new messages             | COMMITTED   | DELIVERED         | none    | goes on   |
| the call raised ``Reject``                             | COMMITTED   | REJECTED; RETRIED | none    | goes on   |
| the call raised ``Retry``, or any other exception      | COMMITTED   | by ``retries``    | one     | may pause |
| the call reached its time limit                        | LATE        | by ``retries``    | one     | may pause |
| a second signal, or a cancelled task, ended the call   | END         | by ``retries``    | one     | ends      |
| the process of the call died                           | DIED        | by ``retries``    | a death | goes on   |
| the transaction of the call was lost                   | ROLLED_BACK | by ``retries``    | one     | goes on   |
| the call did not reach the service                     | UNREACHED   | KEPT              | none    | pauses    |
| a queue has no room for a new message                  | NO_ROOM     | KEPT              | none    | pauses    |
| only this message names the full queue                 | NO_ROOM     | KEPT              | none    | passes it |
| a lock of the space did not become free for the commit | NO_LOCK     | KEPT              | none    | pauses    |
| the driver stopped before the call                     | STOP        | none              | none    | ends      |
| the body of the message is damaged                     | DAMAGED     | QUARANTINED       | none    | goes on   |

By ``retries``: the message is RETRIED, DEAD_LETTERED or DROPPED, as the options of its queue say. A driver may pause
after several failures: see ``spool.workers.pauses``. An error of the space, e.g. a full disk, ends the driver.

A framework that holds messages as ``spool.Claims`` makes the same choices: ``remove`` for DELIVERED, ``fail`` for a
counted attempt, ``reject`` for REJECTED, and ``release`` for KEPT.
"""

from collections.abc import Collection
from typing import NamedTuple

from spool.errors import Full
from spool.model.settings import QueueConfig
from spool.model.text import one_line
from spool.workers.effects import Effect
from spool.workers.states import Event


class Conclusion(NamedTuple):
    """The end of an attempt.

    reason: why the attempt failed or was abandoned; otherwise a note of the function; often "".
    pause: why the worker pauses; "" if it goes on.
    full: the full queue and its limit, in words; "" if every queue had room.
    delay: the shortest pause in seconds, if the service asked for a pause.
    failed: whether the attempt failed, and the failure was not final.
    event: the event that ended the attempt.
    """

    effect: Effect
    reason: str
    pause: str = ""
    full: str = ""
    delay: float | None = None
    failed: bool = False
    event: Event = Event.COMMITTED

    @property
    def waits(self) -> bool:
        """Return whether only this message waits, because the full queue concerns no other message."""
        return self.effect is Effect.KEPT and not self.pause


_PAUSES = {Event.UNREACHED: "the service was not reached ({})", Event.NO_ROOM: "there is no room ({})"}


def kept(event: Event, reason: str, delay: float | None = None, *, alone: bool = False) -> Conclusion:
    """Return the conclusion of an attempt that does not count, so that the message remains in its queue.

    Args:
        delay: the shortest pause in seconds, if the service asked for a pause.
        alone: whether the reason concerns only this message.
    """
    pause = _PAUSES.get(event, "{}").format(reason)
    is_full = event is Event.NO_ROOM
    return Conclusion(
        Effect.KEPT, pause if is_full else reason, "" if alone else pause, reason if is_full else "", delay, event=event
    )


def without_room(
    full: Full, config: QueueConfig, named: Collection[str | None], into: Collection[str], *, replies: bool
) -> Conclusion:
    """Return the conclusion of an attempt whose outcome finds no room in a queue.

    If the outcomes of other messages put nothing into the full queue, only this message waits.

    Args:
        config: the options of the message's queue.
        named: the reply queue and the failure queue of the message; empty for several messages.
        into, replies: as in ``Handler``.
    """
    shared = {config.failure_queue, *into, *([config.reply_queue] if replies else [])}
    alone = full.queue is not None and full.queue in named and full.queue not in shared
    return kept(Event.NO_ROOM, one_line(full), alone=alone)
