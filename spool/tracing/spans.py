"""The access to OpenTelemetry: the start of spans, their attributes, and the trace context in headers.

The trace context travels in two headers of a message, ``traceparent`` and ``tracestate``, in the format of the W3C. The
headers are the only connection between processes. A header with another form is ignored.

An exception of OpenTelemetry never reaches the caller. The first one is logged. The names are those of OpenTelemetry's
semantic conventions for messaging and HTTP.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, wraps
from typing import Any, ParamSpec, Self, TypeVar

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Tracer

from spool.model.message import Message
from spool.model.settings import SpaceConfig
from spool.runtime.call_guard import outside_of_calls
from spool.tracing import note_failure

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
INSIDE = "xaspool-inside"  # the key, in OpenTelemetry's context, of a call that is inside another traced call
MESSAGE_ID, ERROR_TYPE = "messaging.message.id", "error.type"

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[!-~]*)?")
_LONGEST = 512  # the most characters of either header that are read
_MOST_LINKS = 128  # the most links of a span that an SDK keeps by default
P = ParamSpec("P")
T = TypeVar("T")


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


@cache
def _tracer_of(provider: Any) -> Tracer:
    return provider.get_tracer("xaspool")  # type: ignore[no-any-return]


def start_span(name: str, kind: SpanKind, attributes: Mapping[str, Any], **options: Any) -> Span:
    """Start a span with the program's tracer provider."""
    tracer = _tracer_of(trace.get_tracer_provider())
    return tracer.start_span(name, kind=kind, attributes=dict(attributes), **options)


def caller_span() -> Span | None:
    """Return the caller's span. Return None without a span, inside another traced call, and in code that OpenTelemetry
    excludes from tracing, e.g. an exporter."""
    span: Span = trace.get_current_span()
    if span is trace.INVALID_SPAN or not span.get_span_context().is_valid:
        return None
    excluded = getattr(context, "_SUPPRESS_INSTRUMENTATION_KEY", INSIDE)
    return None if context.get_value(INSIDE) or context.get_value(excluded) else span


def messaging(operation: str, queue: str) -> dict[str, Any]:
    """Return the attributes of an operation: ``send``, ``receive`` or ``process``."""
    names = {"messaging.system": "xaspool", "messaging.destination.name": queue}
    return {**names, "messaging.operation.name": operation, "messaging.operation.type": operation}


def set_error(span: Span, error: BaseException) -> None:
    """Record an exception as the failure of a span."""
    span.record_exception(error)
    fail(span, type_name(error), f"{type(error).__name__}: {error}")


def fail(span: Span, error_type: str, reason: str) -> None:
    """Mark a span as failed."""
    span.set_attribute(ERROR_TYPE, error_type)
    span.set_status(trace.Status(trace.StatusCode.ERROR, reason))


def type_name(error: BaseException) -> str:
    """Return the ``error.type`` of an exception."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


_attach = guarded(context.attach)
_detach = guarded(context.detach)


class Attached:
    """A ``with`` block in which a context of OpenTelemetry is current."""

    def __init__(self, found: Context) -> None:
        self._context = found
        self._token: Any = None

    def __enter__(self) -> Self:
        self._token = _attach(self._context)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._token is not None:
            _detach(self._token)
        self.ended(error)

    def ended(self, error: BaseException | None) -> None:
        """Called after the block. ``error``: the exception that ended the block, or None."""


def in_context(call: Callable[[], T]) -> Callable[[], T]:
    """Return a call that another thread makes in the caller's context of OpenTelemetry."""
    if not (found := guarded(context.get_current)()):
        return call

    def run() -> T:
        with Attached(found):
            return call()

    return run


# -- the headers of a message -----------------------------------------------------------------------------------------


def read_context(headers: Mapping[str, str]) -> SpanContext | None:
    """Return the trace context in the headers of a message, or None without a valid ``traceparent``."""
    text = headers.get(TRACEPARENT)
    if not isinstance(text, str) or len(text) > _LONGEST:
        return None
    found = _TRACEPARENT.fullmatch(text)
    if found is None or found[1] == "ff" or (found[1] == "00" and found[5]):
        return None
    state = headers.get(TRACESTATE, "")
    readable = isinstance(state, str) and len(state) <= _LONGEST and state.isascii() and state.isprintable()
    sent: SpanContext = trace.SpanContext(
        trace_id=int(found[2], 16), span_id=int(found[3], 16), is_remote=True,
        trace_flags=trace.TraceFlags(int(found[4], 16)),
        trace_state=trace.TraceState.from_header([state]) if state and readable else None,
    )  # fmt: skip
    return sent if sent.is_valid else None


def headers_of(span: Span) -> dict[str, str]:
    """Return the headers for the trace context of a span; no headers for a context that is not valid."""
    own = span.get_span_context()
    if not own.is_valid:
        return {}
    found = {TRACEPARENT: f"00-{own.trace_id:032x}-{own.span_id:016x}-{own.trace_flags:02x}"}
    if own.trace_state:
        found[TRACESTATE] = own.trace_state.to_header()
    return found


def fitting(headers: Mapping[str, str], added: Mapping[str, str], limits: SpaceConfig) -> dict[str, str] | None:
    """Return the headers with the headers of a trace context, or None if the message has no room for them.

    A message without room for ``tracestate`` gets only ``traceparent``.
    """
    for some in (added, {TRACEPARENT: added[TRACEPARENT]}):
        found = {**headers, **some}
        size = sum(len(name.encode()) + len(value.encode()) for name, value in found.items())
        if len(found) <= limits.max_headers and size <= limits.max_headers_bytes:
            return found
    return None


def links_to(messages: Iterable[Message]) -> list[Link]:
    """Return links to the contexts of messages. The messages of one put share their context, and get one link."""
    found: dict[str | None, Link] = {}
    for message in messages:
        text = message.headers.get(TRACEPARENT)
        if text is not None and text not in found and (sent := read_context(message.headers)) is not None:
            found[text] = trace.Link(sent, {MESSAGE_ID: message.id})
            if len(found) == _MOST_LINKS:
                break
    return [*found.values()]
