"""A message as an object for JSON, and such an object as a message: for commands, and for HTTP. Pure."""

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from spool.errors import CorruptedFile, SpoolError, UnknownCodec
from spool.model import codecs
from spool.model.message import FIELDS, Message
from spool.model.position import Position

CODEC: Final = "codec"
BYTES_OF: Mapping[str, Callable[[str], bytes]] = {"utf-8": str.encode, "base64": partial(b64decode, validate=True)}
"""The function that returns the bytes of a body, for each ``body_encoding``."""
_MOST_DECODED = 1 << 20  # bytes; a larger body has no value in JSON
_CONTROL = re.compile(rb"[\0-\x08\x0b\x0c\x0e-\x1f]")
_ATTRIBUTES = [name for name in (*FIELDS, CODEC) if name not in ("id", "queue", "body", "enqueued_at", "position")]


def message_object(
    message: Message,
    *,
    body_bytes: int | None = None,
    most: int | None = None,
    value: bool = True,
    compact: bool = False,
) -> dict[str, Any]:
    """Return a message, whose body is the stored bytes, as an object for JSON.

    `body_encoding`: whether the body is text or base64. `value`: the decoded body, if JSON has such a value.

    Args:
        body_bytes: the size of the whole body, if the body of `message` is only its beginning.
        most: the most bytes of the body; None means all bytes. `body_cut` is true if the object has only the beginning.
        value: whether the object has the `value`.
        compact: see ``as_json_fields``.
    """
    fields: dict[str, Any] = {}
    for name, field in message.as_dict().items():
        if name != "body":
            fields[name] = field
            continue
        raw: bytes = message.body if most is None else message.body[:most]
        size = len(message.body) if body_bytes is None else body_bytes
        is_cut = len(raw) < size
        fields |= as_json_fields("body", raw, cut=is_cut, compact=compact)
        fields |= {"body_bytes": size, "body_cut": is_cut} | (_value(message) if value and not is_cut else {})
    return fields


def message_of(found: Mapping[str, Any], *, undecoded: bool = False) -> Message:
    """Return the message of a whole ``message_object`` with its ``codec``. Raises UnknownCodec if this process cannot
    decode the body, unless it may be ``undecoded``: the stored bytes.
    """
    raw = BYTES_OF[found["body_encoding"]](found["body"])
    attributes = {name: found[name] for name in _ATTRIBUTES if found.get(name) is not None}
    try:
        body = codecs.decode(raw, found.get(CODEC))
    except (UnknownCodec, CorruptedFile) as error:
        if not undecoded:
            unknown = UnknownCodec(f"message {found['id']} remains in queue {found['queue']}: {error}")
            unknown.message_id = found["id"]
            raise unknown from error
        body = raw
    return Message(found["id"], found["queue"], body, found["enqueued_at"], Position(*found["position"]), attributes)


def _value(message: Message) -> dict[str, Any]:
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


def as_json_fields(name: str, raw: bytes, *, cut: bool = False, compact: bool = False) -> dict[str, str]:
    """Return the bytes as two fields for JSON. The field `name` has the text if the bytes are UTF-8, and base64
    otherwise. The field `name`_encoding is "utf-8" or "base64".

    Args:
        cut: whether the last character may be incomplete.
        compact: whether a text with control characters becomes base64, too: as text, each of them has six bytes.
    """
    text, encoding = None if compact and _CONTROL.search(raw) else text_of(raw, is_cut=cut), "utf-8"
    if text is None:
        text, encoding = b64encode(raw).decode("ascii"), "base64"
    return {name: text, f"{name}_encoding": encoding}


def text_of(raw: bytes, *, is_cut: bool) -> str | None:
    """Return the text of the bytes if they are UTF-8. `is_cut`: whether the last character may be incomplete."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return raw[: error.start].decode("utf-8") if is_cut and len(raw) - error.start < 4 else None
