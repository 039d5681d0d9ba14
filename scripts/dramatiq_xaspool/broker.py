"""The broker: each queue of Dramatiq is a queue of the space, and each message is a message.

Its consumers claim messages, and keep each claim until Dramatiq acknowledges or rejects the message. The claims end
with the process, so another worker gets the messages of a dead worker at once.
"""

import logging
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from multiprocessing.connection import wait
from typing import Any

import dramatiq
from dramatiq.broker import Consumer, MessageProxy
from dramatiq.errors import ConnectionClosed, ConnectionFailed, QueueJoinTimeout, QueueNotFound
from dramatiq.middleware import Callbacks, GroupCallbacks, Pipelines, Retries, SkipMessage

import spool
from dramatiq_xaspool.limits import running
from dramatiq_xaspool.messages import Foreign, decode, pop_eta
from dramatiq_xaspool.names import one_line, queue_names, short_text, space_path

log = logging.getLogger("dramatiq_xaspool")

# The errors of a message whose claim has ended, e.g. because its consumer was closed, or the space was replaced.
_CLAIM_ENDED = (spool.BadMessageId, spool.NotOpen, spool.ProtocolError, spool.SpaceStopped)
_FOREIGN_SECONDS = 60.0  # the delay of a message of another framework, in a queue without an error queue


