"""A message between the functions of a stage: the input of the next function, and the resulting message."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from forwarder.pipelines.dispositions import BODY, Changes
from spool.errors import InvalidArgument
from spool.model.codecs import BYTES_TYPE, CODECS, encode
from spool.model.message import Message, attributes_of, check_content_type
from spool.workers.outcome import NewMessage

ROUTE_HEADER = "spool-route"
"""The header that names the only route of a message after a redrive from the failure queue."""

_TRAVELLING = (
    "priority", "correlation_id", "reply_queue", "failure_queue", "user_code", "client_id", "application_key",
    "headers", "group", "expires_at",
)  # fmt: skip
_OF_ITS_ATTEMPTS = ("attempts", "deaths", "failure_reason", "failed_at", "origin_queue", "origin_attempts")
_TIMES = {"delay": "not_before", "not_before": "delay", "time_to_live": "expires_at", "expires_at": "time_to_live"}


class Draft(NamedTuple):
    """A message for the next function. ``raw`` and ``fields`` are the stored body and the stored control fields."""

    message: Message
    raw: bytes
    fields: Mapping[str, Any]

    @classmethod
    def of(cls, message: Message, raw: bytes) -> Self:
        """Return an unchanged draft of a message from a stage's queue. The draft always has a correlation id."""
        found = {name: getattr(message, name) for name in (*_TRAVELLING, *_OF_ITS_ATTEMPTS)}
        found["headers"] = dict(message.headers)
        found["correlation_id"] = message.correlation_id or message.id
        fields = attributes_of(**{name: found[name] for name in _TRAVELLING})
        fields |= {name: found[name] for name in _OF_ITS_ATTEMPTS if found[name]}
        if message.codec is not None:
            fields["codec"] = message.codec
        if message.codec is not None or message.content_type != BYTES_TYPE:
            fields["content_type"] = message.content_type
        return cls(_with(message, message.body, fields), raw, fields)

    def changed(self, body: Any, changes: Changes) -> Self:
        """Return the draft with another body and other control fields. InvalidArgument if ``put`` refuses them."""
        if body is BODY and not changes:
            return self
        given: dict[str, Any] = dict(changes)
        fields = dict(self.fields)
        codec, raw, old_type = fields.pop("codec", None), self.raw, fields.pop("content_type", None)
        content_type = check_content_type(given.pop("content_type", old_type if body is BODY else None))
        if body is BODY:
            body = self.message.body
            if content_type is None and codec in CODECS:
                content_type = CODECS[codec].content_type
        else:
            raw, codec, content_type = encode(body, content_type)
        stored = {"codec": codec, "content_type": content_type}
        fields |= {name: value for name, value in stored.items() if value is not None}
        if unknown := set(given) - _CHANGEABLE:
            raise InvalidArgument(f"a disposition changes {', '.join(sorted(_CHANGEABLE))}, not {min(unknown)}")
        if "headers" in given:
            given["headers"] = _merged(fields.get("headers", {}), given["headers"])
        for name in given:
            fields.pop(name, None)
            fields.pop(_TIMES.get(name, ""), None)
        fields |= attributes_of(**{name: value for name, value in given.items() if value is not None})
        return type(self)(_with(self.message, body, fields), raw, fields)

    def put_into(self, queue: str) -> NewMessage:
        """Return the message to be put into the next queue."""
        fields = {name: value for name, value in self.fields.items() if name not in _OF_ITS_ATTEMPTS}
        if ROUTE_HEADER in self.message.headers:
            fields["headers"] = _merged(fields["headers"], {ROUTE_HEADER: None})
        return NewMessage.stored(queue, self.raw, fields)


def failed_alone(source: Draft, queue: str, route: str, reason: str) -> NewMessage:
    """Return the message for the failure queue after the failure of one route: the unchanged message with the reason.

    ``redrive`` moves the message back to its former queue, and then only this route translates the message. The message
    does not expire.
    """
    message = source.message
    fields = {name: value for name, value in source.fields.items() if name not in _OF_ITS_ATTEMPTS}
    fields.pop("expires_at", None)
    fields["headers"] = {**message.headers, ROUTE_HEADER: route}
    fields |= {"failure_reason": reason, "origin_queue": message.queue, "origin_attempts": message.attempts + 1}
    return NewMessage.stored(queue, source.raw, fields)


_CHANGEABLE = frozenset(Changes.__annotations__) - {"content_type"}


def _with(message: Message, body: Any, fields: Mapping[str, Any]) -> Message:
    return Message(message.id, message.queue, body, message.enqueued_at, message.position, fields)


def _merged(headers: Mapping[str, str], more: Mapping[str, str | None] | None) -> dict[str, str] | None:
    """Return ``headers`` with ``more`` headers. A value of None removes a header. If ``more`` is None, return None."""
    if more is None:
        return None
    return {name: value for name, value in {**headers, **more}.items() if value is not None}
