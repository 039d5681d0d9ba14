"""Spans of OpenTelemetry around puts and gets, and the trace context in the headers of messages.

A program that records spans has imported OpenTelemetry, so this module never imports it first. A put or get only checks
``API in modules``. That check is the whole cost for a program without OpenTelemetry. Some libraries, e.g. the client of
Redis, import OpenTelemetry in each program. So a put or get without a context of OpenTelemetry costs two frames more.

The trace context travels in two headers of a message, ``traceparent`` and ``tracestate``, in the format of the W3C. The
headers are the only connection between processes. A header with another form is ignored.

An exception of OpenTelemetry never reaches a put or get. The first one is logged. The names are those of
OpenTelemetry's semantic conventions for messaging and HTTP.
"""

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, Self, TypeVar

from spool.errors import Empty
from spool.runtime.calls import outside_of_calls

if TYPE_CHECKING:
    from concurrent.futures import Future
    from types import ModuleType, TracebackType

    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Tracer

log = logging.getLogger("spool")

API = "opentelemetry.trace"
"""The module that a program has imported if it may record spans."""

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"

SYSTEM = "messaging.system"
DESTINATION = "messaging.destination.name"
OPERATION_NAME, OPERATION_TYPE = "messaging.operation.name", "messaging.operation.type"
MESSAGE_ID = "messaging.message.id"
CONVERSATION_ID = "messaging.message.conversation_id"
MESSAGE_COUNT = "messaging.batch.message_count"
ERROR_TYPE = "error.type"
HTTP_METHOD, HTTP_STATUS = "http.request.method", "http.response.status_code"
URL, SERVER_ADDRESS, SERVER_PORT = "url.full", "server.address", "server.port"
# The conventions do not define these names, so the names are outside of the conventions' namespaces.
ATTEMPT, OUTCOME = "xaspool.attempt", "xaspool.outcome"

OTHER_ERROR = "_OTHER"  # the ``error.type`` of a failure without an exception and without a status

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[!-~]*)?")
_LONGEST = 512  # the most characters of either header that are read
_MOST_LINKS = 128  # the most links of a span that an SDK keeps by default
_INSIDE = "xaspool-inside"  # the key, in OpenTelemetry's context, of a call that is inside another traced call

P = ParamSpec("P")
T = TypeVar("T")


class HeaderLimits(Protocol):
    """The options of a space that limit the headers of a message."""

    @property
    def max_headers(self) -> int: ...
    @property
    def max_headers_bytes(self) -> int: ...


class Carrier(Protocol):
    """The part of a message that spans need."""

    @property
    def id(self) -> str: ...
    @property
    def headers(self) -> Mapping[str, str]: ...


# -- failures of OpenTelemetry ----------------------------------------------------------------------------------------

_has_failed = False


def note_failure(error: Exception) -> None:
    """Log an exception of OpenTelemetry, the first time only: a faulty tracer fails at every put."""
    global _has_failed
    if not _has_failed:
        _has_failed = True
        with suppress(Exception):  # the text of a foreign exception may also fail
            log.warning("OpenTelemetry failed, so spans may be missing: %s: %s", type(error).__name__, error)


