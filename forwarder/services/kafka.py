"""A topic of Apache Kafka as a service. A message is done when the cluster has reported the record's delivery.

When librdkafka's idempotent producer repeats a request, the topic gets no second record. If the forwarder dies before
its commit, the next forwarder produces the message again, with the same header ``Idempotency-Key``.
"""

import logging
import os
import re
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from forwarder.services.service import FIELD_NAMES, MAX_REPLY, Request, Service, ServiceError, field_of, is_field
from forwarder.time_limits import GRACE_SECONDS
from spool.model.message import Message
from spool.model.text import one_line
from spool.workers.outcome import Outcome, Rejected, Retried, of_value

if TYPE_CHECKING:
    import confluent_kafka

THREADS = 64
"""The number of records that one task sends at a time. The producer batches concurrent records."""

REFUSALS = frozenset({"MSG_SIZE_TOO_LARGE", "INVALID_MSG_SIZE", "INVALID_RECORD", "INVALID_MSG", "_BAD_MSG"})
"""Errors of the record. All other errors are errors of the cluster, of the topic or of the access rights."""

_POLL_SECONDS = 1.0
_SETTINGS_OF_THE_SERVICE = ("key", "config")
_BROKERS = "the URL has the brokers, kafka://host:port,host:port/topic"
_TIME = "the time is the timeout of the service"
_SET_BY_THE_SERVICE = {
    "bootstrap.servers": _BROKERS,
    "metadata.broker.list": _BROKERS,
    "enable.idempotence": "the producer is always idempotent",
    "message.timeout.ms": _TIME,
    "delivery.timeout.ms": _TIME,
}
"""The properties of librdkafka that users cannot set, each with the reason."""


@dataclass(frozen=True)
class KafkaService(Service):
    """`kafka://host:port,host:port/topic?key=FIELD&config=FILE&property=value`; ``target``: the URL without the scheme.

    timeout: the seconds within which a broker has to take a record.
    threads: the number of records that one task sends at a time.
    """

    target: str
    timeout: float = 30.0
    threads: int = THREADS

    @property
    def shown_name(self) -> str:
        return f"kafka:{self.target.partition('?')[0].rpartition('@')[2]}"

    def open(self) -> "KafkaCaller":
        """Return the caller. If the brokers cannot be reached, this method succeeds and the first call fails."""
        url = f"kafka:{self.target}"
        if (found := re.fullmatch(r"//([^/?]+)/([\w.-]{1,249})(?:\?(.*))?", self.target, re.ASCII)) is None:
            raise ServiceError(f"{url!r} is no URL of a topic: write kafka://host:port,host:port/topic")
        brokers, topic, query = found.groups()
        try:
            given = dict(parse_qsl(query or "", keep_blank_values=True, strict_parsing=bool(query)))
        except ValueError:
            raise ServiceError(f"{url!r}: the part after the ? is not name=value&name=value: correct it") from None
        key = given.get("key", "group")
        if not is_field(key):
            raise ServiceError(f"{url!r}: a message has no field {key!r} for a key; there are {FIELD_NAMES}")
        own = _properties(given["config"]) if "config" in given else {}
        own |= {name: value for name, value in given.items() if name not in _SETTINGS_OF_THE_SERVICE}
        if wrong := next((name for name in own if name in _SET_BY_THE_SERVICE), None):
            raise ServiceError(f"{url!r} cannot set {wrong}: {_SET_BY_THE_SERVICE[wrong]}; leave the property out")
        settings: dict[str, Any] = {
            "client.id": "xaspool",
            "log_level": 7 if os.environ.get("SPOOL_DEBUG") else 0,  # librdkafka's errors are the reasons of failures
            **own,
            "bootstrap.servers": brokers,
            "enable.idempotence": True,
            "message.timeout.ms": max(1, round(self.timeout * 1000)),
        }
        return KafkaCaller(settings, topic, key, self.timeout)


