"""The spans of calls: a put, a get, a call of a function or service with a message, and a request over HTTP.

Each span is a ``with`` block. The span of a call with a message is a child of the span of the message's put, because
each call has exactly one message. The conventions allow this for single messages, and use links otherwise. The span of
a call also has a link to the put. A span around a whole worker lasts as long as the worker, so the calls get a link to
that span, and are not its children.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from opentelemetry import context, trace

from spool.errors import Empty
from spool.model.message import Message, stored_fields
from spool.model.settings import SpaceConfig
from spool.model.text import shortened
from spool.tracing import spans
from spool.tracing.spans import Attached, guarded

T = TypeVar("T")


# -- a put ------------------------------------------------------------------------------------------------------------


class PutSpan(Attached):
    """The span of a put, from the call to the return. A future prolongs the span until the future is done.

    options: the options of the put, with the context of the span in the headers.
    """

    def __init__(self, limits: SpaceConfig, queue: str, count: int, options: Mapping[str, Any]) -> None:
        headers = _given_headers(options)
        own = None if headers is None else spans.read_context(headers)
        # A context that the caller has set is not replaced.
        is_free = headers is not None and not headers.keys() & {spans.TRACEPARENT, spans.TRACESTATE}
        carries = is_free and spans.fitting(headers or {}, {spans.TRACEPARENT: "-" * 55}, limits) is not None
        self.span = spans.start_span(
            f"send {queue}",
            # The kind tells whether the message carries the context of this span.
            trace.SpanKind.PRODUCER if carries else trace.SpanKind.CLIENT,
            {**spans.messaging("send", queue), **({} if count == 1 else {"messaging.batch.message_count": count})},
            links=[] if own is None else [trace.Link(own)],
        )
        self.options: Any = dict(options)
        added = spans.headers_of(self.span)
        if carries and added:
            self.options["headers"] = spans.fitting(headers or {}, added, limits)
        self._ids: Sequence[str] = ()
        self._is_later = False
        super().__init__(context.set_value(spans.INSIDE, True, trace.set_span_in_context(self.span)))

    def done(self, result: T) -> T:
        """Note the result of the put: an id, a list of ids, or a future of an id; return the result."""
        if isinstance(result, Future):
            self._is_later = True
            result.add_done_callback(self._note_future)
        else:
            self._ids = [result] if isinstance(result, str) else result  # type: ignore[assignment]
        return result

    @guarded
    def _note_future(self, future: Future[str]) -> None:
        error = CancelledError() if future.cancelled() else future.exception()
        self._end(error, [] if error is not None else [future.result()])

    def ended(self, error: BaseException | None) -> None:
        if not self._is_later:
            self._end(error, self._ids)

    @guarded
    def _end(self, error: BaseException | None, ids: Sequence[str]) -> None:
        try:
            if error is not None:
                spans.set_error(self.span, error)
            elif len(ids) == 1:
                self.span.set_attribute(spans.MESSAGE_ID, str(ids[0]))
        finally:
            self.span.end()


def _given_headers(options: Mapping[str, Any]) -> dict[str, str] | None:
    """Return a copy of the headers of a put, or None for headers that the put will refuse."""
    if (headers := options.get("headers")) is None:
        return {}
    try:
        found = dict(headers) if isinstance(headers, Mapping) else {"": ""}
        for name, text in found.items():
            if not (name and isinstance(name, str) and isinstance(text, str) and f"{name}{text}".encode()):
                return None
    except Exception:  # a mapping of the application may raise any exception, and UTF-8 cannot encode every text
        return None
    return found


@guarded
def begin_put(limits: SpaceConfig, queue: str, count: int, options: Mapping[str, Any]) -> PutSpan | None:
    """Begin the span of a put of ``count`` messages. Return None if the caller has no span."""
    return PutSpan(limits, queue, count, options) if spans.caller_span() is not None and _is_name(queue) else None


def _is_name(queue: object) -> bool:
    """Return whether a queue may have this name. A queue name that the call refuses is not put into a span."""
    return isinstance(queue, str) and queue.isascii() and queue.isprintable() and len(queue) < 256


# -- a get ------------------------------------------------------------------------------------------------------------


class GetSpan(Attached):
    """The span of a get, with the wait for a message.

    The links to the contexts of the messages are known only after the get. So the span is made after the get, and the
    begin of the get is its start time.

    options: the options of the get.
    """

    def __init__(self, queue: str, options: Mapping[str, Any]) -> None:
        self.options = options
        self._queue = queue
        self._begun = time.time_ns()
        self._messages: Sequence[Message] = ()
        super().__init__(context.set_value(spans.INSIDE, True))

    def done(self, result: T) -> T:
        """Note the result of the get: a message, or a list of messages; return the result."""
        self._messages = [result] if isinstance(result, Message) else result  # type: ignore[assignment]
        return result

    @guarded
    def ended(self, error: BaseException | None) -> None:
        messages = self._messages
        count = len(messages)
        found = {spans.MESSAGE_ID: messages[0].id} if count == 1 else {"messaging.batch.message_count": count}
        # A get is a call to the queue system, so the conventions give its span the kind CLIENT. The function that is
        # called with a message has the span of the kind CONSUMER.
        span = spans.start_span(
            f"receive {self._queue}", trace.SpanKind.CLIENT, {**spans.messaging("receive", self._queue), **found},
            links=spans.links_to(messages), start_time=self._begun,
        )  # fmt: skip
        try:
            if error is not None and not isinstance(error, Empty):
                spans.set_error(span, error)
        finally:
            span.end()


@guarded
def begin_get(queue: str, options: Mapping[str, Any]) -> GetSpan | None:
    """Begin the span of a get. Return None if the caller has no recording span."""
    span = spans.caller_span()
    return GetSpan(queue, options) if span is not None and span.is_recording() and _is_name(queue) else None


# -- a call with a message --------------------------------------------------------------------------------------------


class Process(Attached):
    """The span of a call with a message. As a ``with`` block: the span is current during the call.

    ``end`` ends the span with the outcome of the call. Any thread may call ``end``, and only the first call counts.
    """

    def __init__(self, message: Message) -> None:
        ambient = trace.get_current_span().get_span_context()
        sent = spans.read_context(message.headers)
        attributes = spans.messaging("process", message.queue)
        attributes |= {spans.MESSAGE_ID: message.id, "xaspool.attempt": message.attempts + 1}
        if message.correlation_id is not None:
            attributes["messaging.message.conversation_id"] = message.correlation_id
        links = []
        parent = context.get_current()
        if sent is not None:
            links.append(trace.Link(sent))
            parent = trace.set_span_in_context(trace.NonRecordingSpan(sent))
            if ambient.is_valid:
                links.append(trace.Link(ambient))
        name, kind = f"process {message.queue}", trace.SpanKind.CONSUMER
        self._span = spans.start_span(name, kind, attributes, context=parent, links=links)
        self._has_ended = False
        super().__init__(trace.set_span_in_context(self._span))

    def ended(self, error: BaseException | None) -> None:
        """Record the exception of the function. The outcome follows."""
        if error is not None:
            note_error(error, self._span)

    @guarded
    def end(self, outcome: object) -> None:
        """End the span with the outcome of the call, or with the reason of a failed call."""
        if self._has_ended:
            return
        self._has_ended = True
        is_failed = isinstance(outcome, str)
        reason: Any = outcome if is_failed else getattr(outcome, "reason", None)  # (a success has no reason)
        try:
            self._span.set_attribute("xaspool.outcome", "retried" if is_failed else type(outcome).__name__.lower())
            if reason is not None:
                known = getattr(self._span, "attributes", None) or {}  # (the SDK's spans have their attributes)
                spans.fail(self._span, str(known.get(spans.ERROR_TYPE, "_OTHER")), shortened(reason))
        finally:
            self._span.end()

    def around(self, call: Callable[[], T]) -> Callable[[], T]:
        """Return a call that another thread makes within this span. Its result is an outcome, or an exception."""

        def traced() -> T:
            with self:
                outcome = call()
            self.end(type(outcome).__name__ if isinstance(outcome, BaseException) else outcome)
            return outcome

        return traced

    def continued(self, message: Message, limits: SpaceConfig) -> Message:
        """Return the message with the context of this span, so that a reply with its headers continues the trace."""
        return self._continued(message, limits) or message

    @guarded
    def _continued(self, message: Message, limits: SpaceConfig) -> Message | None:
        added = spans.headers_of(self._span)
        traced = (spans.TRACEPARENT, spans.TRACESTATE)
        own = {name: text for name, text in message.headers.items() if name not in traced}
        headers = spans.fitting(own, added, limits) if added else None
        if headers is None:
            return None
        fields = {**stored_fields(message), "headers": headers}
        return Message(message.id, message.queue, message.body, message.enqueued_at, message.position, fields)


@guarded
def begin_process(message: Message) -> Process | None:
    """Begin the span of a call with a message. Return None if the program records no spans."""
    # The API alone has a proxy, which waits for a provider.
    is_configured = not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    return Process(message) if is_configured else None


@guarded
def note_error(error: BaseException, span: trace.Span | None = None) -> None:
    """Record an exception in a span, or in the current span. The outcome of the call decides whether it has failed."""
    span = span or trace.get_current_span()
    span.record_exception(error)
    span.set_attribute(spans.ERROR_TYPE, spans.type_name(error))


# -- a request over HTTP ----------------------------------------------------------------------------------------------


class ClientCall(Attached):
    """The span of a request over HTTP, until the headers of the response have arrived.

    headers: the headers that carry the span's context to the server.
    """

    def __init__(self, method: str, url: str, host: str, port: int) -> None:
        attributes = {"http.request.method": method, "url.full": url, "server.address": host, "server.port": port}
        self._span = spans.start_span(method, trace.SpanKind.CLIENT, attributes)
        self.headers = spans.headers_of(self._span)
        self._status = 0
        super().__init__(trace.set_span_in_context(self._span))

    def done(self, response: T) -> T:
        """Note the status of the response, and return the response."""
        self._status = response.status_code  # type: ignore[attr-defined]
        return response

    @guarded
    def ended(self, error: BaseException | None) -> None:
        try:
            if error is not None:
                spans.set_error(self._span, error)
                return
            self._span.set_attribute("http.response.status_code", self._status)
            if self._status >= 400:
                spans.fail(self._span, str(self._status), f"HTTP {self._status}")
        finally:
            self._span.end()


@guarded
def begin_client_call(method: str, url: str, host: str, port: int) -> ClientCall | None:
    """Begin the span of a request. Return None if the caller has no span."""
    return ClientCall(method, url, host, port) if spans.caller_span() is not None else None
