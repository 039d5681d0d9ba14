"""The consumer of a queue: it claims messages, and keeps each claim until Dramatiq acknowledges or rejects the message.

The claims end with the process, so another worker gets the messages of a dead worker at once.
"""

import logging
from collections.abc import Iterable
from concurrent.futures import Future
from multiprocessing.connection import wait

from dramatiq import Message
from dramatiq.broker import Consumer, MessageProxy
from dramatiq.errors import DecodeError

import spool

log = logging.getLogger("dramatiq_xaspool")

_FOREIGN_SECONDS = 60.0  # the delay of a message of another framework, in a queue without an error queue


class Delivery(MessageProxy):
    """A message of Dramatiq, and the claimed message of the space."""

    def __init__(self, claims: spool.Claims, claimed: spool.Message) -> None:
        super().__init__(Message.decode(claimed.body))
        self.claims, self.claimed = claims, claimed


class XaspoolConsumer(Consumer):
    """Takes the messages of one queue for the threads of a worker.

    Dramatiq calls ``ack`` and ``nack`` in the threads that run actors, and the other methods in the consumer's thread.

    Args:
        prefetch: how many messages may be claimed at the same time.
        timeout: the longest wait in ``__next__``, in seconds.
    """

    def __init__(self, space: spool.Space, queue: str, prefetch: int, timeout: float) -> None:
        self._queue, self._prefetch, self._timeout = queue, prefetch, timeout
        self._claims, self._arrivals = space.claims(), space.arrivals([queue])

    def __next__(self) -> Delivery | None:
        delivery = self._take()
        if delivery is None and wait([self._arrivals.fileno()], self._timeout):
            self._arrivals.ready()
            delivery = self._take()
        return delivery

    def _take(self) -> Delivery | None:
        while self._claims.held < self._prefetch and (taken := self._claims.take(self._queue)):
            try:
                return Delivery(self._claims, taken[0])
            except DecodeError as error:
                advice = f"another framework uses the queue {self._queue}: give each framework separate queues"
                reason = f"not a message of Dramatiq, so {advice} ({type(error.error).__name__}: {error.error})"
                log.error("message %s of queue %s: %s", taken[0].id, self._queue, reason)
                self._claims.reject(taken, reason, delay=_FOREIGN_SECONDS).result()
        return None

    # Dramatiq passes the messages that __next__ returned.

    def ack(self, message: Delivery) -> None:  # type: ignore[override]
        """Remove a message whose actor has ended. The removal is durable when this call returns."""
        self._end(message, self._claims.remove([message.claimed]))

    def nack(self, message: Delivery) -> None:  # type: ignore[override]
        """Move a failed message to the dead-letter queue, with the exception as the reason."""
        error = message._exception
        reason = "the message failed" if error is None else f"{type(error).__name__}: {error}"
        self._end(message, self._claims.reject([message.claimed], reason))

    def _end(self, message: Delivery, commit: "Future[None]") -> None:
        try:
            commit.result()
        except spool.SpoolError:
            self._claims.release([message.claimed])
            raise
        finally:
            self._arrivals.wake()  # the next message can be claimed

    def requeue(self, messages: Iterable[Delivery]) -> None:  # type: ignore[override]
        """Return messages that no actor has begun to their places in the queue."""
        self._claims.release(message.claimed for message in messages)

    def close(self) -> None:
        """Return all other claimed messages to their places in the queue."""
        self._arrivals.close()
        self._claims.close()
