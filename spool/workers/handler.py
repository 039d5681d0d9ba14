"""The handler of a worker: the call for each message, and the hooks of the attempts."""

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any

from spool.errors import Argument, InvalidArgument
from spool.model.message import Message
from spool.model.position import Position
from spool.model.text import shown
from spool.workers.conclusion import Conclusion
from spool.workers.effects import OnFailure
from spool.workers.functions import takes_a_message
from spool.workers.outcome import Retried

log = logging.getLogger("spool")

WORKER, FORWARDER = "worker", "forwarder"
"""The kinds of programs that the metrics name."""


class Handler:
    """Handles the messages of a worker: calls a function with each message, and logs pauses.

    A subclass replaces methods and attributes. A worker calls ``ended`` and ``paused`` one at a time.

    on_failure: the effect of a rejection, as in ``OutcomePolicy``.
    into: queues that every outcome may put messages into. While one of these queues is full, no call begins.
    replies: whether an outcome may put a reply into the reply queue of its message.
    passed: the positions of messages that a run with ``once`` does not claim.
    program: the kind of program that the metrics name, "worker" or "forwarder". A forwarder reports its routes itself.

    Raises:
        InvalidArgument: the function cannot be called with a message.
    """

    on_failure: OnFailure = "reject"
    into: Sequence[str] = ()
    replies: bool = True
    passed: Collection[tuple[int, int]] = ()
    program: str = WORKER

    def __init__(self, function: Callable[[Message], Any]) -> None:
        if not callable(function):
            raise InvalidArgument(Argument("function"), f" is a callable that takes a message, not {shown(function)}")
        if not takes_a_message(function):
            raise InvalidArgument(
                Argument("function"), f" {shown(function)} cannot be called with a message alone: give it one parameter"
            )
        self._function = function

    def handle(self, message: Message, unreadable: str) -> Any:
        """Return the reply, or an outcome. The worker turns an exception into an outcome.

        Args:
            unreadable: why no codec can decode the body; the body is then the stored bytes. "" if the body is decoded.
        """
        return Retried(unreadable) if unreadable else self._function(message)

    def ended(self, queue: str, position: Position, conclusion: Conclusion, seconds: float) -> None:
        """The worker calls this method at the end of each attempt.

        Args:
            conclusion: the ``effect`` on the message, and the ``reason`` of a failure.
            seconds: the seconds since the claim.
        """

    def paused(self, queue: str, reason: str, seconds: float) -> None:
        """Log a pause that begins. ``seconds`` is 0 if the run ends instead, because of ``once``."""
        if seconds:
            log.warning("queue %s: %s; next attempt in %g s", queue, reason, seconds)
        else:
            log.warning("queue %s: %s; the run ends", queue, reason)
