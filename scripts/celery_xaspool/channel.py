"""Channels: queues, deliveries and acknowledgements. A delivery is a claim: the death of its worker ends it at once."""

import logging
import os
import sys
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from contextlib import suppress
from datetime import datetime
from functools import partial
from threading import Timer
from typing import Any, NamedTuple

from kombu.exceptions import OperationalError
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.utils.json import dumps

import spool
from celery_xaspool.bindings import Binding
from celery_xaspool.broker_options import ARGUMENTS, check_queue_options, name_ignored, name_ignored_priority
from celery_xaspool.envelopes import ClaimedMessage, NotATask, check_envelope, check_task, read_envelope
from celery_xaspool.names import (
    DEFAULT_EXCHANGE,
    TRANSIENT,
    TRANSIENT_OPTIONS,
    one_line,
    put_with_headers,
    queue_name,
    short_text,
)

log = logging.getLogger("celery_xaspool")

_TRANSIENT_SECONDS = 3600.0  # an unread message of a transient queue that sets no limit is deleted after this time
_FOREIGN_SECONDS = 60.0  # the delay of a message of another framework, in a queue without an error queue
_SHORTEST_SECONDS, _LONGEST_SECONDS = 0.001, 1e11  # of a message's life: a space allows no longer one
_AGAIN_SECONDS = 1.0  # after this time, acknowledgements that have failed are repeated


class FailureCause(NamedTuple):
    """Why a task has failed.

    on_last: called if the worker returns the message, and the message has no attempt left. is_none: whether the task
    returns because the worker shuts down, so that no attempt is counted.
    """

    text: str
    on_last: Callable[[], object]
    is_none: bool


class _Source(NamedTuple):
    """The queue of a consumer. ``reserves``: whether attempts begin after the delivery: see celery_xaspool.attempts."""

    queue: str
    no_ack: bool
    reserves: bool


class QoS(virtual.QoS):
    """Ends the deliveries of a channel. A channel that is closed releases them with its claims."""

    def __init__(self, channel: "Channel", prefetch_count: int = 0) -> None:
        super().__init__(channel, prefetch_count)
        self._on_collect.cancel()  # the end of the process releases the claims
        self._delivered = self.held = channel.held

    def append(self, message: Any, delivery_tag: str) -> None:
        """Do nothing: the channel noted the delivery when it claimed the message."""

    def ack(self, delivery_tag: str) -> None:
        self.channel.causes.pop(delivery_tag, None)
        if (message := self.held.pop(delivery_tag, None)) is not None:
            self.channel.remove(message)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        if (message := self.held.get(delivery_tag)) is None:
            return
        claims, cause, error = self.channel.claims, self.channel.causes.pop(delivery_tag, None), _handled()
        reason = None if cause is None else cause.text
        if cause is None and error is not None:
            reason = one_line(error)
            if isinstance(error, KeyError) and error.args == (message.headers.get("task"),):
                reason = f"NotRegistered: the worker knows no task {error}"
            elif self.channel.is_in_worker and not requeue:
                self.channel.refuse(delivery_tag, reason)
                return
        del self.held[delivery_tag]
        if cause is not None and cause.is_none:
            claims.release([message])
            return
        if requeue:
            request = claims.fail(message, reason or "the consumer returned the message")
        else:
            request = claims.reject([message], reason or "the consumer rejected the message")
        self.channel.follow_up(request, partial(claims.release, [message]))
        if requeue:
            wait([request])  # so that the next get of this channel finds the message
            if cause is not None and request.exception() is None and not self.channel.has_attempts(message):
                cause.on_last()
        self.channel.connection.wake()  # the consumer has room

    def restore_unacked(self) -> None:
        self.channel.claims.release([self.held.pop(tag) for tag in list(self.held)])


