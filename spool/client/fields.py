"""The forms of a message in HTTP: its fields as headers, and the arguments of a put and the outcome of a call in JSON.

An HTTP header cannot contain control characters, characters outside ASCII, or blanks at its ends. In the headers of
messages, these characters are percent-encoded UTF-8, as in a URL. A "%" becomes "%25", so that percent-decoding always
returns the original text.
"""

import json
import re
import string
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from spool.errors import InvalidArgument
from spool.model import codecs
from spool.model.codecs import JSON_TYPE, Encoded
from spool.model.message import FIELDS, PUT_OPTIONS, Message, attributes_of, check_content_type
from spool.model.objects import BYTES_OF, CODEC, as_json_fields
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

_IN_VALUES = "".join(sorted(set(string.ascii_letters + string.digits + string.punctuation + " ") - {"%"}))
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
            yield ARGUMENTS.get(name, "Spool-Codec"), _as_text(value)


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
        raw = BYTES_OF[encoding](body)
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


def fields_of_put(body: Any, options: Mapping[str, Any]) -> tuple[bytes, dict[str, Any]]:
    """Check and encode a put; return the stored bytes, and the options with their codec, which is "" for bytes. The
    deduplication key is left out."""
    given = dict(options)
    raw, codec, content_type = codecs.encode(body, check_content_type(given.pop("content_type", None)))
    return raw, {**attributes_of(**given), CODEC: codec or "", "content_type": content_type}


def check_bytes(size: int, most: int = MOST_BODY_BYTES) -> None:
    """Raise InvalidArgument if a server refuses so many bytes in a call."""
    if size > most:
        raise InvalidArgument(f"a call to a server has at most {most:,} bytes, not {size:,}: put less at once")


def put_object(raw: bytes, options: Mapping[str, Any], **queue: str) -> dict[str, Any]:
    """Return the object of a put whose body is stored bytes, with its queue if it names one: see ``put_of``."""
    return {**queue, **options, **as_json_fields("body", raw, compact=True)}


def json_bytes(value: Any) -> bytes:
    """Return a value as JSON in UTF-8. Surrogates, which a text of JSON may have, remain."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


# -- messages ---------------------------------------------------------------------------------------------------------

_SHOWN = [name for name in FIELDS if name not in ("body", "content_type", "headers", "position")]


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


# -- the outcome of a call --------------------------------------------------------------------------------------------


def new_object(new: NewMessage) -> dict[str, Any]:
    """Return the object of a put that names its queue."""
    return put_object(new.raw, new.attributes, queue=new.queue)


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
    return {"reply": put_object(outcome.body, {CODEC: outcome.codec, "content_type": outcome.content_type})}


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
