"""Spans of the calls of functions and services: workers in threads and tasks, and the forwarder without Spark."""

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

import spool
from forwarder import Forwarder, Route, ThreadForwarder
from forwarder import forwarder as driver
from forwarder.services import parse
from forwarder.services.python import PythonService
from spool.tracing.spans import TRACEPARENT
from tests.forwarder.rounds import SPARK, in_process
from tests.tracing.spans import Recorder, id_of, linked, parent_of, trace_of, traceparent


def sent(space: spool.Space, recorder: Recorder, body: Any = "x", queue: str = "orders") -> int:
    """Put a message within a span; return the id of the span of the put."""
    with recorder.tracer.start_as_current_span("client"):
        space.put(queue, body)
    return id_of(recorder.all(f"send {queue}")[-1])


def attributes(span: Any) -> dict[str, Any]:
    return {name: value for name, value in span.attributes.items() if not name.startswith("messaging.")}


def test_a_call_is_a_child_of_its_put_and_is_current_in_the_function(space: spool.Space, recorder: Recorder) -> None:
    put, seen = sent(space, recorder), []

    def function(message: spool.Message) -> str:
        seen.append(trace.get_current_span().get_span_context().span_id)
        spool.current_space().put("next", "more")
        return "done"

    space.work("orders", function, once=True)
    span, further = recorder.one("process orders"), recorder.one("send next")
    assert (span.kind, parent_of(span), linked(span), seen) == (SpanKind.CONSUMER, put, [put], [id_of(span)])
    assert attributes(span) == {"xaspool.attempt": 1, "xaspool.outcome": "replied"}
    assert span.status.status_code is StatusCode.UNSET
    assert parent_of(further) == id_of(span)
    assert space.get("next").headers[TRACEPARENT] == traceparent(further)
    assert space.get("replies").headers[TRACEPARENT] == traceparent(span), "the reply continues the trace"


def test_attempts_that_fail_have_the_error_and_their_number(space: spool.Space, recorder: Recorder) -> None:
    put = sent(space, recorder)

    def fail(message: spool.Message) -> None:
        if message.attempts:
            raise spool.Reject("no such article")
        raise ValueError("bad day")

    space.work("orders", fail, once=True)
    space.work("orders", fail, once=True)
    first, second = recorder.all("process orders")
    assert attributes(first) == {"xaspool.attempt": 1, "xaspool.outcome": "retried", "error.type": "ValueError"}
    assert attributes(second)["xaspool.attempt"] == 2
    assert attributes(second)["xaspool.outcome"] == "rejected"
    assert first.status.description == "ValueError: bad day"
    assert second.status.description == "no such article"
    for span in (first, second):
        assert span.status.status_code is StatusCode.ERROR
        assert [event.name for event in span.events] == ["exception"]
        assert parent_of(span) == put
    assert space.get("errors").headers[TRACEPARENT].split("-")[2] == f"{put:016x}", "the message is the same"


def test_a_call_that_takes_too_long_ends_its_span(space: spool.Space, recorder: Recorder) -> None:
    sent(space, recorder)
    hang = threading.Event()
    space.work("orders", lambda message: hang.wait(60), once=True, timeout=0.3)
    span = recorder.one("process orders")
    hang.set()
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "took longer than 0.3 s")
    assert attributes(span)["xaspool.outcome"] == "retried"


@pytest.mark.parametrize("kind", ["coroutine", "function"])
async def test_tasks_call_with_spans_and_link_to_the_span_around_the_worker(
    kind: str, space: spool.Space, recorder: Recorder
) -> None:
    put = sent(space, recorder, "fine")
    sent(space, recorder, "late")

    async with spool.aio.open(space.path) as tasks:

        async def call(message: spool.Message) -> str:
            if message.body == "late":
                await asyncio.sleep(60)
            return await tasks.put("next", "more")

        def plain(message: spool.Message) -> str:
            if message.body == "late":
                raise spool.Retry("later")
            return tasks.sync.put("next", "more")

        with recorder.tracer.start_as_current_span("worker"):
            await tasks.work("orders", call if kind == "coroutine" else plain, once=True, timeout=0.5)
    fine, late = sorted(recorder.all("process orders"), key=lambda span: span.status.status_code.value)
    assert (parent_of(fine), linked(fine)) == (put, [put, id_of(recorder.one("worker"))])
    assert parent_of(recorder.one("send next")) == id_of(fine)
    assert late.status.status_code is StatusCode.ERROR
    assert late.status.description == ("took longer than 0.5 s" if kind == "coroutine" else "later")


