"""The forms of a put and of the outcome of a call in HTTP: headers, and objects for JSON. The server has the other
direction: ``forwarder.web.forms``.

An HTTP header cannot contain control characters, characters outside ASCII, or blanks at its ends. In the headers of
messages, these characters are percent-encoded UTF-8, as in a URL. A "%" becomes "%25", so that percent-decoding always
returns the original text.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

from spool.errors import InvalidArgument
from spool.model import codecs
from spool.model.message import PUT_OPTIONS, attributes_of, check_content_type
from spool.model.objects import CODEC, as_json_fields
from spool.model.xid import BRANCH_ID_BYTES
from spool.workers.outcome import NewMessage, Outcome, Passed, Rejected, Retried, Translated

NDJSON: Final = "application/x-ndjson"
ARROW: Final = "application/vnd.apache.arrow.stream"
MOST_BODY_BYTES: Final = 64 << 20
"""The most bytes of a request's body, unless its messages have a smaller limit."""
MOST_JSON_BYTES: Final = 96 << 20
"""The same, for a body whose messages may be in base64."""

_IN_VALUES = " !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"
IN_NAMES = "!#$&'*+-.^_`|~"


def branch_of(receipt: str) -> bytes:
    """Return the branch of the messages that are put by the end of an attempt: the beginning of their ids.

    A receipt is random, and ends one attempt. So no other message has these ids, and both sides know them.
    """
    return hashlib.sha256(receipt.encode()).digest()[:BRANCH_ID_BYTES]


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
    return f"spool-header-{quote(name, safe=IN_NAMES, errors='replace')}"


_HEADERS = {"content_type": "Content-Type", "deduplication_key": "Idempotency-Key", "headers": "Spool-Header-NAME"}
ARGUMENTS: Mapping[str, str] = {
    name: _HEADERS.get(name, f"Spool-{name.replace('_', '-').title()}") for name in PUT_OPTIONS
}
"""The header of each option of a put, for the texts of errors."""


def _with_case(header: str) -> str:
    return re.sub("(?<!%)(?<!%[0-9A-F])[A-Z]", lambda capital: f"%{ord(capital[0]):X}", header)


def headers_of_put(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the headers of a put's checked options. Capitals in the names of the message's own headers are encoded,
    because HTTP does not keep the case of names."""
    for name, value in options.items():
        if name == "headers":
            yield from ((_with_case(header_name(key)), header_value(text)) for key, text in value.items())
        elif value is not None:
            yield ARGUMENTS.get(name, "Spool-Codec"), as_text(value)


def as_text(value: Any) -> str:
    """Encode the value of an option or a field for a header."""
    if isinstance(value, bool):
        return str(value).lower()
    return header_value(value.isoformat() if isinstance(value, datetime) else str(value))


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
    """Return the object of a put whose body is stored bytes, with its queue if it names one."""
    return {**queue, **options, **as_json_fields("body", raw, compact=True)}


def json_bytes(value: Any) -> bytes:
    """Return a value as JSON in UTF-8. Surrogates, which a text of JSON may have, remain."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


# -- the outcome of a call --------------------------------------------------------------------------------------------


def new_object(new: NewMessage) -> dict[str, Any]:
    """Return the object of a put that names its queue."""
    return put_object(new.raw, new.attributes, queue=new.queue)


def outcome_object(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as an object for JSON; the server's ``outcome_of`` reverses this."""
    if isinstance(outcome, Retried | Rejected):
        reply = outcome.reply if isinstance(outcome, Rejected) else None
        name = "retry" if isinstance(outcome, Retried) else "reject"
        return {name: outcome.reason, "delay": outcome.delay, **({} if reply is None else outcome_object(reply))}
    if isinstance(outcome, Passed):
        return {"pass": outcome.queue}
    if isinstance(outcome, Translated):
        return {"put": list(map(new_object, outcome.messages)), "note": outcome.note}
    return {"reply": put_object(outcome.body, {CODEC: outcome.codec, "content_type": outcome.content_type})}
