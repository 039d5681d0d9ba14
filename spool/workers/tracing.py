"""Spans of OpenTelemetry around calls of functions and services: see ``spool.runtime.tracing``.

The span of a call is a child of the span of the message's put, because each call has exactly one message. The
conventions allow this for single messages, and use links otherwise. The span of a call also has a link to the put. A
span around a whole worker lasts as long as the worker, so the calls get a link to that span, and are not its children.
"""

from collections.abc import Mapping
from typing import Any

from spool.model.message import Message, stored_fields
from spool.model.text import shortened
from spool.runtime.tracing import (
    API,
    ATTEMPT,
    CONVERSATION_ID,
    ERROR_TYPE,
    HTTP_METHOD,
    HTTP_STATUS,
    MESSAGE_ID,
    OTHER_ERROR,
    OUTCOME,
    SERVER_ADDRESS,
    SERVER_PORT,
    TRACEPARENT,
    TRACESTATE,
    URL,
    Attached,
    HeaderLimits,
    api,
    caller_span,
    context_headers,
    fail,
    fitting,
    guarded,
    is_configured,
    messaging,
    read_context,
    start_span,
    type_name,
    within_context,
)
from spool.workers.outcome import Outcome, Rejected, Retried

__all__ = ["API", "ClientCall", "Process", "begin_client_call", "begin_process", "note_error"]


class Process(Attached):
    """The span of a call with a message. As a ``with`` block: the span is current during the call.

    ``end`` ends the span with the outcome of the call. Any thread may call ``end``, and only the first call counts.
    """

    def __init__(self, message: Message) -> None:
        trace, context = api()
        ambient = trace.get_current_span().get_span_context()
        sent = read_context(message.headers)
        attributes = {
            **messaging("process", message.queue), MESSAGE_ID: message.id, ATTEMPT: message.attempts + 1,
            **({CONVERSATION_ID: message.correlation_id} if message.correlation_id is not None else {}),
        }  # fmt: skip
        links = []
        parent = context.get_current()
        if sent is not None:
            links.append(trace.Link(sent))
            parent = trace.set_span_in_context(trace.NonRecordingSpan(sent))
            if ambient.is_valid:
                links.append(trace.Link(ambient))
        name, kind = f"process {message.queue}", trace.SpanKind.CONSUMER
        self._span = start_span(name, kind, attributes, context=parent, links=links)
        self._has_ended = False
        super().__init__(trace.set_span_in_context(self._span))

    def ended(self, error: BaseException | None) -> None:
        """Record the exception of the function. The outcome follows."""
        if error is not None:
            note_error_of(self._span, error)

    @guarded
    def end(self, outcome: Outcome) -> None:
        """End the span with the outcome of the call."""
        if self._has_ended:
            return
        self._has_ended = True
        try:
            self._span.set_attribute(OUTCOME, type(outcome).__name__.lower())
            _set_failure(self._span, outcome)
        finally:
            self._span.end()

    def continued(self, message: Message, limits: HeaderLimits) -> Message:
        """Return the message with the context of this span, so that a reply with its headers continues the trace."""
        return self._continued(message, limits) or message

    @guarded
    def _continued(self, message: Message, limits: HeaderLimits) -> Message | None:
        added = context_headers(self._span.get_span_context())
        own = {name: text for name, text in message.headers.items() if name not in (TRACEPARENT, TRACESTATE)}
        headers = fitting(own, added, limits) if added else None
        if headers is None:
            return None
        fields = {**stored_fields(message), "headers": headers}
        return Message(message.id, message.queue, message.body, message.enqueued_at, message.position, fields)


@guarded
def begin_process(message: Message) -> Process | None:
    """Begin the span of a call with a message. Return None if the program records no spans."""
    return Process(message) if is_configured() else None


@guarded
def note_error(error: BaseException) -> None:
    """Record an exception, which became an outcome, in the span of the call."""
    note_error_of(api()[0].get_current_span(), error)


@guarded
def note_error_of(span: Any, error: BaseException) -> None:
    """Record an exception in a span. The outcome of the call decides whether the span has failed."""
    span.record_exception(error)
    span.set_attribute(ERROR_TYPE, type_name(error))


def _set_failure(span: Any, outcome: Outcome, error_type: str | None = None) -> None:
    if not isinstance(outcome, Retried | Rejected):
        return
    known = getattr(span, "attributes", None) or {}  # (the SDK's spans have their attributes)
    fail(span, error_type or str(known.get(ERROR_TYPE, OTHER_ERROR)), shortened(outcome.reason))


class ClientCall(Attached):
    """The span of a request over HTTP, as a ``with`` block.

    headers: the headers that carry the span's context to the server.
    status: the status of the response; None before a response.
    """

    def __init__(self, method: str, url: str, host: str, port: int) -> None:
        trace, _ = api()
        attributes: Mapping[str, Any] = {HTTP_METHOD: method, URL: url, SERVER_ADDRESS: host, SERVER_PORT: port}
        self._span = start_span(method, trace.SpanKind.CLIENT, attributes)
        self.headers = [*context_headers(self._span.get_span_context()).items()]
        self.status: int | None = None
        self._outcome: Outcome | None = None
        super().__init__(trace.set_span_in_context(self._span))

    def done(self, outcome: Outcome) -> Outcome:
        """Note the outcome of the request, and return the outcome."""
        self._outcome = outcome
        return outcome

    @guarded
    def ended(self, error: BaseException | None) -> None:
        try:
            if error is not None:
                note_error_of(self._span, error)
            if self.status is not None:
                self._span.set_attribute(HTTP_STATUS, self.status)
            if self._outcome is not None:
                _set_failure(self._span, self._outcome, str(self.status) if (self.status or 0) >= 400 else None)
        finally:
            self._span.end()


@within_context
def begin_client_call(method: str, url: str, host: str, port: int) -> ClientCall | None:
    """Begin the span of a request. Return None if the caller has no span."""
    return ClientCall(method, url, host, port) if caller_span() is not None else None