def _properties(path: str) -> dict[str, str]:
    """Read a properties file of Kafka: lines `name=value`, comments after `#`."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.strip() for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise ServiceError(f"the settings of Kafka's producer cannot be read: {error}") from None
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    for name, equals, _ in pairs:
        if not equals:
            raise ServiceError(f"{path}: {name!r} is not name=value: correct the line")
    return {name.strip(): value.strip() for name, _, value in pairs}


class KafkaCaller:
    """Produces each record, and waits for its delivery report."""

    def __init__(self, settings: dict[str, Any], topic: str, key: str, timeout: float) -> None:
        self._settings, self._topic, self._key, self._timeout = settings, topic, key, timeout
        self._mutex = threading.Lock()
        self._producer: _Producer | None = _Producer(settings)

    def __call__(self, request: Request) -> Outcome:
        import confluent_kafka

        with self._mutex:
            producer = self._producer = self._producer or _Producer(self._settings)
        message = request.message
        try:
            key = field_of(message, self._key)
            report = producer.produce(self._topic, request.raw, None if key is None else key.encode(), headers(message))
            place = report.result(self._timeout + GRACE_SECONDS)
        except confluent_kafka.KafkaException as failure:
            return self._failed(producer, failure.args[0])
        except (BufferError, TimeoutError) as error:
            return Retried(f"no report of the record's delivery ({error})", counted=False)
        return of_value({"topic": place.topic(), "partition": place.partition(), "offset": place.offset()}, MAX_REPLY)

    def _failed(self, producer: "_Producer", error: "confluent_kafka.KafkaError") -> Outcome:
        if error.fatal():  # this producer cannot be used any more
            with self._mutex:
                if self._producer is producer:
                    self._producer = None
            producer.close()
        reason = one_line(f"{error.name()}: {error.str()}")
        if error.name() in REFUSALS:
            return Rejected(reason)
        [trouble] = producer.trouble
        return Retried(one_line(f"{reason} ({trouble})" if trouble else reason), counted=False)

    def close(self) -> None:
        """End the producer. No record is in progress, because each call waits for the delivery report of its record."""
        with self._mutex:
            producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()


class _Producer:
    """A producer, and the thread that handles its delivery reports."""

    def __init__(self, settings: dict[str, Any]) -> None:
        try:
            import confluent_kafka
        except ImportError:
            raise ServiceError(
                "services in Kafka need confluent-kafka: install xaspool with the extra [kafka] "
                "(spool-admin docs install)"
            ) from None
        # The last error of the brokers. The callback does not refer to this object, because a reference cycle would
        # keep the producer's threads and files until the next garbage collection.
        self.trouble = trouble = deque([""], maxlen=1)
        try:
            self._producer = confluent_kafka.Producer(
                {**settings, "error_cb": lambda error: trouble.append(one_line(error.str()))},
                logger=logging.getLogger("spool.forwarder"),
            )
        except (confluent_kafka.KafkaException, ValueError, TypeError) as error:
            text = error.args[0].str() if isinstance(error, confluent_kafka.KafkaException) else error
            raise ServiceError(f"no producer for Kafka can be made: {one_line(text)}: correct the setting") from None
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="spool-kafka", daemon=True)
        self._thread.start()

    def produce(
        self, topic: str, body: bytes, key: bytes | None, headers: list[tuple[str, bytes]]
    ) -> "Future[confluent_kafka.Message]":
        """Begin to produce a record. The returned future has the delivery report, or raises KafkaException."""
        import confluent_kafka

        report: Future[confluent_kafka.Message] = Future()

        def delivered(error: "confluent_kafka.KafkaError | None", place: "confluent_kafka.Message") -> None:
            if error is None:
                report.set_result(place)
            else:
                report.set_exception(confluent_kafka.KafkaException(error))

        self._producer.produce(topic, body, key=key, headers=headers, on_delivery=delivered)
        return report

    def _poll(self) -> None:
        while not self._is_closed.is_set():
            self._producer.poll(_POLL_SECONDS)

    def close(self) -> None:
        """End the thread, which releases the producer."""
        self._is_closed.set()
        self._producer.purge()  # wakes the poll if a record was in progress


def headers(message: Message) -> list[tuple[str, bytes]]:
    """Return the headers of a record: the message's headers, and headers with the message's control fields."""
    said = {
        "Content-Type": message.content_type,
        "Idempotency-Key": message.id,
        "Spool-Queue": message.queue,
        "Spool-Correlation-Id": message.correlation_id,
    }
    own = {**message.headers, **{name: value for name, value in said.items() if value is not None}}
    return [(name, value.encode("utf-8", "replace")) for name, value in own.items()]
