"""The transport of kombu for ``xaspool://`` URLs: a connection is an open queue space."""

import importlib
import os
import sys
import time
from multiprocessing.connection import wait
from typing import Any

from kombu.transport import virtual
from kombu.utils.functional import LRUCache

import spool
from celery_xaspool import refuse_old_celery
from celery_xaspool.bindings import Bindings
from celery_xaspool.broker_options import BROKER, check_queue_options, name_ignored
from celery_xaspool.channel import Channel, log
from celery_xaspool.names import BINDINGS, TRANSIENT, TRANSIENT_OPTIONS, space_path

_TRANSIENT_QUEUES = 10_000  # the most names of transient queues that a connection remembers
_AGAIN_SECONDS = 1.0  # after this time, a delivery that has failed is repeated
_DELIVERIES_A_TICK = 16  # of a channel, so that the results of the pool and the commands of operators wait little

refuse_old_celery()


class Transport(virtual.Transport):
    """Connections to one space. ``transport_options``: ``queue`` and ``native_eta``."""

    Channel = Channel
    can_parse_url = True
    driver_type = driver_name = "xaspool"
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"])
    )
    connection_errors = (*virtual.Transport.connection_errors, spool.NotOpen, spool.SpaceStopped)
    channel_errors = (*virtual.Transport.channel_errors, spool.QueueNotFound, spool.QueueNotEmpty)

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.path = space_path(client.hostname)
        name_ignored("broker_transport_options", client.transport_options, BROKER)
        check_queue_options("broker_transport_options", client.transport_options.get("queue", {}))
        self.native_eta = bool(client.transport_options.get("native_eta", True))
        # How long a message may wait in a transient queue, in seconds. Each client of a worker has such a queue.
        self.transient: dict[str, float] = LRUCache(limit=_TRANSIENT_QUEUES)
        self.durable: dict[str, dict[str, Any]] = {}  # the options of declared durable queues, by their names here
        self.loop: Any = None
        self._is_failing, self._timer = False, None  # whether the last delivery has failed, and until the next one
        self.arrivals: spool.QueueArrivals | None = None  # of the queues that the channels consume
        if "celery.worker" in sys.modules:
            _allow_mingle_and_gossip()
            for module in ("attempts", "causes"):
                importlib.import_module(f"celery_xaspool.{module}")

    def establish_connection(self) -> Any:
        self.pid, self.space = os.getpid(), spool.shared(self.path)
        self.space.ensure_queue(TRANSIENT, **TRANSIENT_OPTIONS)
        self.space.ensure_queue(BINDINGS, role="state")
        self.bindings = Bindings(self.space)
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        if self.pid != os.getpid():
            return  # a forked child has a copy of its parent's connection
        super().close_connection(connection)
        self.loop = None
        self.bindings.close()

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        return uri

    def driver_version(self) -> str:
        return spool.__version__

    # -- deliveries --------------------------------------------------------------------------------------------------

    def follow_queues(self) -> None:
        """Watch the queues that the channels consume now, instead of the earlier ones."""
        if self.pid != os.getpid():
            return  # a forked child shares the event loop's descriptors with its parent
        arrivals, self.arrivals = self.arrivals, None
        if arrivals is not None:
            if self.loop is not None:
                self.loop.remove(arrivals)
            arrivals.close()
        if queues := {queue for channel in self.channels for queue in channel.consumed()}:
            self.arrivals = self.space.arrivals(queues)
            if self.loop is not None:
                self.loop.add_reader(self.arrivals, self._deliver_some)

    def wake(self) -> None:
        """Let the thread that delivers messages look at the channels again."""
        if (arrivals := self.arrivals) is not None:
            arrivals.wake()

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver one message. Raises TimeoutError if none comes in ``timeout`` seconds."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            if self.arrivals is not None:
                self.arrivals.ready()
            if any(channel.deliver(1) for channel in list(self.channels)):
                return
            seconds = None if until is None else until - time.monotonic()
            if seconds is not None and seconds <= 0:
                raise TimeoutError("no message came in time")
            wait([] if self.arrivals is None else [self.arrivals.fileno()], seconds)

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        # Deliveries happen in a callback of a descriptor and not in a tick of the loop: the pool looks for work in a
        # tick, too, in any order, and would sleep on a task that a later tick delivers.
        self.loop = loop
        self.follow_queues()

    def _deliver_some(self) -> None:
        if (arrivals := self.arrivals) is None:
            return
        arrivals.ready()
        # The pool solo runs a task during its delivery, and acknowledges it in the next tick.
        most = 1 if "celery.concurrency.solo" in sys.modules else _DELIVERIES_A_TICK
        # Commands come first: a worker opens their channel after the channel of its tasks.
        try:
            delivered = [channel.deliver(most) for channel in reversed(list(self.channels))]
        except spool.SpaceStopped:
            raise
        except (spool.DiskFailure, spool.SystemFailure) as error:  # an exception would end the worker
            if not self._is_failing:
                log.error("no message can be taken, so the worker tries again each second: %s", error)
            self._is_failing = True
            if self._timer is None:
                self._timer = self.loop.call_later(_AGAIN_SECONDS, self._deliver_again)
            return
        self._is_failing = False
        if max(delivered, default=0) >= most:
            arrivals.wake()  # more messages may be ready

    def _deliver_again(self) -> None:
        self._timer = None
        self.wake()


def _allow_mingle_and_gossip() -> None:
    """Name this transport in Celery's lists of transports that can broadcast."""
    for module, name in (("mingle", "Mingle"), ("gossip", "Gossip")):
        if (found := sys.modules.get(f"celery.worker.consumer.{module}")) is not None:
            getattr(found, name).compatible_transports.add(Transport.driver_type)