class XaspoolBroker(dramatiq.Broker):
    """A broker whose queues are in a space, which the first use creates.

    The space keeps delayed messages until their time. A message that fails for good moves to the dead-letter queue,
    e.g. default.XQ.

    Args:
        path: the directory of the space.
        middleware: the middleware of the broker; None for Dramatiq's default.
        retries: how often a message may return to its queue because a worker died while running it. The option is set
            when the broker creates a queue; ``spool-admin queue change`` changes it later.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, middleware: list[dramatiq.Middleware] | None = None, retries: int = 5
    ) -> None:
        super().__init__(middleware)
        self.path, self._retries = space_path(path), retries
        self.add_middleware(_CountedRuns())

    @property
    def space(self) -> spool.Space:
        """The open space of this process. A forked worker opens a separate one."""
        return spool.shared(self.path)

    def declare_queue(self, queue_name: str) -> None:
        """Make the name of a queue known. The first use creates the queue: no import of a module opens the space."""
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues[queue_name] = None
            self.emit_after("declare_queue", queue_name)

    def enqueue(self, message: Any, *, delay: int | None = None) -> Any:
        """Put a message durably, or raise ``spool.SpoolError``, e.g. ``spool.Full``. ``delay``: milliseconds, without a
        limit.

        The queue need not be declared, because its actors may be in other programs.
        """
        self.emit_before("enqueue", message, delay)
        # In a space, a higher priority is earlier; in Dramatiq, a lower one. An unknown actor has the middle one.
        priority = 50 - self.actors[message.actor_name].priority if message.actor_name in self.actors else 50
        self._space_with(message.queue_name).put(
            queue_names(message.queue_name)[0],
            message.encode(),
            priority=min(max(priority, 1), 100),
            delay=None if delay is None else max(delay, 0) / 1000,
            correlation_id=short_text(message.message_id),
            headers={"task": short_text(message.actor_name)},
        )
        self.emit_after("enqueue", message, delay)
        return message

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 5000) -> "XaspoolConsumer":
        """Return a consumer, which claims up to ``prefetch`` messages. ``timeout``: milliseconds of a wait.
        Raises QueueNotFound if the queue was not declared."""
        try:
            return XaspoolConsumer(self._declared(queue_name), queue_name, prefetch, timeout / 1000)
        except spool.SpaceStopped as error:
            raise ConnectionFailed(error) from error  # Dramatiq tries again

    def flush(self, queue_name: str) -> None:
        """Delete the messages of a queue, but not the messages that workers have claimed. Raises QueueNotFound."""
        self._declared(queue_name).purge(queue_names(queue_name)[0])

    def flush_all(self) -> None:
        """Delete the messages of all declared queues, but not the messages that workers have claimed."""
        for queue_name in self.queues:
            self.flush(queue_name)

    def join(self, queue_name: str, *, interval: int = 20, timeout: int | None = None) -> None:
        """Wait until a queue has no message, also no delayed or claimed message.

        Args:
            interval: milliseconds between two checks.
            timeout: milliseconds; None for no limit.

        Raises:
            QueueJoinTimeout: the queue still has messages.
            QueueNotFound: the queue was not declared.
        """
        space, name = self._declared(queue_name), queue_names(queue_name)[0]
        until = float("inf") if timeout is None else time.monotonic() + timeout / 1000
        while (stats := space.stats(name)).ready + stats.delayed + stats.claimed + stats.in_doubt:
            if time.monotonic() >= until:
                raise QueueJoinTimeout(queue_name)
            time.sleep(interval / 1000)

    def _declared(self, queue_name: str) -> spool.Space:
        """Return the space with a declared queue. Raises QueueNotFound."""
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        return self._space_with(queue_name)

    def _space_with(self, queue_name: str) -> spool.Space:
        """Return the space, in which the queue and its dead-letter queue exist."""
        space, (name, dead) = self.space, queue_names(queue_name)
        queue = space.ensure_queue(name, order="priority", retries=self._retries, retry_delay=0, error_queue=dead)
        if queue.role == "state":
            raise spool.InvalidArgument(f"queue {name!r} is the namespace of results or limiters: rename one")
        return space

    def emit_after(self, signal: str, *args: Any, **kwargs: Any) -> None:
        """As of each broker; but if the middleware that goes on with a message fails, the message is dead-lettered.

        Dramatiq would only log the error, and acknowledge the message: a full queue, or an option with a wrong type,
        would lose the next attempt or the next message of a pipeline.
        """
        if signal == "process_message" and isinstance(args[0], Delivery):
            self._finish(*args, **kwargs)
        else:
            super().emit_after(signal, *args, **kwargs)

    def _finish(self, message: "Delivery", *, result: Any = None, exception: BaseException | None = None) -> None:
        needed = (Callbacks, GroupCallbacks, Pipelines) if exception is None else (Retries,)
        for middleware in reversed(self.middleware):
            try:
                middleware.after_process_message(self, message, result=result, exception=exception)
            except Exception as error:
                log.critical("after_process_message of %r failed", middleware, exc_info=True)
                if isinstance(middleware, needed):
                    message.hindrance = error
                    message.fail()


class _CountedRuns(dramatiq.Middleware):
    """Counts an attempt if the worker dies while an actor runs: a message that kills workers must come to an end.

    A message whose claim has ended does not run, because another worker has the message: e.g. the consumer began again.
    """

    def before_process_message(self, broker: dramatiq.Broker, message: "Delivery") -> None:  # type: ignore[override]
        try:
            message.claims.begin(message.claimed)
        except _CLAIM_ENDED as error:
            raise SkipMessage(f"message {message.message_id} is not claimed any more") from error
        message.begun = time.monotonic()
        running.set(message)


class Delivery(MessageProxy):
    """A message of Dramatiq, and the claimed message of the space.

    begun: the monotonic time at which its actor began, or None. hindrance: the error of the middleware that should have
    put the next attempt, or the next message.
    """

    def __init__(self, message: dramatiq.Message[Any], claims: spool.Claims, claimed: spool.Message) -> None:
        super().__init__(message)
        self.claims, self.claimed = claims, claimed
        self.begun: float | None = None
        self.hindrance: Exception | None = None


class XaspoolConsumer(Consumer):
    """Takes the messages of one queue for the threads of a worker.

    Dramatiq calls ``ack`` and ``nack`` in the threads that run actors, and the other methods in the consumer's thread.

    Args:
        prefetch: how many messages may be claimed at the same time.
        timeout: the longest wait in ``__next__``, in seconds.
    """

    def __init__(self, space: spool.Space, queue: str, prefetch: int, timeout: float) -> None:
        self._space, self._queue, self._prefetch, self._timeout = space, queue, prefetch, timeout
        self._name = queue_names(queue)[0]
        self._claims, self._arrivals = space.claims(), space.arrivals([self._name])

    def __next__(self) -> Delivery | None:
        try:
            if (delivery := self._take()) is None and wait([self._arrivals.fileno()], self._timeout):
                self._arrivals.ready()
                delivery = self._take()
        except (spool.NotOpen, spool.SpaceStopped) as error:
            raise ConnectionClosed(error) from error  # Dramatiq then makes a new consumer, which opens the space again
        return delivery

    def _take(self) -> Delivery | None:
        while self._claims.held < self._prefetch:
            if not (taken := self._claims.take(self._name, undecoded=True)):
                return None
            try:
                message = decode(taken[0], self._queue)
            except Foreign as error:
                advice = f"another framework uses the queue {self._name}: give each framework separate queues"
                reason = f"not a message of Dramatiq, so {advice} ({error})"
                log.error("message %s of queue %s: %s", taken[0].id, self._name, reason)
                self._claims.reject(taken, reason, delay=_FOREIGN_SECONDS).result()
                continue
            if (eta := pop_eta(message, time.time())) is None:
                return Delivery(message, self._claims, taken[0])
            self._claims.release(taken)  # the space keeps the message until its time, not this worker
            self._delay(taken[0].id, eta)
        return None

    def _delay(self, message_id: str, until: float) -> None:
        with suppress(spool.MessageInUse, spool.BadMessageId):  # (another worker has taken the message)
            self._space.change(message_id, not_before=until)

    # Dramatiq passes the messages that __next__ returned.

    def ack(self, message: Delivery) -> None:  # type: ignore[override]
        """Remove a message whose actor has ended. The removal is durable when this call returns."""
        self._end(message, message.claims.remove)

    def nack(self, message: Delivery) -> None:  # type: ignore[override]
        """Move a failed message to the dead-letter queue, with the exception as the reason."""
        errors = filter(None, (message._exception, message.hindrance))
        reason = "; and it could not go on: ".join(map(one_line, errors)) or "the message failed"
        self._end(message, partial(message.claims.reject, reason=reason))

    def _end(self, message: Delivery, end: "Callable[[list[spool.Message]], Future[None]]") -> None:
        try:
            end([message.claimed]).result()
        except _CLAIM_ENDED as error:
            log.warning("message %s runs again, because its claim has ended: %s", message.message_id, error)
        except spool.SpoolError:
            message.claims.release([message.claimed])
            raise
        finally:
            self._arrivals.wake()  # the next message can be claimed

    def requeue(self, messages: Iterable[Delivery]) -> None:  # type: ignore[override]
        """Return messages that no actor has begun to their places in the queue."""
        for message in messages:
            with suppress(*_CLAIM_ENDED):
                message.claims.release([message.claimed])

    def close(self) -> None:
        """Return all other claimed messages to their places in the queue."""
        self._arrivals.close()
        self._claims.close()
