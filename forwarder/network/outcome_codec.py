"""The outcomes of calls as msgpack, which a task sends to the forwarder's process."""

from typing import Any

import msgpack

from spool.errors import InvalidArgument, ProtocolError
from spool.model.message import attributes_of
from spool.model.settings import check_queue_name
from spool.model.text import shown
from spool.workers.outcome import NewMessage, Outcome, Passed, Rejected, Replied, Retried, Translated, bounded


def packed(outcome: Outcome) -> bytes:
    return _PACKED_DONE if outcome == _DONE else _packed(outcome)  # (most outcomes are equal to `_DONE`)


def sendable(outcome: Outcome) -> bytes:
    """Return the packed outcome. If the outcome of a service cannot be sent, return a failed attempt instead."""
    try:
        data = packed(outcome)
        unpacked(data)
        return data
    except (ProtocolError, TypeError, ValueError, OverflowError, RecursionError):
        return _packed(Retried(f"the service returned an outcome with a wrong field: {shown(outcome)}"))


def unpacked(data: bytes) -> Outcome:
    """Return the outcome. ProtocolError unless ``packed`` can have made the data."""
    if data == _PACKED_DONE:
        return _DONE
    try:
        return _outcome(msgpack.unpackb(data))
    except (InvalidArgument, msgpack.UnpackException, TypeError, ValueError, RecursionError):
        raise ProtocolError("an outcome cannot be decoded: install the same xaspool on all machines") from None


def _packed(outcome: Outcome) -> bytes:
    encoded: bytes = msgpack.packb(_values(outcome))
    return encoded


def _values(outcome: Outcome) -> tuple[Any, ...]:
    match outcome:
        case Replied(body, content_type, codec):
            return 0, body, content_type, codec
        case Retried(reason, delay, counted):
            return 1, reason, delay, counted
        case Rejected(reason, reply, delay):
            return 2, reason, None if reply is None else _values(reply), delay
        case Passed(queue):
            return 3, queue
        case Translated():
            return 4, [(new.queue, new.raw, dict(new.attributes)) for new in outcome.messages], outcome.note


def _outcome(values: Any) -> Outcome:
    match values:
        case [0, *_]:
            return _replied(values)
        case [1, str(reason), int() | float() | None as delay, bool(counted)]:
            return Retried(reason, bounded(delay), counted)
        case [2, str(reason), reply, int() | float() | None as delay]:
            return Rejected(reason, None if reply is None else _replied(reply), bounded(delay))
        case [3, queue]:
            return Passed(check_queue_name(queue))
        case [4, list(messages), str(note)]:
            return Translated([_new(*message) for message in messages], note)
    raise TypeError


def _replied(values: Any) -> Replied:
    match values:
        case [0, bytes(body), str() | None as content_type, str() | None as codec]:
            return Replied(body, content_type, codec)
    raise TypeError


def _new(queue: Any, raw: Any, attributes: Any) -> NewMessage:
    options = dict(_is(dict, attributes))
    own = {name: _is(kind, options.pop(name)) for name, kind in _OF_NO_PUT.items() if name in options}
    return NewMessage.stored(check_queue_name(queue), _is(bytes, raw), {**attributes_of(**options), **own})


def _is(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError
    return value


_OF_NO_PUT = {"codec": str, "content_type": str, "failure_reason": str, "origin_queue": str, "origin_attempts": int}
"""The types of the control fields that are not options of a put."""
_DONE = Replied()
_PACKED_DONE = _packed(_DONE)
