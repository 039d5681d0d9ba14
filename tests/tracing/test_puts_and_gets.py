"""Spans of puts and gets in one process, and the trace context in the headers."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.trace import SpanKind, StatusCode

import spool
from spool.tracing.spans import TRACEPARENT, TRACESTATE, read_context
from tests.clocks import until
from tests.tracing.spans import Recorder, id_of, linked, parent_of, trace_of, traceparent

CONTEXT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


# -- a put ------------------------------------------------------------------------------------------------------------


def in_transaction(space: spool.Space) -> list[str]:
    with space.transaction() as tx:
        return [tx.put("orders", b"one")]


def many_in_transaction(space: spool.Space) -> list[str]:
    with space.transaction():
        return space.put_many("orders", ["one"])


def submitted_in_transaction(space: spool.Space) -> list[str]:
    with space.transaction() as tx:
        future = tx.submit("orders", "one")
    return [future.result()]


PUTS: dict[str, Callable[[spool.Space], list[str]]] = {
    "put": lambda space: [space.put("orders", b"one")],
    "put of a text": lambda space: [space.put("orders", "one", headers={"tenant": "acme"})],
    "put with a key": lambda space: [space.put("orders", b"one", deduplication_key="k")],
    "put of a large body": lambda space: [space.put("orders", bytes(9_000_000))],
    "put_many": lambda space: space.put_many("orders", [b"one"]),
    "submit": lambda space: [space.submit("orders", b"one").result()],
    "submit with a key": lambda space: [space.submit("orders", b"one", deduplication_key="k").result()],
    "put in a transaction": in_transaction,
    "put_many in a transaction": many_in_transaction,
    "submit in a transaction": submitted_in_transaction,
}


@pytest.mark.parametrize("put", PUTS)
def test_each_kind_of_put_has_one_span_and_carries_its_context(put: str, space: spool.Space, recorder: Recorder):
    with recorder.tracer.start_as_current_span("request") as request:
        [message_id] = PUTS[put](space)
    until(lambda: recorder.all("send orders"))  # (another thread ends the span of a ``submit``)
    span = recorder.one("send orders")
    assert (span.kind, parent_of(span)) == (SpanKind.PRODUCER, request.get_span_context().span_id)
    assert dict(span.attributes or {}) == {
        "messaging.system": "xaspool", "messaging.destination.name": "orders", "messaging.operation.name": "send",
        "messaging.operation.type": "send", "messaging.message.id": message_id,
    }  # fmt: skip
    message = space.get("orders", transaction=None)
    assert message.headers[TRACEPARENT] == traceparent(span)
    assert set(message.headers) <= {TRACEPARENT, "tenant"}
    assert "receive orders" not in recorder.names, "the get had no span around it"


def test_a_batch_has_one_span_and_one_link(space: spool.Space, recorder: Recorder) -> None:
    with recorder.tracer.start_as_current_span("request"):
        space.put_many("orders", ["one", "two", "three"])
        taken = space.get_many("orders", 5)
    sent, received = recorder.one("send orders"), recorder.one("receive orders")
    for span in (sent, received):
        assert span.attributes["messaging.batch.message_count"] == 3
        assert "messaging.message.id" not in span.attributes
    assert {message.headers[TRACEPARENT] for message in taken} == {traceparent(sent)}
    assert linked(received) == [id_of(sent)]


def test_a_failed_put_has_the_error(space: spool.Space, recorder: Recorder) -> None:
    with recorder.tracer.start_as_current_span("request"), pytest.raises(spool.QueueNotFound):
        space.put("nowhere", "x")
    span = recorder.one("send nowhere")
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == "spool.errors.QueueNotFound"
    assert [event.name for event in span.events] == ["exception"]


def test_the_context_that_the_caller_sets_is_kept_and_linked(space: spool.Space, recorder: Recorder) -> None:
    with recorder.tracer.start_as_current_span("request"):
        space.put("orders", "x", headers={TRACEPARENT: CONTEXT})
        space.put("next", "x", headers={TRACESTATE: "a=b"})
    assert dict(space.get("orders").headers) == {TRACEPARENT: CONTEXT}
    assert dict(space.get("next").headers) == {TRACESTATE: "a=b"}
    span = recorder.one("send orders")
    assert (span.kind, linked(span)) == (SpanKind.CLIENT, [0xB7AD6B7169203331])


@pytest.mark.parametrize(
    ("limits", "fits"), [({"max_headers": 1}, False), ({"max_headers_bytes": 70}, False), ({"max_headers": 2}, True)]
)
def test_a_message_without_room_for_the_context_is_put_without_it(
    limits: dict[str, int], fits: bool, tmp_path: Path, recorder: Recorder
) -> None:
    with spool.create(tmp_path / "small", **limits) as space:  # type: ignore[arg-type]
        space.create_queue("orders")
        with recorder.tracer.start_as_current_span("request"):
            space.put("orders", "x", headers={"tenant": "acme"})
        assert (TRACEPARENT in space.get("orders").headers) is fits
    assert recorder.one("send orders").kind is (SpanKind.PRODUCER if fits else SpanKind.CLIENT)


@pytest.mark.parametrize("headers", [{"a": 1}, 7, {"a": "\udcff"}])
def test_headers_that_a_put_refuses_are_refused_as_before(
    headers: Any, space: spool.Space, recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(spool.InvalidArgument) as before:
        space.put("orders", "x", headers=headers)
    with recorder.tracer.start_as_current_span("request"), pytest.raises(spool.InvalidArgument) as traced:
        space.put("orders", "x", headers=headers)
    assert str(traced.value) == str(before.value)
    assert not caplog.records


# -- a get ------------------------------------------------------------------------------------------------------------


def consumed(space: spool.Space) -> spool.Message:
    for tx, message in space.consume("orders", timeout=0):
        tx.commit()
        return message
    raise AssertionError


def taken_in_transaction(space: spool.Space) -> spool.Message:
    with space.transaction():
        return space.get("orders")


@pytest.mark.parametrize(
    "get",
    [
        lambda space: space.get("orders"),
        lambda space: space.get_many("orders", 1)[0],
        lambda space: space.transaction().get("orders"),
        taken_in_transaction,
        consumed,
    ],
    ids=["get", "get_many", "get of a transaction", "get in a transaction", "consume"],
)
def test_each_kind_of_get_has_one_span_with_a_link_to_the_put(
    get: Callable[[spool.Space], spool.Message], space: spool.Space, recorder: Recorder
) -> None:
    with recorder.tracer.start_as_current_span("producer"):
        space.put("orders", "x")
    with recorder.tracer.start_as_current_span("consumer") as consumer:
        message = get(space)
    span = recorder.one("receive orders")
    assert (span.kind, parent_of(span)) == (SpanKind.CLIENT, consumer.get_span_context().span_id)
    assert linked(span) == [id_of(recorder.one("send orders"))]
    assert span.attributes["messaging.message.id"] == message.id
    assert span.attributes["messaging.operation.type"] == "receive"


def test_a_get_without_a_message_is_no_error_and_its_span_has_the_wait(space: spool.Space, recorder: Recorder) -> None:
    with recorder.tracer.start_as_current_span("consumer"), pytest.raises(spool.Empty):
        space.get("orders", timeout=0.2)
    span = recorder.one("receive orders")
    assert span.status.status_code is StatusCode.UNSET
    assert span.attributes["messaging.batch.message_count"] == 0
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.end_time - span.start_time > 150_000_000


def test_a_request_and_its_reply_are_one_trace(space: spool.Space, recorder: Recorder) -> None:
    worker = threading.Thread(target=lambda: space.work("orders", lambda message: "done", stop=stop))
    stop = threading.Event()
    worker.start()
    with recorder.tracer.start_as_current_span("client"):
        assert space.request("orders", "x").body == "done"
    stop.set()
    worker.join()
    sent, processed, received = (
        recorder.one(f"{name}") for name in ("send orders", "process orders", "receive replies")
    )
    assert parent_of(processed) == id_of(sent)
    assert linked(received) == [id_of(processed)], "the reply carries the context of the call"
    assert len({trace_of(span) for span in (sent, processed, received)}) == 1


# -- asyncio ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("put", ["put", "put with a key", "put in a transaction", "put with a key in a transaction"])
async def test_tasks_put_and_get_with_spans(put: str, space: spool.Space, recorder: Recorder) -> None:
    options: Any = {"deduplication_key": "k"} if "key" in put else {}

    async with spool.aio.open(space.path) as tasks:
        with recorder.tracer.start_as_current_span("producer"):
            if "transaction" in put:
                async with tasks.transaction():
                    await tasks.put("orders", "x", **options)
            else:
                await tasks.put("orders", "x", **options)
        with recorder.tracer.start_as_current_span("consumer"):
            async with tasks.transaction() as tx:
                await tx.get("orders", timeout=5)
            with pytest.raises(spool.Empty):
                await tasks.get("orders", timeout=0.1)
    assert sorted(recorder.names) == ["consumer", "producer", "receive orders", "receive orders", "send orders"]
    received, empty = recorder.all("receive orders")
    sent, producer, consumer = (recorder.one(name) for name in ("send orders", "producer", "consumer"))
    assert (parent_of(sent), parent_of(received), parent_of(empty)) == (id_of(producer), *[id_of(consumer)] * 2)
    assert (linked(received), linked(empty)) == ([id_of(sent)], [])


# -- hostile headers --------------------------------------------------------------------------------------------------

HOSTILE = {
    "empty": "",
    "no context": "hello",
    "huge": "00-" + "a" * 100_000,
    "control characters": CONTEXT[:-1] + "\n",
    "a trailing line": CONTEXT + "\n",
    "a blank": " " + CONTEXT,
    "capitals": CONTEXT.upper(),
    "the version that is forbidden": "ff" + CONTEXT[2:],
    "a longer form of version 00": CONTEXT + "-more",
    "no trace": "00-" + "0" * 32 + "-b7ad6b7169203331-01",
    "no span": "00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01",
    "digits of another script": CONTEXT.replace("0", "٠"),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_context_is_ignored(text: str, tmp_path: Path, recorder: Recorder, caplog: pytest.LogCaptureFixture):
    with spool.create(tmp_path / "wide", max_headers_bytes=1 << 20) as space:
        space.create_queue("orders")
        space.create_queue("next")
        space.put_many("orders", ["one", "two"], headers={TRACEPARENT: text, TRACESTATE: "a=b,\x00"})
        with recorder.tracer.start_as_current_span("consumer"):
            space.get("orders")
        assert space.work("orders", lambda message: space.put("next", "x"), once=True).delivered == 1
    assert recorder.one("receive orders").links == ()
    assert parent_of(recorder.one("process orders")) is None
    assert not caplog.records


def test_a_later_version_and_a_state_are_read() -> None:
    found = read_context({TRACEPARENT: "01" + CONTEXT[2:] + "-more", TRACESTATE: "vendor=x"})
    assert (found.trace_id, found.is_remote) == (0x0AF7651916CD43DD8448EB211C80319C, True)
    assert found.trace_state.to_header() == "vendor=x"
    for state in ("x" * 600, "a=\x07", "a=ü"):
        found = read_context({TRACEPARENT: CONTEXT, TRACESTATE: state})
        assert not found.trace_state