class Channel(virtual.Channel):
    QoS = QoS
    Message = ClaimedMessage
    do_restore = False
    supports_fanout = True
    max_priority = 99
    prepare_queue_arguments = staticmethod(to_rabbitmq_queue_arguments)

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self.space: spool.Space = connection.space
        self.claims = self.space.claims()
        self.held: dict[str, spool.Message] = {}  # the unacknowledged deliveries by delivery tag
        self.causes: dict[str, FailureCause] = {}  # why their tasks have failed
        self._acked: deque[spool.Message] = deque()
        self._unfinished: set[Future[None]] = set()
        self._sources: dict[str, _Source] = {}  # by consumer tag
        self._limited: set[str] = set()  # the queues that limit the attempts of their messages

    @property
    def is_in_worker(self) -> bool:
        """Whether a worker of Celery delivers messages. (A program with kombu alone gets its own exceptions.)"""
        return self.connection.loop is not None

    # -- queues ------------------------------------------------------------------------------------------------------

    def find_queue(self, queue: str) -> tuple[spool.QueueConfig, str | None]:
        """Return the queue of the space for a kombu queue; for a transient kombu queue also its correlation id.

        A queue that this connection declared, or knows from a binding, is created again if an administrator has deleted
        it. Raises ``spool.QueueNotFound`` if nothing tells whether the queue is durable or transient.
        """
        transient, durable, name = self.connection.transient, self.connection.durable, queue_name(queue)
        if queue not in transient and name not in durable:
            if (found := self.space.queues().get(name)) is not None:
                return found, None
            self._learn(self.connection.bindings.of_queue(queue))
        if queue in transient:
            return self.space.ensure_queue(TRANSIENT, **TRANSIENT_OPTIONS), short_text(queue)
        if name not in durable:
            raise spool.QueueNotFound(f"no program has declared the queue {queue}: declare it before its first use")
        return self.space.ensure_queue(name, **durable[name]), None

    def _learn(self, bindings: Iterable[Binding]) -> None:
        """Remember the queues of bindings, which any program may have declared."""
        for binding in bindings:
            if binding.seconds is not None:
                self.connection.transient[binding.queue] = binding.seconds
            elif binding.options is not None:
                self.connection.durable.setdefault(queue_name(binding.queue), binding.options)

    def _new_queue(
        self, queue: str, durable: bool = True, exclusive: bool = False, auto_delete: bool = False, **kwargs: Any
    ) -> None:
        arguments = kwargs.get("arguments") or {}
        milliseconds = arguments.get("x-message-ttl")
        seconds = None if milliseconds is None else max(milliseconds / 1000, _SHORTEST_SECONDS)
        if exclusive or auto_delete:
            if queue not in self.connection.transient:
                self.connection.transient[queue] = _TRANSIENT_SECONDS if seconds is None else seconds
                self._queue_bind(DEFAULT_EXCHANGE, queue, None, queue)  # so that all programs know the queue
            return
        name_ignored(f"queue {queue}", arguments, ARGUMENTS)
        options = {"retry_delay": 0.0, "on_expiry": "drop", "time_to_live": seconds}
        options["order"] = "priority" if arguments.get("x-max-priority") else "fifo"
        options["durability"] = "flush" if durable else "none"
        options |= self.connection.client.transport_options.get("queue", {})
        own = arguments.get("xaspool", {})
        check_queue_options(f"queue_arguments of the queue {queue}", own)
        self.connection.durable[queue_name(queue)] = {**options, **own}
        self.find_queue(queue)

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        return queue in self.connection.transient or queue_name(queue) in self.space.queues()

    def _size(self, queue: str) -> int:
        config, box = self.find_queue(queue)
        if box is None:
            return self.space.stats(config.name).ready
        return sum(1 for _ in self.space.browse(TRANSIENT, correlation_id=box))

    def _purge(self, queue: str) -> int:
        config, box = self.find_queue(queue)
        return self.space.purge(config.name, correlation_id=box)

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any) -> None:
        """Delete a queue with its messages and bindings.

        No process knows the consumers of other processes, so a durable queue always counts as used. Raises
        ``spool.QueueNotEmpty`` if another connection holds messages of the queue.
        """
        try:
            config, box = self.find_queue(queue)
        except spool.QueueNotFound:
            return
        name = config.name
        if (if_unused and box is None) or (if_empty and self._size(queue)):
            return
        self.state.queue_bindings_delete(queue)
        self.connection.bindings.unbind(queue)
        self._purge(queue)
        for channel in self.connection.channels:
            channel.flush()
            for tag in [tag for tag, source in channel._sources.items() if source.queue == queue]:
                channel.basic_cancel(tag)
            tags = [tag for tag, m in channel.held.items() if m.queue == name and box in (None, m.correlation_id)]
            channel.claims.remove([channel.held.pop(tag) for tag in tags]).result()
        self.connection.transient.pop(queue, None)
        self.connection.durable.pop(name, None)
        if box is None:
            self.space.delete_queue(name)

    # -- exchanges ---------------------------------------------------------------------------------------------------

    def typeof(self, exchange: str, default: str = "direct") -> Any:
        if exchange not in self.state.exchanges and (table := self.connection.bindings.of(exchange)):
            return self.exchange_types[table[0].type]  # another process has declared the exchange
        return super().typeof(exchange, default)

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str | None, queue: str) -> None:
        seconds, options = self.connection.transient.get(queue), self.connection.durable.get(queue_name(queue))
        type = self.typeof(exchange).type
        self.connection.bindings.bind(Binding(exchange, type, routing_key or "", pattern, queue, seconds, options))

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
        self._learn(table)
        return [(binding.key, binding.pattern, binding.queue) for binding in table]

    # -- publishing --------------------------------------------------------------------------------------------------

    def encode_body(self, body: Any, encoding: str | None = None) -> Any:
        """Encode bytes only, so that administrators can read all other bodies."""
        return (b64encode(body).decode(), "base64") if isinstance(body, bytes) else (body, None)

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        """Put a message. The put joins the transaction of the caller, if the caller has one in this space."""
        config, box = self.find_queue(queue)
        put: dict[str, Any] = {}
        headers = message.get("headers") or {}
        try:
            check_envelope(message)
            if {"task", "id", "root_id"} <= headers.keys():  # Celery sends the message
                check_task(headers)
        except (TypeError, NotATask) as error:
            raise spool.InvalidArgument(f"a message for queue {queue} was not sent: {error}") from None
        id, task = headers.get("id") or message["properties"].get("correlation_id"), headers.get("task")
        expiration = message["properties"].get("expiration")
        if expiration and not headers.get("expires"):
            # (a worker revokes an expired task, so that nobody waits for its result)
            put["time_to_live"] = min(max(int(expiration) / 1000, _SHORTEST_SECONDS), _LONGEST_SECONDS)
        if config.order[0] == "priority":
            put["priority"] = 1 + self._get_message_priority(message)
        elif self._get_message_priority(message):
            name_ignored_priority(config.name)
        if box is not None:
            put["correlation_id"] = box
            put.setdefault("time_to_live", self.connection.transient.get(queue, _TRANSIENT_SECONDS))
        else:
            put["correlation_id"] = short_text(id) if id else None
            put["not_before"] = _eta(message) if self.connection.native_eta else None
        shown = {"task": short_text(task)} if task else {}
        try:
            put_with_headers(self.space.put, config.name, dumps(message), headers=shown, **put)
        except spool.CommitUnknown:
            raise  # a repetition could publish the message twice
        except (spool.DiskFailure, spool.Full) as error:
            raise OperationalError(str(error)) from error

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **kwargs: Any) -> None:
        for queue in {row[2] for row in self.get_table(exchange)}:
            self._put(queue, message)

    # -- consuming ---------------------------------------------------------------------------------------------------

    def basic_consume(self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **kwargs: Any) -> None:
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        reserves = _is_of_tasks(getattr(callback, "__self__", None))
        self._sources[consumer_tag] = _Source(queue, no_ack, reserves)
        self.connection.follow_queues()

    def basic_cancel(self, consumer_tag: str) -> None:
        super().basic_cancel(consumer_tag)
        if self._sources.pop(consumer_tag, None) is not None:
            self.flush()
            self.connection.follow_queues()

    def consumed(self) -> set[str]:
        """Return the queues of the space that this channel consumes."""
        return {self.find_queue(source.queue)[0].name for source in self._sources.values()}

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        for payload in self._take(queue, 1):
            message = self.Message(payload, channel=self)
            self.begin(message.delivery_tag)
            if no_ack:
                self.qos.ack(message.delivery_tag)
            return message
        return None

    def deliver(self, most: int) -> int:
        """Request the removal of acknowledged messages, and deliver up to ``most`` messages to the consumers; return
        the number of deliveries."""
        self.flush()
        done, prefetch_count = 0, self.qos.prefetch_count
        for consumer_tag, source in list(self._sources.items()):
            room = most - done
            if not source.no_ack and prefetch_count:
                room = min(room, prefetch_count - len(self.held))
            for payload in self._take(source.queue, room) if room > 0 else ():
                tag = payload["properties"]["delivery_tag"]
                if consumer_tag not in self._sources:  # an earlier message has made the consumer cancel itself
                    self.claims.release([self.held.pop(tag)])
                    continue
                if source.no_ack:
                    self.remove(self.held.pop(tag))
                elif not source.reserves:
                    self.begin(tag)
                self._hand_over(payload, source.queue)
                done += 1
        return done

    def _hand_over(self, payload: dict[str, Any], queue: str) -> None:
        """Give a message to its consumer.

        In a worker, an exception refuses the message. It would end the worker otherwise, and then each worker that gets
        the message.
        """
        try:
            self.connection.on_message_ready(self, payload, queue)
        except self.connection.connection_errors:
            raise
        except Exception as error:
            if not self.is_in_worker:
                raise
            self.give_up(payload["properties"]["delivery_tag"], error)

    def _take(self, queue: str, most: int) -> list[dict[str, Any]]:
        """Claim messages, and return them as kombu's payloads."""
        config, box = self.find_queue(queue)
        if config.retries is not None or config.deaths is not None:
            self._limited.add(config.name)
        payloads: list[dict[str, Any]] = []
        while messages := self._claim(config.name, most - len(payloads), box, is_first=not payloads):
            found = [payload for payload in map(self._payload, messages) if payload is not None]
            payloads += found
            if len(found) == len(messages):  # otherwise a caller would see fewer messages than the queue has
                break
        return payloads

    def _claim(self, queue: str, most: int, box: str | None, *, is_first: bool) -> list[spool.Message]:
        try:
            messages: list[spool.Message] = self.claims.take(queue, most, correlation_id=box, undecoded=True)
            return messages
        except spool.SpoolError:
            if is_first:
                raise
            return []  # the caller has messages to deliver; its next call gets the error

    def _payload(self, message: spool.Message) -> dict[str, Any] | None:
        """Return a claimed message as kombu's payload; None if the message is no message of kombu."""
        tag = f"{message.id}.{next(self._delivery_tags)}"
        self.held[tag] = message
        try:
            payload = read_envelope(message.body)
            if self.is_in_worker and "task" in (headers := payload["headers"] or {}):
                check_task(headers)
        except Exception as error:
            reason = one_line(error)
            if not isinstance(error, NotATask):
                advice = f"another framework uses the queue {message.queue}: give each framework separate queues"
                reason = f"not a message of Celery, so {advice} ({reason})"
            self.refuse(tag, reason)
            return None
        properties = payload["properties"]
        redelivered = {"redelivered": message.attempts > 0}
        properties |= {"delivery_tag": tag, "delivery_info": {**(properties.get("delivery_info") or {}), **redelivered}}
        return payload

    def give_up(self, tag: str, error: Exception) -> None:
        """End a delivery whose consumer has raised an exception. A full disk is not the fault of the message."""
        if isinstance(error, spool.DiskFailure | spool.Full) and (message := self.held.get(tag)) is not None:
            log.error("message %s of queue %s returns to its queue: %s", message.id, message.queue, error)
            self._later(partial(self._return, tag))
        else:
            log.error("a delivery has failed", exc_info=error)
            self.refuse(tag, one_line(error))

    def _return(self, tag: str) -> None:
        if (message := self.held.pop(tag, None)) is not None:
            with suppress(spool.NotOpen, spool.ProtocolError):  # the channel was closed, which released the message
                self.claims.release([message])

    def refuse(self, tag: str, reason: str) -> None:
        """Move a message to the error queue. Without an error queue, the message is due again after a minute."""
        self.causes.pop(tag, None)
        if (message := self.held.pop(tag, None)) is not None:
            log.error("message %s of queue %s: %s", message.id, message.queue, reason)
            request = self.claims.reject([message], reason, delay=_FOREIGN_SECONDS)
            self.follow_up(request, partial(self.claims.release, [message]))
            self.connection.wake()  # the consumer has room

    def limits_attempts(self, tag: str) -> bool:
        """Return whether the queue of a delivery limits the attempts of its messages."""
        return tag in self.held and self.held[tag].queue in self._limited

    def has_attempts(self, message: spool.Message) -> bool:
        """Return whether a message remains in its queue after one more failed attempt."""
        queues = self.space.queues()
        if (config := queues.get(message.queue)) is None or config.retries is None:
            return config is not None
        is_kept = config.error_queue is not None and config.error_queue not in queues
        return is_kept or message.attempts - message.deaths < config.retries

    def begin(self, tag: str) -> None:
        """Record that an attempt begins: if this process dies, the next delivery is marked as redelivered."""
        if (message := self.held.get(tag)) is not None:
            with suppress(spool.BadMessageId):  # another thread ends the message
                self.claims.begin(message)

    # -- acknowledgements --------------------------------------------------------------------------------------------

    def remove(self, message: spool.Message) -> None:
        """Remove an acknowledged message. In an event loop, the acknowledgements of one tick are one request."""
        self._acked.append(message)
        if self.connection.loop is not None and (arrivals := self.connection.arrivals) is not None:
            arrivals.wake()
        else:
            self.flush()

    def flush(self) -> None:
        """Request the removal of the messages acknowledged so far."""
        if acked := [self._acked.popleft() for _ in range(len(self._acked))]:
            self.follow_up(self.claims.remove(acked), partial(self._remove_again, acked))

    def _remove_again(self, messages: list[spool.Message]) -> None:
        """Repeat acknowledgements later. The messages remain held, so their tasks do not run again meanwhile."""
        self._acked += messages
        self._later(self.connection.wake)

    def _later(self, step: Callable[[], object]) -> None:
        timer = Timer(_AGAIN_SECONDS, step)
        timer.daemon = True
        timer.start()

    def follow_up(self, request: "Future[None]", after_failure: Callable[[], object]) -> None:
        """Let ``close`` wait for a request. If the request fails, log the error, and call ``after_failure``."""
        self._unfinished.add(request)
        request.add_done_callback(partial(self._finished, after_failure))

    def _finished(self, after_failure: Callable[[], object], request: "Future[None]") -> None:
        self._unfinished.discard(request)
        if (error := request.exception()) is not None:
            log.error("finished messages are not acknowledged yet: %s", error)
            with suppress(spool.SpoolError):
                after_failure()

    def close(self) -> None:
        if not self.closed:
            is_copy = self.connection.pid != os.getpid()  # in a forked child, no request will be finished
            with suppress(spool.SpoolError):
                self.flush()
            super().close()
            wait(() if is_copy else list(self._unfinished))
            self.claims.close()
            self.held.clear()  # after a lost connection, tasks that still run acknowledge messages without a claim


def _is_of_tasks(consumer: Any) -> bool:
    """Return whether a consumer of kombu is that of a worker, which passes tasks to a pool."""
    return getattr(getattr(consumer, "on_message", None), "__module__", None) == "celery.worker.consumer.consumer"


def _handled() -> BaseException | None:
    """Return the exception that a caller handles.

    ``sys.exception`` can also return an exception that nobody handles any more: a signal in the middle of Python's
    return from a handler has this effect.
    """
    if (error := sys.exception()) is None or error.__traceback__ is None:
        return None
    frame = sys._getframe()
    while frame is not error.__traceback__.tb_frame:
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return error


def _eta(message: dict[str, Any]) -> float | None:
    """Return the time before which a task must not run. A time without a zone is left to the worker, which knows the
    zone of the application."""
    with suppress(KeyError, ValueError, TypeError):
        moment = datetime.fromisoformat((message.get("headers") or {})["eta"])
        if moment.tzinfo is not None and moment.timestamp() > 0:
            return moment.timestamp()
    return None
