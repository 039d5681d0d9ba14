"""The outcomes of calls as msgpack, which a task sends to the forwarder's process."""

from typing import Any

import msgpack

from spool.errors import InvalidArgument, ProtocolError
from spool.model.message import attributes_of
from spool.model.settings import check_queue_name
from spool.model.text import shown
from spool.workers.outcome import NewMessage, Outcome, Passed, Rejected, Replied, Retried, Translated


def packed(outcome: Outcome) -> bytes:
    if outcome == _DONE:  # (most outcomes)
        return _PACKED_DONE
    return _packed(outcome)


def sendable(outcome: Outcome) -> bytes:
    """Return the packed outcome. If a service has made an outcome that cannot be sent, its attempt has failed."""
    try:
        data = packed(outcome)
        unpacked(data)
        return data
    except (ProtocolError, TypeError, ValueError, OverflowError, RecursionError):
        return _packed(Retried(f"the service returned an outcome with a wrong field: {shown(outcome)}"))


def unpacked(data: bytes) -> Outcome:
    """Return the outcome. ProtocolError if the data are not those of ``packed``."""
    return _DONE if data == _PACKED_DONE else _unpacked(data)


def _packed(outcome: Outcome) -> bytes:
    kind = next(place for place, one in enumerate(_KINDS) if isinstance(outcome, one))
    encoded: bytes = msgpack.packb([kind, *_values(outcome)])
    return encoded


def _unpacked(data: bytes) -> Outcome:
    try:
        kind, *fields = msgpack.unpackb(data)
        outcome: Outcome = _MADE[_KINDS[kind]](*fields)
        return outcome
    except (InvalidArgument, msgpack.UnpackException, TypeError, ValueError, LookupError, RecursionError):
        raise ProtocolError("an outcome cannot be decoded: install the same xaspool on all machines") from None


def _values(outcome: Outcome) -> tuple[Any, ...]:
    match outcome:
        case Replied(body, content_type, codec):
            return body, content_type, codec
        case Retried(reason, delay, counted):
            return reason, delay, counted
        case Rejected(reason, reply):
            return reason, None if reply is None else _values(reply)
        case Passed(queue):
            return (queue,)
        case Translated():
            return [(new.queue, new.raw, dict(new.attributes)) for new in outcome.messages], outcome.note


def _replied(body: Any, content_type: Any, codec: Any) -> Replied:
    return Replied(_is(bytes, body), _is(str | None, content_type), _is(str | None, codec))


def _retried(reason: Any, delay: Any, counted: Any) -> Retried:
    return Retried(_is(str, reason), _is(int | float | None, delay), _is(bool, counted))


def _rejected(reason: Any, reply: Any) -> Rejected:
    return Rejected(_is(str, reason), None if reply is None else _replied(*reply))


def _translated(messages: Any, note: Any) -> Translated:
    return Translated([_new(*message) for message in messages], _is(str, note))


def _new(queue: Any, raw: Any, attributes: Any) -> NewMessage:
    options = dict(_is(dict, attributes))
    own = {name: _is(kind, options.pop(name)) for name, kind in _OF_NO_PUT.items() if name in options}
    return NewMessage.stored(check_queue_name(queue), _is(bytes, raw), {**attributes_of(**options), **own})


def _is(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError
    return value


_OF_NO_PUT = {"codec": str, "content_type": str, "failure_reason": str, "origin_queue": str, "origin_attempts": int}
"""The types of the control fields that are no options of a put."""
_KINDS: list[type[Outcome]] = [Replied, Retried, Rejected, Passed, Translated]
_MADE: dict[type[Outcome], Any] = {
    Replied: _replied,
    Retried: _retried,
    Rejected: _rejected,
    Passed: lambda queue: Passed(check_queue_name(queue)),
    Translated: _translated,
}
_DONE = Replied()
_PACKED_DONE = _packed(_DONE)
