"""The forms of a message in HTTP: its fields as headers, a message as a JSON object, and the arguments of a put.

An HTTP header cannot contain control characters, characters outside ASCII, or blanks at its ends. In the headers of
messages, these characters are percent-encoded UTF-8, as in a URL. A "%" becomes "%25", so that percent-decoding always
returns the original text.
"""

import json
import re
import string
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from spool.errors import CorruptedFile, InvalidArgument, SpoolError, UnknownCodec
from spool.model import codecs
from spool.model.codecs import JSON_TYPE, Encoded
from spool.model.message import FIELDS, PUT_OPTIONS, Message, attributes_of, check_content_type
from spool.model.position import Position
from spool.model.settings import check_queue_name
from spool.model.text import one_line, shown
from spool.workers.outcome import NewMessage, Outcome, Passed, Rejected, Replied, Retried, Translated, bounded

NDJSON: Final = "application/x-ndjson"
ARROW: Final = "application/vnd.apache.arrow.stream"
PREFIX: Final = "spool-"
HEADER_PREFIX: Final = "spool-header-"
RECEIPT: Final = "spool-receipt"
MOST_BODY_BYTES: Final = 64 << 20
"""The most bytes of a request's body, unless its messages have a smaller limit."""
MOST_JSON_BYTES: Final = 96 << 20
"""The same, for a body whose messages may be in base64."""
_MOST_DECODED = 1 << 20  # bytes; a larger body has no value in JSON

_IN_VALUES = "".join(sorted(set(string.ascii_letters + string.digits + string.punctuation + " ") - {"%"}))
_CONTROL = re.compile(rb"[\0-\x08\x0b\x0c\x0e-\x1f]")  # in a JSON text, each of these needs six bytes
_IN_NAMES = "!#$&'*+-.^_`|~"


class Lines:
    """Cuts chunks of bytes into lines."""

    def __init__(self) -> None:
        self._begun: list[bytes] = []

    def ended_by(self, chunk: bytes) -> list[bytes]:
        """Return the lines that end in this chunk."""
        first, *others = chunk.split(b"\n")
        self._begun.append(first)
        if not others:
            return []
        ended, self._begun = [b"".join(self._begun), *others[:-1]], others[-1:]
        return ended


def header_value(text: str) -> str:
    """Encode a text for a header; ``urllib.parse.unquote`` reverses the encoding."""
    quoted = quote(text, safe=_IN_VALUES, errors="replace")
    # HTTP strips the blanks at a value's ends.
    return re.sub(r"^ +| +$", lambda blanks: "%20" * len(blanks[0]), quoted)


def header_name(name: str) -> str:
    """Return the header of one of a message's own headers."""
    return f"Spool-Header-{quote(name, safe=_IN_NAMES, errors='replace')}"


# -- the arguments of a put -------------------------------------------------------------------------------------------


class Put(NamedTuple):
    """The arguments of a put. ``queue``: the queue's name, or None if the address names the queue."""

    body: Any
    options: dict[str, Any]
    queue: str | None = None