def guarded(function: Callable[P, T]) -> Callable[P, T | None]:
    """Decorate a function that calls OpenTelemetry: after an exception, the function returns None."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            with outside_of_calls():  # an exporter may put spans into a queue
                return function(*args, **kwargs)
        except Exception as error:
            note_failure(error)
            return None

    return call


# -- OpenTelemetry ----------------------------------------------------------------------------------------------------


@cache
def api() -> "tuple[ModuleType, ModuleType]":
    """Return the modules ``trace`` and ``context`` of OpenTelemetry, which the program has imported."""
    from opentelemetry import context, trace

    return trace, context


def within_context(begin: Callable[P, T | None]) -> Callable[P, T | None]:
    """Decorate a function that begins a span within the caller's span. Without a context, the caller has no span."""
    begin = guarded(begin)

    @wraps(begin)
    def call(*args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            _, context = api()
            # (the public function of the same name takes one more frame)
            if not getattr(context, "_RUNTIME_CONTEXT", context).get_current():
                return None
            return begin(*args, **kwargs)
        except Exception as error:
            note_failure(error)
            return None

    return call


@cache
def _tracer_of(provider: Any) -> "Tracer":
    return provider.get_tracer("xaspool")  # type: ignore[no-any-return]


def start_span(name: str, kind: "SpanKind", attributes: Mapping[str, Any], **options: Any) -> "Span":
    """Start a span with the program's tracer provider."""
    trace, _ = api()
    tracer = _tracer_of(trace.get_tracer_provider())
    return tracer.start_span(name, kind=kind, attributes=dict(attributes), **options)


def is_configured() -> bool:
    """Return whether the program has a tracer provider. The API alone has a proxy, which waits for a provider."""
    trace, _ = api()
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def caller_span() -> "Span | None":
    """Return the caller's span. Return None without a span, inside another traced call, and in code that OpenTelemetry
    excludes from tracing, e.g. an exporter."""
    trace, context = api()
    span: Span = trace.get_current_span()
    if span is trace.INVALID_SPAN or not span.get_span_context().is_valid:
        return None
    excluded = getattr(context, "_SUPPRESS_INSTRUMENTATION_KEY", _INSIDE)
    return None if context.get_value(_INSIDE) or context.get_value(excluded) else span


def messaging(operation: str, queue: str) -> dict[str, Any]:
    """Return the attributes of an operation: ``send``, ``receive`` or ``process``."""
    return {SYSTEM: "xaspool", DESTINATION: queue, OPERATION_NAME: operation, OPERATION_TYPE: operation}


def set_error(span: "Span", error: BaseException) -> None:
    """Record an exception as the failure of a span."""
    span.record_exception(error)
    fail(span, type_name(error), f"{type(error).__name__}: {error}")


def fail(span: "Span", error_type: str, reason: str) -> None:
    """Mark a span as failed."""
    trace, _ = api()
    span.set_attribute(ERROR_TYPE, error_type)
    span.set_status(trace.Status(trace.StatusCode.ERROR, reason))


def type_name(error: BaseException) -> str:
    """Return the ``error.type`` of an exception."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


@guarded
def _attach(context: "Context") -> object:
    return api()[1].attach(context)


@guarded
def _detach(token: Any) -> None:
    api()[1].detach(token)


class Attached:
    """A ``with`` block in which a context of OpenTelemetry is current."""

    def __init__(self, context: "Context") -> None:
        self._context = context
        self._token: object = None

    def __enter__(self) -> Self:
        self._token = _attach(self._context)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: "TracebackType | None"
    ) -> None:
        if self._token is not None:
            _detach(self._token)
        self.ended(error)

    def ended(self, error: BaseException | None) -> None:
        """Called after the block. ``error``: the exception that ended the block, or None."""


def in_context(call: Callable[[], T]) -> Callable[[], T]:
    """Return a call that another thread makes in the caller's context of OpenTelemetry."""
    try:
        found = api()[1].get_current()
    except Exception as error:
        note_failure(error)
        return call
    if not found:
        return call

    def run() -> T:
        with Attached(found):
            return call()

    return run


# -- the headers of a message -----------------------------------------------------------------------------------------


def read_context(headers: Mapping[str, str]) -> "SpanContext | None":
    """Return the trace context in the headers of a message, or None without a valid ``traceparent``."""
    text = headers.get(TRACEPARENT)
    if not isinstance(text, str) or len(text) > _LONGEST:
        return None
    found = _TRACEPARENT.fullmatch(text)
    if found is None or found[1] == "ff" or (found[1] == "00" and found[5]):
        return None
    trace, _ = api()
    state = headers.get(TRACESTATE, "")
    readable = isinstance(state, str) and len(state) <= _LONGEST and state.isascii() and state.isprintable()
    context: SpanContext = trace.SpanContext(
        trace_id=int(found[2], 16), span_id=int(found[3], 16), is_remote=True,
        trace_flags=trace.TraceFlags(int(found[4], 16)),
        trace_state=trace.TraceState.from_header([state]) if state and readable else None,
    )  # fmt: skip
    return context if context.is_valid else None


def context_headers(context: "SpanContext") -> dict[str, str]:
    """Return the headers for a trace context; no headers for a context that is not valid."""
    if not context.is_valid:
        return {}
    found = {TRACEPARENT: f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"}
    if context.trace_state:
        found[TRACESTATE] = context.trace_state.to_header()
    return found


def fitting(headers: Mapping[str, str], added: Mapping[str, str], limits: HeaderLimits) -> dict[str, str] | None:
    """Return the headers with the headers of a trace context, or None if the message has no room for them.

    A message without room for ``tracestate`` gets only ``traceparent``.
    """
    for some in (added, {TRACEPARENT: added[TRACEPARENT]}):
        found = {**headers, **some}
        size = sum(len(name.encode()) + len(value.encode()) for name, value in found.items())
        if len(found) <= limits.max_headers and size <= limits.max_headers_bytes:
            return found
    return None


def links_to(messages: Iterable[Carrier]) -> "list[Link]":
    """Return links to the contexts of messages. The messages of one put share their context, and get one link."""
    trace, _ = api()
    found: dict[str | None, Link] = {}
    for message in messages:
        text = message.headers.get(TRACEPARENT)
        if text is not None and text not in found and (context := read_context(message.headers)) is not None:
            found[text] = trace.Link(context, {MESSAGE_ID: message.id})
            if len(found) == _MOST_LINKS:
                break
    return [*found.values()]


# -- a put ------------------------------------------------------------------------------------------------------------


class Send(Attached):
    """The span of a put, from the call to the return. A future prolongs the span until the future is done.

    options: the options of the put, with the context of the span in the headers.
    """

    options: Any

    def __init__(self, limits: HeaderLimits, queue: str, count: int, options: Mapping[str, Any]) -> None:
        trace, context = api()
        headers = _given_headers(options)
        own = None if headers is None else read_context(headers)
        # A context that the caller has set is not replaced.
        is_free = headers is not None and not headers.keys() & {TRACEPARENT, TRACESTATE}
        carries = is_free and fitting(headers or {}, {TRACEPARENT: "-" * 55}, limits) is not None
        self.span = start_span(
            f"send {queue}",
            # The kind tells whether the message carries the context of this span.
            trace.SpanKind.PRODUCER if carries else trace.SpanKind.CLIENT,
            {**messaging("send", queue), **({} if count == 1 else {MESSAGE_COUNT: count})},
            links=[] if own is None else [trace.Link(own)],
        )
        self.options = dict(options)
        added = context_headers(self.span.get_span_context())
        if carries and added:
            self.options["headers"] = fitting(headers or {}, added, limits)
        self._is_single = count == 1
        self._ids: Sequence[str] = ()
        self._is_later = False
        super().__init__(context.set_value(_INSIDE, True, trace.set_span_in_context(self.span)))

    def done(self, ids: list[str]) -> list[str]:
        """Note the ids of the messages, and return them."""
        self._ids = ids
        return ids

    def done_later(self, future: "Future[str]") -> "Future[str]":
        """Prolong the span until the future is done, and return the future."""
        self._is_later = True
        future.add_done_callback(self._note_future)
        return future

    @guarded
    def _note_future(self, future: "Future[str]") -> None:
        if future.cancelled():
            self._end(CancelledError(), [])
            return
        error = future.exception()
        self._end(error, [] if error is not None else [future.result()])

    def ended(self, error: BaseException | None) -> None:
        if not self._is_later:
            self._end(error, self._ids)

    @guarded
    def _end(self, error: BaseException | None, ids: Sequence[str]) -> None:
        try:
            if error is not None:
                set_error(self.span, error)
            elif self._is_single and ids:
                self.span.set_attribute(MESSAGE_ID, str(ids[0]))
        finally:
            self.span.end()


def _given_headers(options: Mapping[str, Any]) -> dict[str, str] | None:
    """Return a copy of the headers of a put, or None for headers that the put will refuse."""
    headers = options.get("headers")
    if headers is None:
        return {}
    try:
        found = dict(headers) if isinstance(headers, Mapping) else {"": ""}
        for name, text in found.items():
            if not (name and isinstance(name, str) and isinstance(text, str) and f"{name}{text}".encode()):
                return None
    except Exception:  # a mapping of the application may raise any exception, and UTF-8 cannot encode every text
        return None
    return found


@within_context
def begin_send(limits: HeaderLimits, queue: str, count: int, options: Mapping[str, Any]) -> Send | None:
    """Begin the span of a put of ``count`` messages. Return None if the caller has no span."""
    if caller_span() is None or not _is_name(queue):
        return None
    return Send(limits, queue, count, options)


def _is_name(queue: object) -> bool:
    """Return whether a queue may have this name. A queue name that the call refuses is not put into a span."""
    return isinstance(queue, str) and queue.isascii() and queue.isprintable() and len(queue) < 256


# -- a get ------------------------------------------------------------------------------------------------------------


class Receive(Attached):
    """The span of a get, with the wait for a message.

    The links to the contexts of the messages are known only after the get. So the span is made after the get, and the
    begin of the get is its start time.
    """

    def __init__(self, queue: str) -> None:
        _, context = api()
        self._queue = queue
        self._begun = time.time_ns()
        self._messages: Sequence[Carrier] = ()
        super().__init__(context.set_value(_INSIDE, True))

    def done(self, messages: T) -> T:
        """Note the messages, a list, and return the list."""
        self._messages = messages  # type: ignore[assignment]
        return messages

    @guarded
    def ended(self, error: BaseException | None) -> None:
        trace, _ = api()
        messages = self._messages
        found = {MESSAGE_ID: messages[0].id} if len(messages) == 1 else {MESSAGE_COUNT: len(messages)}
        # A get is a call to the queue system, so the conventions give its span the kind CLIENT. The function that is
        # called with a message has the span of the kind CONSUMER.
        span = start_span(
            f"receive {self._queue}", trace.SpanKind.CLIENT, {**messaging("receive", self._queue), **found},
            links=links_to(messages), start_time=self._begun,
        )  # fmt: skip
        try:
            if error is not None and not isinstance(error, Empty):
                set_error(span, error)
        finally:
            span.end()


@within_context
def begin_receive(queue: str) -> Receive | None:
    """Begin the span of a get. Return None if the caller has no recording span."""
    span = caller_span()
    return Receive(queue) if span is not None and span.is_recording() and _is_name(queue) else None
