"""Without a span, without an SDK and without OpenTelemetry nothing changes; a faulty tracer loses no message."""

import logging
from concurrent.futures import Future
from importlib import import_module
from typing import Any
from unittest import mock

import pytest
from opentelemetry import context, trace
from opentelemetry.sdk.trace import SpanProcessor

import spool
import spool.aio
from spool import tracing
from spool.tracing.calls import begin_put
from spool.tracing.methods import METHODS, replace_methods
from tests.tracing.spans import Recorder, run
from tests.unspeakable import Unspeakable

PROGRAM = """
import sys
import spool
{first}
with spool.create(sys.argv[1]) as space:
    space.create_queue("replies")
    space.create_queue("orders", reply_queue="replies")
    space.create_queue("next")
    space.put("orders", b"one")
    space.put_many("orders", ["two"], headers={{"tenant": "acme"}})
    space.submit("orders", b"three").result()
    with space.transaction():
        space.put("orders", b"four")
    print([dict(message.headers) for message in space.browse("orders")])
    space.get("orders")
    space.work("orders", lambda message: space.put("next", b"more"), once=True)
    print([dict(m.headers) for queue in ("next", "replies") for m in space.browse(queue)])
print(sorted(name for name in sys.modules if name.startswith("opentelemetry")){last})
"""


@pytest.mark.every(3)
@pytest.mark.parametrize("imported", ["nothing", "the API", "an SDK"])
def test_stored_headers_are_the_same(imported: str, tmp_path: Any) -> None:
    first = {
        "nothing": "",
        "the API": "import opentelemetry.trace",
        "an SDK": "from opentelemetry import trace; from opentelemetry.sdk.trace import TracerProvider\n"
        "trace.set_tracer_provider(TracerProvider())",
    }[imported]
    program = PROGRAM.format(first=first, last="" if imported == "nothing" else "[:0]")
    printed = run("-c", program, str(tmp_path / "space"))
    put, worked, modules = map(eval, printed.splitlines())
    assert put == [{}, {"tenant": "acme"}, {}, {}]
    assert modules == []
    if imported != "an SDK":  # (with an SDK, the worker's calls have spans, and the puts of the function carry them on)
        assert worked == [{}, {}, {}, {"tenant": "acme"}, {}, {}]


LATE = """
import sys
import spool
from spool.tracing import API, instrument
put = spool.Space.put
with spool.create(sys.argv[1]) as space:
    space.create_queue("orders")
    instrument()
    print(API in sys.modules, "spool.tracing.methods" in sys.modules, spool.Space.put is put)
    from opentelemetry import trace
    with trace.use_span(trace.NonRecordingSpan(trace.SpanContext(1 << 100, 1, is_remote=False))):
        space.put("orders", "before")
        with spool.open(sys.argv[1]):
            space.put("orders", "after")
    print(spool.Space.put is put, [sorted(message.headers) for message in space.browse("orders")])
"""


def test_an_opening_chooses_whether_calls_have_spans(tmp_path: Any) -> None:
    """Until an opening finds OpenTelemetry, the methods are the plain ones, without a check."""
    printed = run("-c", LATE, str(tmp_path / "space")).splitlines()
    assert printed == ["False False True", "False [[], ['traceparent']]"]


def test_each_method_of_the_table_is_replaced_once() -> None:
    for module, name in (place.split(":") for place in METHODS):
        assert hasattr(import_module(module), name)
    replace_methods()
    replaced = spool.Space.replace
    replace_methods()
    assert spool.Space.replace is replaced
    assert spool.Space.replace.__wrapped__.__globals__["__name__"] == "spool.space"


def test_a_program_with_the_api_alone_processes_a_message_with_a_context(space: spool.Space) -> None:
    headers = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    space.put("orders", "x", headers=headers)
    space.work("orders", lambda message: space.put("next", "more"), once=True)
    assert dict(space.get("next").headers) == {}
    assert dict(space.get("replies").headers) == headers, "as headers travel without OpenTelemetry"


