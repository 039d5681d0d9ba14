"""The bindings of queues to exchanges, shared by all processes: messages of a queue.

The correlation id of a binding is its exchange. The connection of a transient queue holds the queue's bindings claimed.
If the connection's process dies, the kernel releases the claims, and the bindings count no more, without heartbeats.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from kombu.utils.json import dumps, loads

import spool
from celery_xaspool.names import BINDINGS, short_text

_SECONDS = 1.0  # the bindings are read again after this time; a younger one counts, as its connection may yet claim it


class Binding(NamedTuple):
    """A queue that gets the messages of an exchange with some routing keys.

    seconds: how long a message for a transient queue may wait; None for a durable queue.
    options: the options of a durable queue; None if the program that bound the queue did not declare the queue.
    """

    exchange: str
    type: str
    key: str
    pattern: str | None
    queue: str
    seconds: float | None
    options: dict[str, Any] | None = None


class Bindings:
    """The bindings as one connection sees them, and those that the connection holds."""

    def __init__(self, space: spool.Space) -> None:
        self._space, self._claims = space, space.claims()
        self._held: dict[str, spool.Message] = {}
        self._known, self._until = dict[str, Binding](), 0.0  # the bindings by id, and when to read again

    def bind(self, binding: Binding) -> None:
        """Add a binding, which counts for all processes from now on. A durable binding is added once."""
        if binding.seconds is None and any(known[:6] == binding[:6] for known in self.of(binding.exchange)):
            return
        while True:
            exchange = short_text(binding.exchange)
            id = self._space.put(BINDINGS, dumps(binding), correlation_id=exchange, transaction=None)
            if binding.seconds is None:
                return
            for message in self._claims.take(BINDINGS, message_id=id):
                self._held[id] = message
                return

    def unbind(self, queue: str, exchange: str | None = None, key: str | None = None) -> None:
        """Remove the bindings of a queue: all of them, or one."""
        for id, binding in self._read():
            if binding.queue == queue and exchange in (None, binding.exchange) and key in (None, binding.key):
                if id in self._held:
                    self._claims.release([self._held.pop(id)])
                self._delete(id)
        self._until = 0.0

    def of(self, exchange: str) -> list[Binding]:
        """Return the bindings of an exchange. A new binding of another process is noticed at once."""
        if (newest := self._space.find(BINDINGS, correlation_id=short_text(exchange))) is None:
            return []
        if newest.id not in self._known or time.monotonic() >= self._until:
            self._known, self._until = dict(self._read()), time.monotonic() + _SECONDS
        return [binding for binding in self._known.values() if binding.exchange == exchange]

    def of_queue(self, queue: str) -> list[Binding]:
        """Return the bindings of a queue."""
        return [binding for _, binding in self._read() if binding.queue == queue]

    def close(self) -> None:
        """Remove the bindings that this connection holds."""
        self._claims.remove(self._held.values()).result()
        self._claims.close()

    def _read(self) -> Iterator[tuple[str, Binding]]:
        """Yield the bindings that count, and remove those of dead connections."""
        for message in self._space.browse(BINDINGS):
            binding = Binding(*loads(message.body))
            is_new, is_own = message.enqueued_at > time.time() - _SECONDS, message.id in self._held
            if binding.seconds is None or is_new or is_own or not self._delete(message.id):
                yield message.id, binding

    def _delete(self, id: str) -> bool:
        """Delete a binding unless a connection holds it; return whether it is gone."""
        with suppress(spool.MessageInUse):
            with suppress(spool.BadMessageId):  # another process has removed the binding
                self._space.delete(id)
            return True
        return False
