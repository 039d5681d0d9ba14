"""The broker: each queue of Dramatiq is a queue of the space, and each message is a message."""

import os
import time
from typing import Any

import dramatiq
from dramatiq.common import xq_name
from dramatiq.errors import QueueJoinTimeout, QueueNotFound

import spool
from dramatiq_xaspool.consumer import Delivery, XaspoolConsumer


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
        self.path, self._retries = os.path.abspath(path), retries
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
            message.queue_name,
            message.encode(),
            priority=min(max(priority, 1), 100),
            delay=None if delay is None else max(delay, 0) / 1000,
            correlation_id=message.message_id,
            headers={"actor": message.actor_name},
        )
        self.emit_after("enqueue", message, delay)
        return message

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 5000) -> XaspoolConsumer:
        """Return a consumer, which claims up to ``prefetch`` messages. ``timeout``: milliseconds of a wait.
        Raises QueueNotFound if the queue was not declared."""
        return XaspoolConsumer(self._declared(queue_name), queue_name, prefetch, timeout / 1000)

    def flush(self, queue_name: str) -> None:
        """Delete the messages of a queue, but not the messages that workers have claimed. Raises QueueNotFound."""
        self._declared(queue_name).purge(queue_name)

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
        space = self._declared(queue_name)
        until = float("inf") if timeout is None else time.monotonic() + timeout / 1000
        while (stats := space.stats(queue_name)).ready + stats.delayed + stats.claimed + stats.in_doubt:
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
        space, dead = self.space, xq_name(queue_name)
        space.ensure_queue(queue_name, order="priority", retries=self._retries, retry_delay=0, error_queue=dead)
        return space


class _CountedRuns(dramatiq.Middleware):
    """Counts an attempt if the worker dies while an actor runs: a message that kills workers must come to an end."""

    def before_process_message(self, broker: dramatiq.Broker, message: Delivery) -> None:  # type: ignore[override]
        message.claims.begin(message.claimed)