def test_a_provider_that_is_configured_after_the_first_put_has_the_spans(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    space.put("orders", "before")
    recorder = Recorder()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", recorder.provider)
    with recorder.tracer.start_as_current_span("client"):
        space.put("orders", "after")
    assert recorder.names == ["send orders", "client"]


def test_a_span_that_is_not_sampled_is_not_recorded_and_stays_so(space: spool.Space, recorder: Recorder) -> None:
    unsampled = trace.NonRecordingSpan(trace.SpanContext(1 << 100, 1, is_remote=False))
    with trace.use_span(unsampled):
        space.put("orders", "x")
        space.get("orders")
        space.put("orders", "x")
    space.work("orders", lambda message: space.put("next", "more"), once=True)
    assert recorder.names == []
    assert space.get("next").headers["traceparent"].startswith(f"00-{1 << 100:032x}-")
    assert space.get("replies").headers["traceparent"].endswith("-00")


def test_an_exporter_that_puts_does_not_trace_itself(space: spool.Space, recorder: Recorder) -> None:
    class Putting(SpanProcessor):
        def on_end(self, span: Any) -> None:
            token = context.attach(context.set_value(context._SUPPRESS_INSTRUMENTATION_KEY, True))
            space.put("next", span.name)
            context.detach(token)

    recorder.provider.add_span_processor(Putting())
    with recorder.tracer.start_as_current_span("client"):
        space.put("orders", "x")
    assert [message.body for message in space.browse("next")] == ["send orders", "client"]


# -- a faulty tracer --------------------------------------------------------------------------------------------------


class Faulty:
    """Raises in one of the calls that a span or tracer gets."""

    def __init__(self, span: Any, broken: str) -> None:
        self._span, self._broken = span, broken

    def __getattr__(self, name: str) -> Any:
        if name == self._broken:
            raise RuntimeError("a faulty tracer")
        return getattr(self._span, name)


BROKEN = ["get_tracer", "start_span", "set_attribute", "set_status", "record_exception", "end", "get_span_context"]


@pytest.mark.parametrize("broken", BROKEN)
def test_a_faulty_tracer_loses_nothing_and_is_logged_once(
    broken: str,
    space: spool.Space,
    recorder: Recorder,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Tracer:
        def start_span(self, *args: Any, **options: Any) -> Any:
            return Faulty(recorder.tracer.start_span(*args, **options), broken)

    provider = mock.Mock(get_tracer=lambda name: Faulty(Tracer(), broken))
    if broken == "get_tracer":
        provider.get_tracer = mock.Mock(side_effect=RuntimeError("a faulty tracer"))

    def fail(message: spool.Message) -> str:
        if not message.attempts:
            raise ValueError
        return "done"

    with recorder.tracer.start_as_current_span("client"):
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
        monkeypatch.setattr(tracing, "_has_failed", False)
        caplog.set_level(logging.WARNING, "spool")
        space.put("orders", "1")
        space.put_many("orders", ["2", "3"])
        space.submit("orders", "4").result()
        with space.transaction() as tx:
            tx.put("orders", "5")
            tx.put("orders", "6")
        with pytest.raises(spool.QueueNotFound):
            space.put("nowhere", "x")
        assert [message.body for message in space.get_many("orders", 3)] == ["1", "2", "3"]
        assert space.get("orders").body == "4"
        with pytest.raises(spool.QueueNotFound):
            space.get("nowhere")
        for _ in range(2):
            summary = space.work("orders", fail, once=True)
    assert summary.delivered == 2
    assert [message.body for message in space.browse("replies")] == ["done", "done"]
    failures = [record.getMessage() for record in caplog.records if "OpenTelemetry" in record.getMessage()]
    assert failures == ["OpenTelemetry failed, so spans may be missing: RuntimeError: a faulty tracer"]


@pytest.mark.parametrize("broken", ["attach", "get_current"])
@pytest.mark.parametrize("error", [RuntimeError("a faulty tracer"), Unspeakable()])
def test_a_faulty_context_loses_nothing(
    broken: str, space: spool.Space, recorder: Recorder, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(tracing, "_has_failed", False)
    with recorder.tracer.start_as_current_span("a caller"), monkeypatch.context() as patch:
        patch.setattr(context._RUNTIME_CONTEXT, broken, mock.Mock(side_effect=error))
        for number in range(4):
            space.put("orders", number)
        assert space.get("orders").body == 0
        assert [message.body for message in space.get_many("orders", 1)] == [1]
        with space.transaction() as transaction:
            assert transaction.get("orders").body == 2
            assert [message.body for message in transaction.get_many("orders", 1)] == [3]
    assert space.stats("orders").dequeued == 4


def test_a_future_that_is_cancelled_ends_its_span(space: spool.Space, recorder: Recorder) -> None:
    """``begin_put`` adds its callback to the future, however the future ends."""
    future = Future[str]()
    with recorder.tracer.start_as_current_span("a caller"):
        send = begin_put(space.engine.config(), "orders", 1, {})
        assert send is not None
        with send:
            send.done(future)
    assert future.cancel()
    assert recorder.one("send orders").status.status_code is trace.StatusCode.ERROR
