"""The puts, the outcomes of calls and the messages that the server reads from requests, or writes into answers.

``spool.client.fields`` has the forms, and their other direction.
"""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import unquote

from spool.client.fields import ARGUMENTS, as_text, header_name, header_value
from spool.errors import InvalidArgument
from spool.model import codecs
from spool.model.codecs import JSON_TYPE, Encoded
from spool.model.message import FIELDS, PUT_OPTIONS, Message, check_content_type
from spool.model.objects import BYTES_OF, CODEC
from spool.model.settings import check_queue_name
from spool.model.text import one_line, shown
from spool.workers.outcome import NewMessage, Outcome, Passed, Rejected, Replied, Retried, Translated, bounded

_PREFIX, _HEADER_PREFIX = "spool-", "spool-header-"


class PutForm(NamedTuple):
    """The arguments of a put. ``queue``: the queue's name, or None if the address names the queue."""

    body: Any
    options: dict[str, Any]
    queue: str | None = None


def _number(text: str) -> Any:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text  # (the check of the option refuses it)


def _moment(text: str) -> Any:
    with suppress(ValueError):
        return datetime.fromisoformat(text) if "-" in text[1:] else _number(text)
    return text


def _flag(text: str) -> Any:
    return {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)


def _text(value: str) -> str:
    """Return the text of a header. InvalidArgument, because two texts that are read wrongly could become equal."""
    with suppress(UnicodeDecodeError):
        if value.isascii():
            return unquote(value, errors="strict")
    raise InvalidArgument(f"a header is percent-encoded UTF-8, e.g. gr%C3%BCn, not {shown(value)}")


_PARSED = {"TIME": _number, "MOMENT": _moment, "N": _number}
_OPTIONS = {
    name.replace("_", "-"): (name, _flag if option.default is False else _PARSED.get(option.check.metavar, _text))
    for name, option in PUT_OPTIONS.items()
    if name not in ("headers", "content_type", "deduplication_key")
}


def options_of(headers: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return the options of a put from the headers of its request, whose names are in lower case.

    Raises InvalidArgument if no option belongs to a header that begins with ``spool-``. The values are not checked.
    """
    found: dict[str, Any] = {}
    for name, value in headers:
        if name.startswith(_HEADER_PREFIX):
            found.setdefault("headers", {})[_text(name.removeprefix(_HEADER_PREFIX))] = _text(value)
        elif name.startswith(_PREFIX):
            option = _OPTIONS.get(name.removeprefix(_PREFIX)) or ((CODEC, _text) if name == "spool-codec" else None)
            if option is None:
                raise InvalidArgument(f"there is no header {shown(name)}; there are {', '.join(ARGUMENTS.values())}")
            found[option[0]] = option[1](value)
        elif name == "idempotency-key":
            found["deduplication_key"] = _text(value)
    return found


def put_of(line: Any) -> PutForm:
    """Return the put of a JSON object: ``body``, the names of options, and ``queue``.

    A ``body`` with a ``body_encoding`` is the bytes of the body: ``"utf-8"`` or ``"base64"``. A ``codec`` names the
    codec that wrote these bytes. Without an encoding, a text is a text, and any other value is put as JSON.

    Raises InvalidArgument if the object is no put.
    """
    if not isinstance(line, dict):
        raise InvalidArgument(f'a message is an object with a body, e.g. {{"body": "hello"}}, not {shown(line)}')
    options = dict(line)
    if "body" not in options:
        raise InvalidArgument(f"a message has no body: {shown(line)}")
    body, encoding, queue = options.pop("body"), options.pop("body_encoding", None), options.pop("queue", None)
    codec = options.pop(CODEC, None)
    for name in options.keys() - PUT_OPTIONS.keys():
        raise InvalidArgument(f"a message has no field {shown(name)}; there are body, {', '.join(PUT_OPTIONS)}")
    for name in ("not_before", "expires_at"):
        if isinstance(options.get(name), str):
            options[name] = _moment(options[name])
    if encoding is None:
        if not isinstance(body, str):
            options.setdefault("content_type", JSON_TYPE)
            try:
                raw = json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
            except (ValueError, RecursionError) as error:
                raise InvalidArgument(f"the body is no JSON: {error}"[:300]) from None
            body = Encoded(raw, "json", proven=True)
        return PutForm(body, options, queue)
    try:
        raw = BYTES_OF[encoding](body)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise InvalidArgument(f"a body with body_encoding is a text in utf-8 or base64, not {shown(body)}") from None
    return PutForm(encoded(raw, codec, options.get("content_type")), options, queue)


def encoded(raw: bytes, codec: Any, content_type: str | None) -> Any:
    """Return the body of a put for bytes that a codec wrote; None stands for no codec. InvalidArgument."""
    if not codec:
        return raw
    if not isinstance(codec, str) or (codec not in codecs.CODECS and content_type is None):
        raise InvalidArgument(f"a codec is a name, with the content type of its bytes, not {shown(codec)}")
    return Encoded(raw, codec, proven=codec not in codecs.CODECS)  # (another process may know the codec)


# -- messages ---------------------------------------------------------------------------------------------------------

_SHOWN = [name for name in FIELDS if name not in ("body", "content_type", "headers", "position")]


def headers_of(message: Message) -> list[tuple[str, str]]:
    """Return the headers of a message's fields. The body is the stored bytes of the message's body."""
    found = [("Content-Type", header_value(message.content_type)), ("Spool-Id", message.id)]
    found.append(("Spool-Position", ".".join(map(str, message.position))))
    for name in (*_SHOWN[1:], "codec"):
        value = getattr(message, name)
        if value is not None:
            found.append((f"Spool-{name.replace('_', '-').title()}", as_text(value)))
    return [*found, *((header_name(name), header_value(value)) for name, value in message.headers.items())]


# -- the outcome of a call --------------------------------------------------------------------------------------------


def outcome_of(given: Mapping[str, Any]) -> Outcome:
    """Return the outcome of an object: ``reply``, ``put``, ``pass``, ``retry``, or ``reject`` with or without a reply.

    Raises InvalidArgument if the object is no outcome.
    """
    names, delay = given.keys() - {"delay", "note"}, bounded(given.get("delay"))
    reply = None
    if "reply" in names:
        body, options, _ = put_of(given["reply"])
        raw, codec, content_type = codecs.encode(body, check_content_type(options.pop("content_type", None)))
        reply = Replied(raw, content_type, codec)
    if names == {"reply"} and reply is not None:
        return reply
    if "reject" in names and names <= {"reject", "reply"}:
        return Rejected(one_line(given["reject"]), reply, delay)
    if names == {"retry"}:
        return Retried(one_line(given["retry"]), delay)
    if names == {"pass"}:
        return Passed(check_queue_name(given["pass"]))
    if names == {"put"} and isinstance(given["put"], list):
        puts = [NewMessage(check_queue_name(put.queue), put.body, **put.options) for put in map(put_of, given["put"])]
        return Translated(puts, str(given.get("note", "")))
    raise InvalidArgument("an outcome is one of reply, put, pass, retry, and reject, which may have a reply")


def queues_of(outcome: Outcome) -> list[str]:
    """Return the queues that the service of an outcome has chosen."""
    return [outcome.queue] if isinstance(outcome, Passed) else [new.queue for new in getattr(outcome, "messages", ())]
