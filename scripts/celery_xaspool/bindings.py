"""The bindings of queues to exchanges, shared by all processes: messages of a queue.

The correlation id of a binding is its exchange. The binding of a transient queue has an owner, a further message that
the connection of the transient queue holds claimed. If the owner dies, the kernel releases the claim. So a binding with
an owner counts as long as the owner's message is claimed, without heartbeats.
"""

import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from kombu.utils.json import dumps, loads

import spool
from celery_xaspool.names import BINDINGS

_KNOWN_SECONDS = 1.0  # a table is read again after this time, because owners die and other processes unbind
_OWNER_SECONDS = 10.0  # a younger message of a dead owner remains, because a living owner may have just put it


class Binding(NamedTuple):
    """A queue that gets the messages of an exchange with some routing keys.

    seconds: how long a message for the queue may wait, from the arguments of the queue; None: no limit.
    owner: the correlation id of the owner's message; None for a durable queue.
    """

    exchange: str
    type: str
    key: str
    pattern: str | None
    queue: str
    seconds: float | None
    owner: str | None


class Bindings:
    """The bindings as one connection sees them, and those that the connection owns."""

    def __init__(self, space: spool.Space) -> None:
        self._space = space
        self._claims: spool.Claims | None = None
        self._owner = f"owner {uuid.uuid4().hex}"
        self._tables: dict[str, tuple[str | None, float, list[Binding]]] = {}

    def bind(
        self, exchange: str, type: str, key: str, pattern: str | None, queue: str, seconds: float | None, owned: bool
    ) -> None:
        """Add a binding, unless the same binding exists. The binding counts for all processes from now on."""
        binding = Binding(exchange, type, key, pattern, queue, seconds, self._own() if owned else None)
        if binding not in self.of(exchange):
            self._space.put(BINDINGS, dumps(binding), correlation_id=exchange, transaction=None)

    def unbind(self, queue: str, exchange: str | None = None, key: str | None = None) -> None:
        """Remove the bindings of a queue: all of them, or one."""
        for id, binding in self._read():
            if binding.queue == queue and exchange in (None, binding.exchange) and key in (None, binding.key):
                self._delete(id)
        self._tables.clear()

    def of(self, exchange: str) -> list[Binding]:
        """Return the bindings of an exchange. A new binding of another process is noticed at once."""
        newest = self._space.find(BINDINGS, correlation_id=exchange)
        version = None if newest is None else newest.id
        known, until, table = self._tables.get(exchange, (None, 0.0, []))
        if known == version and time.monotonic() < until:
            return table
        table = [] if newest is None else [binding for _, binding in self._read() if binding.exchange == exchange]
        self._tables[exchange] = version, time.monotonic() + _KNOWN_SECONDS, table
        return table

    def close(self) -> None:
        """Remove the bindings that this connection owns."""
        claims, self._claims = self._claims, None
        if claims is not None:
            for id, binding in self._read():
                if binding.owner == self._owner:
                    self._delete(id)
            claims.remove(self._held).result()
            claims.close()

    def _own(self) -> str:
        """Claim the owner's message before the first binding that names it."""
        if self._claims is None:
            claims = self._space.claims()
            while not (held := claims.take(BINDINGS, 1, correlation_id=self._owner)):
                self._space.put(BINDINGS, "", correlation_id=self._owner, transaction=None)
            self._claims, self._held = claims, held
        return self._owner

    def _read(self) -> Iterator[tuple[str, Binding]]:
        """Yield the bindings that count, and remove the messages of dead owners."""
        living, found, dead = set(), [], []
        for entry in self._space.entries(BINDINGS):
            message = entry.message
            if message is None:
                continue
            if message.body:
                found.append((message.id, Binding(*loads(message.body)), message.enqueued_at))
            elif entry.state == "claimed":
                living.add(message.correlation_id)
            else:
                dead.append((message.id, message.enqueued_at))
        for id, binding, since in found:
            if binding.owner is None or binding.owner in living:
                yield id, binding
            else:
                dead.append((id, since))
        for id, since in dead:
            if since < time.time() - _OWNER_SECONDS:
                self._delete(id)

    def _delete(self, id: str) -> None:
        with suppress(spool.BadMessageId, spool.MessageInUse):  # another process removes the same message
            self._space.delete(id)