# -- services ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def web() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """The URL of a server, and the headers of the requests that it got. The body is the status of the answer."""
    got: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(dict(self.headers))
            self.send_response(int(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.block_on_close = False
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://user:secret@127.0.0.1:{server.server_address[1]}/it?key=secret", got
        server.shutdown()


@pytest.fixture(params=["threads", "rounds"])
def forward(request: pytest.FixtureRequest, space: spool.Space, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run one route: in threads, and in rounds whose tasks run in this process."""
    monkeypatch.setattr(driver, "spark_job", lambda context, chunks, tasks: in_process(chunks))
    monkeypatch.setenv("NO_PROXY", "*")

    def run(service: Any) -> None:
        routes = [Route("orders", service)]
        if request.param == "threads":
            ThreadForwarder(space.path, routes).run(once=True)
        else:
            Forwarder(space.path, routes, SPARK).run(once=True)

    return run


def test_a_web_service_gets_the_context_of_the_request(
    forward: Any, web: tuple[str, list[dict[str, str]]], space: spool.Space, recorder: Recorder
) -> None:
    url, got = web
    put = sent(space, recorder, "200")
    forward(parse(url))
    processed, request = recorder.one("process orders"), recorder.one("POST")
    assert (parent_of(processed), parent_of(request)) == (put, id_of(processed))
    assert attributes(processed) == {"xaspool.attempt": 1, "xaspool.outcome": "replied"}
    [headers] = got
    assert headers[TRACEPARENT] == traceparent(request)
    assert headers["Spool-Header-traceparent"].split("-")[2] == f"{put:016x}"
    assert request.kind is SpanKind.CLIENT
    port = int(url.rpartition(":")[2].partition("/")[0])
    assert dict(request.attributes or {}) == {
        "http.request.method": "POST", "http.response.status_code": 200, "url.full": f"http://127.0.0.1:{port}/it",
        "server.address": "127.0.0.1", "server.port": port,
    }  # fmt: skip
    assert space.get("replies").headers[TRACEPARENT] == traceparent(processed)


def test_a_web_service_that_fails_fails_both_spans(
    forward: Any, web: tuple[str, list[dict[str, str]]], space: spool.Space, recorder: Recorder
) -> None:
    sent(space, recorder, "404")
    forward(parse(web[0]))
    for name in ("process orders", "POST"):
        assert recorder.one(name).status.status_code is StatusCode.ERROR
    assert attributes(recorder.one("POST"))["error.type"] == "404"
    assert attributes(recorder.one("process orders"))["xaspool.outcome"] == "rejected"


def test_a_web_service_that_is_away_has_the_exception(forward: Any, space: spool.Space, recorder: Recorder) -> None:
    sent(space, recorder, "200")
    forward(parse("http://127.0.0.1:9/"))
    assert attributes(recorder.one("POST"))["error.type"] == "httpx.ConnectError"
    assert recorder.one("process orders").status.status_code is StatusCode.ERROR


def work_of_the_service(message: spool.Message) -> str:
    if message.body == "bad":
        raise KeyError("no such article")
    return json.dumps(trace.get_current_span().get_span_context().span_id)


def test_a_function_as_a_service_runs_within_the_span(forward: Any, space: spool.Space, recorder: Recorder) -> None:
    put = sent(space, recorder, "good")
    sent(space, recorder, "bad")
    forward(PythonService(f"{__name__}:work_of_the_service"))
    good, bad = sorted(recorder.all("process orders"), key=lambda span: span.status.status_code.value)
    assert json.loads(space.get("replies").body) == id_of(good)
    assert (parent_of(good), bad.status.status_code) == (put, StatusCode.ERROR)
    assert attributes(bad)["error.type"] == "KeyError"
    assert [event.name for event in bad.events] == ["exception"]
    assert trace_of(good) != trace_of(bad)
