"""Topics of Kafka as services, against librdkafka's own mock of a cluster: three brokers in this process."""

import gc
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from forwarder.services import ServiceError, parse
from spool.model.codecs import decode
from spool.workers.outcome import Outcome, Rejected, Replied
from tests.forwarder.test_services import assert_not_reached, call, request

kafka = pytest.importorskip("confluent_kafka")
PATIENT_SECONDS = 30.0


def threads_of_clients() -> int:
    """Return the number of librdkafka's threads in this process."""
    found = 0
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            found += (task / "comm").read_text().startswith("rdk:")
    return found


def expect_threads(at_most: int) -> None:
    """Wait until there are no more: a client ends in a thread of its own."""
    deadline = time.monotonic() + PATIENT_SECONDS
    while (count := threads_of_clients()) > at_most:
        assert time.monotonic() < deadline, f"{count} threads, {at_most} were expected"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def brokers() -> Iterator[str]:
    """The addresses of a mock cluster, which lives as long as its producer."""
    cluster = kafka.Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 3, "log_level": 0})
    found = cluster.list_topics(timeout=PATIENT_SECONDS).brokers.values()
    yield ",".join(f"{broker.host}:{broker.port}" for broker in found)
    del cluster
    expect_threads(0)


def records(brokers: str, topic: str, count: int) -> list[Any]:
    consumer = kafka.Consumer({"bootstrap.servers": brokers, "group.id": "tests", "log_level": 0})
    parts = consumer.list_topics(topic, timeout=PATIENT_SECONDS).topics[topic].partitions
    consumer.assign([kafka.TopicPartition(topic, part, 0) for part in parts])
    deadline, found = time.monotonic() + PATIENT_SECONDS, []
    while len(found) < count and time.monotonic() < deadline:
        found += [record for record in consumer.consume(count, 0.2) if record.error() is None]
    consumer.close()
    return found


def value(outcome: Outcome) -> Any:
    assert isinstance(outcome, Replied), outcome
    return decode(outcome.body, outcome.codec)


def test_a_message_becomes_a_record_and_its_place_the_reply(brokers: str) -> None:
    sent = request(b"\0body", content_type="text/csv", correlation_id="c-1", headers={"Tenant": "ä"}, group="g")
    place = value(call(parse(f"kafka://{brokers}/orders"), sent))
    (record,) = records(brokers, "orders", 1)
    assert place == {"topic": "orders", "partition": record.partition(), "offset": record.offset()}
    assert (record.value(), record.key()) == (b"\0body", b"g"), "the group is the key, where none is named"
    assert dict(record.headers()) == {
        "Tenant": "ä".encode(), "Content-Type": b"text/csv", "Idempotency-Key": b"0" * 31 + b"1",
        "Spool-Queue": b"orders", "Spool-Correlation-Id": b"c-1",
    }  # fmt: skip


def test_a_field_is_the_key_if_the_route_says_so(brokers: str) -> None:
    caller = parse(f"kafka://{brokers}/keyed?key=header.account").open()
    for headers in ({"account": "7"}, {}):
        value(caller(request(headers=headers)))
    caller.close()
    assert sorted(str(record.key()) for record in records(brokers, "keyed", 2)) == ["None", "b'7'"]


def test_many_are_under_way_together_and_each_waits_for_its_own_report(brokers: str) -> None:
    caller = parse(f"kafka://{brokers}/many?linger.ms=20").open()
    with ThreadPoolExecutor(64) as threads:
        places = [value(outcome) for outcome in threads.map(caller, [request(b"%d" % i) for i in range(500)])]
    caller.close()
    assert len({(place["partition"], place["offset"]) for place in places}) == 500
    assert sorted(int(record.value()) for record in records(brokers, "many", 500)) == list(range(500))


def test_q12_brokers_that_are_not_there_burn_no_attempt_and_are_told(brokers: str) -> None:
    assert_not_reached(call(parse("kafka://127.0.0.1:9/orders", timeout=0.5)), "127.0.0.1:9")


def test_a_record_that_is_too_large_is_final(brokers: str) -> None:
    caller = parse(f"kafka://{brokers}/orders?message.max.bytes=2000").open()
    outcome = caller(request(bytes(5000)))
    assert isinstance(outcome, Rejected)
    assert "MSG_SIZE_TOO_LARGE" in outcome.reason
    caller.close()


def test_a_producer_that_cannot_go_on_is_replaced(brokers: str) -> None:
    caller: Any = parse(f"kafka://{brokers}/again").open()
    first = caller._producer
    fatal = kafka.KafkaError(kafka.KafkaError._FATAL, "for the test", fatal=True)
    assert_not_reached(caller._failed(first, fatal))
    assert value(caller(request()))["topic"] == "again"
    assert caller._producer is not first
    caller.close()


def test_settings_may_lie_in_a_file(brokers: str, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# secrets\n\nmessage.max.bytes = 2000\n")
    assert isinstance(call(parse(f"kafka://{brokers}/orders?config={file}"), request(bytes(5000))), Rejected)
    file.write_text("nonsense\n")
    with pytest.raises(ServiceError, match="'nonsense' is not name=value"):
        parse(f"kafka://{brokers}/orders?config={file}").check()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("bootstrap.servers", "the URL has the brokers"),
        ("metadata.broker.list", "the URL has the brokers"),
        ("enable.idempotence", "the producer is always idempotent"),
        ("message.timeout.ms", "the time is the timeout of the service"),
        ("delivery.timeout.ms", "the time is the timeout of the service"),
    ],
)
def test_a_property_that_the_service_sets_is_refused_wherever_it_is_given(name: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"{name}=1\n")
    for given in (f"{name}=1", f"config={file}"):
        with pytest.raises(ServiceError, match=f"cannot set {re.escape(name)}: {why}"):
            parse(f"kafka://127.0.0.1:9/orders?{given}").check()


def test_a_caller_that_is_closed_leaves_no_threads_and_no_files(brokers: str) -> None:
    """The threads end without garbage collection; otherwise they could last as long as the process."""
    before = threads_of_clients()
    gc.disable()
    try:
        for topic in ("orders", "others"):
            assert isinstance(call(parse(f"kafka://{brokers}/{topic}")), Replied)
        expect_threads(before)
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("kafka:", "kafka://host:port"),
        ("kafka://host:1", "kafka://host:port"),
        ("kafka://host:1/", "kafka://host:port"),
        ("kafka://host:1/a/b", "kafka://host:port"),
        ("kafka://host:1/t?key=body", "no field 'body'"),
        ("kafka://host:1/t?what", "name=value&name=value"),
        ("kafka://host:1/t?no.such=1", 'No such configuration property: "no.such"'),
        ("kafka://host:1/t?acks=1", "acks"),
        ("kafka://host:1/t?config=/no/such/file", "/no/such/file"),
    ],
)
def test_a_wrong_destination_is_refused_before_any_work(url: str, text: str) -> None:
    with pytest.raises(ServiceError) as caught:
        parse(url).check()
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
