"""Channels: queues, deliveries and acknowledgements. A delivery is a claim: the death of its worker ends it at once."""

import logging
import os
from base64 import b64decode, b64encode
from collections import deque
from concurrent.futures import Future, wait
from contextlib import suppress
from datetime import datetime
from functools import cached_property, partial
from itertools import count
from typing import Any

from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.utils.json import dumps, loads

import spool
from celery_xaspool.names import TRANSIENT, create_queue, mailbox, queue_name

log = logging.getLogger("celery_xaspool")

_TRANSIENT_SECONDS = 3600.0  # an unread message of a transient queue that sets no limit is deleted after this time
_PRIORITIES = 100


class QoS(virtual.QoS):
    """The unacknowledged deliveries of a channel."""

    def __init__(self, channel: "Channel", prefetch_count: int = 0) -> None:
        super().__init__(channel, prefetch_count)
        self._on_collect.cancel()  # the end of the process releases the claims
        self.held: dict[str, spool.Message] = {}

    def can_consume(self) -> bool:
        return not self.prefetch_count or len(self.held) < self.prefetch_count

    def append(self, message: Any, delivery_tag: str) -> None:
        self.held[delivery_tag] = self.channel.delivered.pop(delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        if (message := self.held.pop(delivery_tag, None)) is not None:
            self.channel.remove(message)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        if (message := self.held.pop(delivery_tag, None)) is None:
            return
        if requeue:
            request = self.channel.claims.fail(message, "the consumer returned the message")
            self.channel.follow_up(request, [message])
            wait([request])  # so that the next get of this channel finds the message
        else:
            self.channel.follow_up(
                self.channel.claims.reject([message], "the consumer rejected the message"), [message]
            )
        self.channel.connection.wake()  # the consumer has room

    def restore_unacked(self) -> None:
        held, self.held = self.held, {}
        with suppress(spool.SpoolError):  # the space is closed, so the claims are released already
            self.channel.claims.release(list(held.values()))

    def restore_unacked_once(self, stderr: Any = None) -> None:
        if self.held:
            self.restore_unacked()


class Channel(virtual.Channel):
    QoS = QoS
    supports_fanout = True
    body_encoding = None
    max_priority = _PRIORITIES - 1
    _tags = count(1)

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self.space: spool.Space = connection.space
        self.delivered: dict[str, spool.Message] = {}  # by delivery tag, until the consumer gets the message
        self._acked: deque[spool.Message] = deque()
        self._unfinished: set[Future[None]] = set()
        self._sources: dict[str, tuple[str, bool]] = {}  # by consumer tag: the queue, and whether it needs no acks

    @cached_property
    def claims(self) -> "spool.Claims":
        return self.space.claims()

    # -- queues ------------------------------------------------------------------------------------------------------

    def address(self, queue: str) -> tuple[str, str | None]:
        """Return the queue of the space for a kombu queue; for a transient kombu queue also its correlation id."""
        name = queue_name(queue)
        if queue not in self.connection.transient and name in self.space.queues():
            return name, None
        return TRANSIENT, mailbox(queue)

    def _new_queue(
        self, queue: str, durable: bool = True, exclusive: bool = False, auto_delete: bool = False, **kwargs: Any
    ) -> None:
        arguments = kwargs.get("arguments") or {}
        milliseconds = arguments.get("x-message-ttl")
        self.connection.seconds[queue] = None if milliseconds is None else milliseconds / 1000
        if exclusive or auto_delete:
            self.connection.transient.add(queue)
            return
        options: dict[str, Any] = {"retry_delay": 0.0, "on_expiry": "drop"}
        if arguments.get("x-max-priority"):
            options["order"] = ("priority", "fifo")
        if not durable:
            options["durability"] = "none"
        options |= self.connection.client.transport_options.get("queue", {})
        create_queue(self.space, queue_name(queue), **{**options, **arguments.get("xaspool", {})})

    def prepare_queue_arguments(self, arguments: Any, **kwargs: Any) -> Any:
        return to_rabbitmq_queue_arguments(arguments, **kwargs)

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        return queue in self.connection.transient or queue_name(queue) in self.space.queues()

    def _size(self, queue: str) -> int:
        name, box = self.address(queue)
        if box is None:
            return self.space.stats(name).ready
        if self.space.find(name, correlation_id=box) is None:
            return 0
        return sum(1 for _ in self.space.browse(name, correlation_id=box))

    def _purge(self, queue: str) -> int:
        name, box = self.address(queue)
        return self.space.purge(name, correlation_id=box)

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any) -> None:
        """Delete a queue with its messages and bindings.

        No process knows the consumers of other processes, so a durable queue always counts as used. Raises
        ``spool.QueueNotEmpty`` if a worker holds messages of the queue.
        """
        name, box = self.address(queue)
        if (if_unused and box is None) or (if_empty and self._size(queue)):
            return
        self.state.queue_bindings_delete(queue)
        self.connection.bindings.unbind(queue)
        self._purge(queue)
        self.connection.transient.discard(queue)
        if box is None:
            self.space.delete_queue(name)

    # -- exchanges ---------------------------------------------------------------------------------------------------

    def typeof(self, exchange: str, default: str = "direct") -> Any:
        if exchange not in self.state.exchanges and (table := self.connection.bindings.of(exchange)):
            return self.exchange_types[table[0].type]  # another process has declared the exchange
        return super().typeof(exchange, default)

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str | None, queue: str) -> None:
        self.connection.bindings.bind(
            exchange, self.typeof(exchange).type, routing_key or "", pattern, queue,
            self.connection.seconds.get(queue), owned=queue in self.connection.transient,
        )  # fmt: skip

    def queue_unbind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", arguments: Any = None, **kwargs: Any
    ) -> None:
        self.state.binding_delete(queue, exchange, routing_key)
        self.connection.bindings.unbind(queue, exchange, routing_key or "")

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        """Delete an exchange with its bindings. The queues remain, with their messages."""
        for key, _, queue in self.get_table(exchange):
            self.queue_unbind(queue, exchange, key)
        self.state.exchanges.pop(exchange, None)

    def get_table(self, exchange: str) -> list[tuple[str, str | None, str]]:
        """Return the routing keys, patterns and queues of an exchange."""
        table = self.connection.bindings.of(exchange)
        self.connection.seconds.update({binding.queue: binding.seconds for binding in table})
        return [(binding.key, binding.pattern, binding.queue) for binding in table]

    # -- publishing --------------------------------------------------------------------------------------------------

    def encode_body(self, body: Any, encoding: str | None = None) -> tuple[Any, str | None]:
        return (b64encode(body).decode(), "base64") if isinstance(body, bytes) else (body, None)

    def decode_body(self, body: Any, encoding: str | None = None) -> Any:
        return b64decode(body) if encoding == "base64" else body

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        """Put a message. The put joins the transaction of the caller, if the caller has one in this space."""
        name, box = self.address(queue)
        seconds, expiration = self.connection.seconds.get(queue), message["properties"].get("expiration")
        if expiration and not (message.get("headers") or {}).get("expires"):
            seconds = int(expiration) / 1000  # (a worker revokes an expired task, so that nobody waits for its result)
        if box is not None and seconds is None:
            seconds = _TRANSIENT_SECONDS
        put: dict[str, Any] = {"time_to_live": None if seconds is None else max(seconds, 0.001)}
        if box is not None:
            put["correlation_id"] = box
        else:
            if self.space.queues()[name].order[0] == "priority":
                put["priority"] = 1 + self._get_message_priority(message)
            if self.connection.native_eta:
                put["not_before"] = _eta(message)
        self.space.put(name, dumps(message), **put)

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **kwargs: Any) -> None:
        for queue in {row[2] for row in self.get_table(exchange)}:
            self._put(queue, message)

    # -- consuming ---------------------------------------------------------------------------------------------------

    def basic_consume(self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **kwargs: Any) -> None:
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        self._sources[consumer_tag] = queue, no_ack
        self.connection.follow_queues()

    def basic_cancel(self, consumer_tag: str) -> None:
        super().basic_cancel(consumer_tag)
        if self._sources.pop(consumer_tag, None) is not None:
            self.flush()
            self.connection.follow_queues()

    def consumed(self) -> set[str]:
        """Return the queues of the space that this channel consumes."""
        return {self.address(queue)[0] for queue, _ in self._sources.values()}

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        for payload in self._take(queue, 1):
            message = self.Message(payload, channel=self)
            self.qos.append(message, message.delivery_tag)
            if no_ack:
                self.qos.ack(message.delivery_tag)
            return message
        return None

    def deliver(self, most: int) -> int:
        """Deliver up to ``most`` messages to the consumers; return their number."""
        done = 0
        for consumer_tag, (queue, no_ack) in list(self._sources.items()):
            room = most - done
            if not no_ack and self.qos.prefetch_count:
                room = min(room, self.qos.prefetch_count - len(self.qos.held))
            for payload in self._take(queue, room) if room > 0 else ():
                if consumer_tag not in self._sources:  # an earlier message has made the consumer cancel itself
                    self.claims.release([self.delivered.pop(payload["properties"]["delivery_tag"])])
                    continue
                if no_ack:
                    self.remove(self.delivered.pop(payload["properties"]["delivery_tag"]))
                self.connection.on_message_ready(self, payload, queue)
                done += 1
        return done

    def _take(self, queue: str, most: int) -> list[dict[str, Any]]:
        """Claim messages, and return them as kombu's payloads."""
        name, box = self.address(queue)
        return [self._payload(message) for message in self.claims.take(name, most, correlation_id=box)]

    def _payload(self, message: spool.Message) -> dict[str, Any]:
        self.claims.begin(message)  # if this process dies, the next delivery is marked as redelivered
        payload: dict[str, Any] = loads(message.body)
        tag = f"{message.id}.{next(self._tags)}"
        payload["properties"]["delivery_tag"] = tag
        payload["properties"].setdefault("delivery_info", {})["redelivered"] = message.attempts > 0
        self.delivered[tag] = message
        return payload

    # -- acknowledgements --------------------------------------------------------------------------------------------

    def remove(self, message: spool.Message) -> None:
        """Remove an acknowledged message. In an event loop, the acknowledgements of one tick are one request."""
        self._acked.append(message)
        if self.connection.loop is not None and self._sources:
            self.connection.wake()
        else:
            self.flush()

    def flush(self) -> None:
        """Request the removal of the messages acknowledged so far."""
        if acked := [self._acked.popleft() for _ in range(len(self._acked))]:
            self.follow_up(self.claims.remove(acked), acked)

    def follow_up(self, request: "Future[None]", messages: list[spool.Message]) -> None:
        """Let ``close`` wait for a request. If the request fails, log the error, and release its messages."""
        self._unfinished.add(request)
        request.add_done_callback(partial(self._finished, messages))

    def _finished(self, messages: list[spool.Message], request: "Future[None]") -> None:
        self._unfinished.discard(request)
        if (error := request.exception()) is not None:
            log.error("%d messages that consumers have finished will be delivered again: %s", len(messages), error)
            with suppress(spool.SpoolError):
                self.claims.release(messages)

    def close(self) -> None:
        if not self.closed:
            is_copy = self.connection.pid != os.getpid()  # in a forked child, no request will be finished
            with suppress(spool.SpoolError):
                self.flush()
            super().close()
            wait(() if is_copy else list(self._unfinished))
            if "claims" in self.__dict__:
                self.claims.close()


def _eta(message: dict[str, Any]) -> float | None:
    """Return the time before which a task must not run. A time without a zone is left to the worker, which knows the
    zone of the application."""
    eta = (message.get("headers") or {}).get("eta")
    with suppress(ValueError, TypeError):
        moment = datetime.fromisoformat(eta or "")
        return None if moment.tzinfo is None else moment.timestamp()
    return None