def _number(text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return text  # (the check of the option refuses it)


def _moment(text: str) -> Any:
    try:
        return datetime.fromisoformat(text) if "-" in text[1:] else _number(text)
    except ValueError:
        return text


def _flag(text: str) -> Any:
    return {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)


CODEC: Final = "codec"
_PARSED = {"TIME": _number, "MOMENT": _moment, "N": _number}
_OPTIONS = {
    name.replace("_", "-"): (name, _flag if option.default is False else _PARSED.get(option.check.metavar, unquote))
    for name, option in PUT_OPTIONS.items()
    if name not in ("headers", "content_type", "deduplication_key")
}
ARGUMENTS: Mapping[str, str] = {
    **{name: f"Spool-{header.title()}" for header, (name, _) in _OPTIONS.items()},
    "content_type": "Content-Type", "deduplication_key": "Idempotency-Key", "headers": "Spool-Header-NAME",
}  # fmt: skip
"""The header of each option of a put, for the texts of errors."""


def options_of(headers: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return the options of a put from the headers of its request, whose names are in lower case.

    Raises InvalidArgument if no option belongs to a header that begins with ``spool-``. The values are not checked.
    """
    found: dict[str, Any] = {}
    for name, value in headers:
        if name.startswith(HEADER_PREFIX):
            found.setdefault("headers", {})[unquote(name.removeprefix(HEADER_PREFIX))] = unquote(value)
        elif name.startswith(PREFIX):
            option = _OPTIONS.get(name.removeprefix(PREFIX)) or ((CODEC, unquote) if name == "spool-codec" else None)
            if option is None:
                raise InvalidArgument(f"there is no header {shown(name)}; there are {', '.join(ARGUMENTS.values())}")
            found[option[0]] = option[1](value)
        elif name == "idempotency-key":
            found["deduplication_key"] = unquote(value)
    return found


def headers_of_put(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the headers of a put's checked options."""
    for name, value in options.items():
        if name == "headers":
            yield from ((header_name(key), header_value(text)) for key, text in value.items())
        elif value is not None:
            yield ARGUMENTS[name], _as_text(value)


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return header_value(value.isoformat() if isinstance(value, datetime) else str(value))


def put_of(line: Any) -> Put:
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
        return Put(body, options, queue)
    try:
        raw = _BYTES_OF[encoding](body)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise InvalidArgument(f"a body with body_encoding is a text in utf-8 or base64, not {shown(body)}") from None
    return Put(encoded(raw, codec, options.get("content_type")), options, queue)


def encoded(raw: bytes, codec: Any, content_type: str | None) -> Any:
    """Return the body of a put for bytes that a codec wrote; None stands for no codec. InvalidArgument."""
    if not codec:
        return raw
    if not isinstance(codec, str) or (codec not in codecs.CODECS and content_type is None):
        raise InvalidArgument(f"a codec is a name, with the content type of its bytes, not {shown(codec)}")
    return Encoded(raw, codec, proven=codec not in codecs.CODECS)  # (another process may know the codec)


def fields_of_put(body: Any, options: Mapping[str, Any]) -> tuple[bytes, str | None, str | None, dict[str, Any]]:
    """Check and encode a put; return the stored bytes, their codec, their content type, and the other options."""
    given = dict(options)
    raw, codec, content_type = codecs.encode(body, check_content_type(given.pop("content_type", None)))
    return raw, codec, content_type, attributes_of(**given)


def check_bytes(size: int, most: int = MOST_BODY_BYTES) -> None:
    """Raise InvalidArgument if a server refuses so many bytes in a call."""
    if size > most:
        raise InvalidArgument(f"a call to a server has at most {most:,} bytes, not {size:,}: put less at once")


def put_object(raw: bytes, codec: str | None, content_type: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object of a put whose body is stored bytes: see ``put_of``."""
    return {**options, CODEC: codec, "content_type": content_type, **as_json_fields("body", raw)}


_BYTES_OF: Mapping[str, Callable[[str], bytes]] = {
    "utf-8": lambda text: text.encode(),
    "base64": lambda text: b64decode(text, validate=True),
}


# -- messages ---------------------------------------------------------------------------------------------------------

_SHOWN = [name for name in FIELDS if name not in ("body", "content_type", "headers", "position")]
_ATTRIBUTES = [
    *(name for name in _SHOWN if name not in ("id", "queue", "enqueued_at")),
    "content_type",
    "headers",
    CODEC,
]


def headers_of(message: Message) -> list[tuple[str, str]]:
    """Return the headers of a message's fields. The body is the stored bytes of the message's body."""
    found = [("Content-Type", header_value(message.content_type)), ("Spool-Id", message.id)]
    found.append(("Spool-Position", ".".join(map(str, message.position))))
    for name in (*_SHOWN[1:], "codec"):
        value = getattr(message, name)
        if value is not None:
            found.append((f"Spool-{name.replace('_', '-').title()}", _as_text(value)))
    for name, value in message.headers.items():
        found.append((header_name(name), header_value(value)))
    return found


def message_object(
    message: Message, *, body: bool = True, body_bytes: int | None = None, most: int | None = None, value: bool = True
) -> dict[str, Any]:
    """Return a message, whose body is the stored bytes, as an object for JSON.

    `body_encoding`: whether the body is text or base64. `value`: the decoded body, if JSON has such a value.

    Args:
        body: whether the object has the body.
        body_bytes: the size of the whole body, if the body of `message` is only its beginning.
        most: the most bytes of the body; None means all bytes. `body_cut` is true if the object has only the beginning.
        value: whether the object has the `value`.
    """
    fields: dict[str, Any] = {}
    for name, field in message.as_dict().items():
        if name != "body":
            fields[name] = field
        elif body:
            raw: bytes = message.body if most is None else message.body[:most]
            size = len(message.body) if body_bytes is None else body_bytes
            is_cut = len(raw) < size
            fields |= as_json_fields("body", raw, cut=is_cut)
            fields |= {"body_bytes": size, "body_cut": is_cut} | (json_value(message) if value and not is_cut else {})
    return fields


def message_of(found: Mapping[str, Any], *, undecoded: bool = False) -> Message:
    """Return the message of a whole ``message_object`` with its ``codec``. Raises UnknownCodec if this process cannot
    decode the body, unless it may be ``undecoded``: the stored bytes.
    """
    raw = _BYTES_OF[found["body_encoding"]](found["body"])
    position, attributes = Position(*found["position"]), {name: found[name] for name in _ATTRIBUTES if found.get(name)}
    try:
        body = codecs.decode(raw, found.get(CODEC))
    except (UnknownCodec, CorruptedFile) as error:
        if not undecoded:
            unknown = UnknownCodec(f"message {found['id']} remains in queue {found['queue']}: {error}")
            unknown.message_id = found["id"]
            raise unknown from error
        body = raw
    return Message(found["id"], found["queue"], body, found["enqueued_at"], position, attributes)


def json_value(message: Message) -> dict[str, Any]:
    """Return ``{"value": …}`` if the body is JSON or msgpack, and JSON can express its value. Otherwise return {}.

    A consumer in Python gets the same value.
    """
    raw, name = message.body, message.codec or codecs.codec_of(message.content_type)
    if name not in ("json", "msgpack") or len(raw) > _MOST_DECODED:
        return {}
    try:
        decoded = codecs.decode(raw, name)
        json.dumps(decoded, allow_nan=False)
    except (SpoolError, TypeError, ValueError, RecursionError):
        return {}
    return {"value": decoded}


def as_json_fields(name: str, raw: bytes, *, cut: bool = False) -> dict[str, str]:
    """Return the bytes as two fields for JSON.

    The field `name` has the text if the bytes are UTF-8 without control characters, and base64 otherwise. The field
    `name`_encoding is "utf-8" or "base64". `cut`: whether the last character may be incomplete.
    """
    from spool.watch.bodies import text_of

    text, encoding = None if _CONTROL.search(raw) else text_of(raw, is_cut=cut), "utf-8"
    if text is None:
        text, encoding = b64encode(raw).decode("ascii"), "base64"
    return {name: text, f"{name}_encoding": encoding}


# -- the outcome of a call --------------------------------------------------------------------------------------------


def new_object(new: NewMessage) -> dict[str, Any]:
    """Return the object of a put that names its queue."""
    return {"queue": new.queue, **new.attributes, **as_json_fields("body", new.raw)}


def outcome_object(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as an object for JSON; ``outcome_of`` reverses this."""
    if isinstance(outcome, Retried | Rejected):
        reply = outcome.reply if isinstance(outcome, Rejected) else None
        name = "retry" if isinstance(outcome, Retried) else "reject"
        return {name: outcome.reason, "delay": outcome.delay, **({} if reply is None else outcome_object(reply))}
    if isinstance(outcome, Passed):
        return {"pass": outcome.queue}
    if isinstance(outcome, Translated):
        return {"put": list(map(new_object, outcome.messages)), "note": outcome.note}
    return {"reply": put_object(outcome.body, outcome.codec, outcome.content_type, {})}


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
        puts = map(put_of, given["put"])
        news = [NewMessage(check_queue_name(put.queue), put.body, **put.options) for put in puts]
        return Translated(news, str(given.get("note", "")))
    raise InvalidArgument("an outcome is one of reply, put, pass, retry, and reject, which may have a reply")


def queues_of(outcome: Outcome) -> list[str]:
    """Return the queues that the service of an outcome has chosen."""
    return [outcome.queue] if isinstance(outcome, Passed) else [new.queue for new in getattr(outcome, "messages", ())]
