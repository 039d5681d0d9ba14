"""Show bodies, decoded by their codec or content type. A long body is cut."""

import json
from base64 import b64encode
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from xaspool_scripts.wording import on_terminal, plural, printable

if TYPE_CHECKING:
    from spool.model.message import Message

_MAX_DECODED = 1 << 20  # bytes; only the beginning of a larger body is shown
JSON_BYTES = 1 << 16  # the most bytes of a body in JSON, unless the whole body is asked for
_MAX_SHOWN = 1 << 16  # characters
_PIECE = 120
_ROW = 16
_ENDING = " …"
_MAX_DECODED_IN_LIST = 8 * _PIECE  # bytes
# How many bytes of a body to read, so that ``piece`` and ``write`` can also see whether the body is longer than the
# part that they decode.
LIST_PREVIEW, SHOW_PREVIEW = _MAX_DECODED_IN_LIST + 1, _MAX_DECODED + 1


class _NoValue(Exception):
    """The body is text or bytes, or it cannot be decoded."""


def value(message: "Message") -> Any:
    """Return the value that a consumer in Python gets for a JSON or msgpack body. Raise `_NoValue` for any other
    body."""
    from spool.errors import SpoolError
    from spool.model import codecs

    raw = message.body
    name = message.codec or codecs.codec_of(message.content_type)
    if name not in ("json", "msgpack") or len(raw) > _MAX_DECODED:
        raise _NoValue
    try:
        return codecs.decode(raw, name)
    except (SpoolError, RecursionError):
        raise _NoValue from None


def json_value(message: "Message") -> dict[str, Any]:
    """Return ``{"value": …}`` if the body has a value that JSON can express. Otherwise return {}."""
    try:
        decoded = value(message)
        json.dumps(decoded, allow_nan=False)
    except (_NoValue, TypeError, ValueError, RecursionError):
        return {}
    return {"value": decoded}


def message_object(
    message: "Message", *, body: bool = True, body_bytes: int | None = None, most: int | None = None
) -> dict[str, Any]:
    """Return a message as an object for JSON.

    `body_encoding`: whether the body is text or base64. `value`: the decoded body, if JSON has such a value.

    Args:
        body: whether the object has the body.
        body_bytes: the size of the whole body, if the body of `message` is only its beginning.
        most: the most bytes of the body; None for all. `body_cut` is true if the object has only the beginning.
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
            fields |= {"body_bytes": size, "body_cut": is_cut} | ({} if is_cut else json_value(message))
    return fields


def as_json_fields(name: str, raw: bytes, *, cut: bool = False) -> dict[str, str]:
    """Return the bytes as two fields for JSON. The field `name` has the text if the bytes are UTF-8, and base64
    otherwise. The field `name`_encoding is "utf-8" or "base64". `cut`: whether the last character may be incomplete."""
    text, encoding = _decoded(raw, cut=cut), "utf-8"
    if text is None:
        text, encoding = b64encode(raw).decode("ascii"), "base64"
    return {name: text, f"{name}_encoding": encoding}


def write(message: "Message") -> str:
    """Print the body, in colours on a terminal. Return the size of the printed part, or "" if the whole body was
    printed."""
    text, structured = _text(message)
    part = ""
    if len(text) > _MAX_SHOWN:
        text, part = text[:_MAX_SHOWN] + _ENDING, plural(_MAX_SHOWN, "character")
    elif len(message.body) > _MAX_DECODED:
        part = plural(_MAX_DECODED, "byte")
    if structured and on_terminal():
        from rich.console import Console
        from rich.highlighter import JSONHighlighter

        Console().print(JSONHighlighter()(text), soft_wrap=True)
    else:
        click.echo(text)
    return part


def _text(message: "Message") -> tuple[str, bool]:
    """Return the body as text without control characters, and whether the text shows a decoded value."""
    try:
        return printable(_as_text(value(message), indent=2), keep="\n\t"), True
    except _NoValue:
        pass
    raw = message.body[:_MAX_DECODED]
    text = _decoded(raw, cut=len(message.body) > len(raw))
    return _dump(raw) if text is None else printable(text, keep="\n\t"), False


def _decoded(raw: bytes, *, cut: bool) -> str | None:
    """Return the text of the bytes if they are UTF-8, else None. `cut`: whether the last character may be
    incomplete."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return raw[: error.start].decode("utf-8") if cut and len(raw) - error.start < 4 else None


def _as_text(decoded: Any, indent: int | None = None) -> str:
    """Return a decoded value as JSON, or as Python shows it if JSON has no such value. Without `indent`, the text is
    one line."""
    try:
        return json.dumps(decoded, indent=indent, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        plain = decoded.isoformat() if isinstance(decoded, datetime) else decoded
        if indent is None:
            return repr(plain)
        from rich.pretty import pretty_repr

        return pretty_repr(plain, max_width=100, max_depth=50)


def _dump(raw: bytes) -> str:
    """Return a hex dump: offsets, bytes, and the bytes as ASCII."""
    rows = []
    for offset in range(0, min(len(raw), _MAX_SHOWN // 4), _ROW):
        row = raw[offset : offset + _ROW]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        rows.append(f"{offset:08x}  {row.hex(' ').ljust(3 * _ROW)} {letters}")
    if len(raw) > _MAX_SHOWN // 4:
        rows.append(_ENDING.strip())
    return "\n".join(rows)


def piece(message: "Message") -> str:
    """Return the beginning of the body on one line."""
    raw = message.body
    cut = raw[:_PIECE]
    text = None if message.codec == "msgpack" else _decoded(cut, cut=len(raw) > _PIECE)
    with suppress(_NoValue):
        if text is None and len(raw) <= _MAX_DECODED_IN_LIST:
            text = " ".join(_as_text(value(message)).split())
    if text is None:
        text = cut[:_ROW].hex(" ")
        return f"bytes {text}{_ENDING if len(raw) > _ROW else ''}"
    text = printable(" ".join(text[:_PIECE].split()))
    return text + (_ENDING if len(raw) > _PIECE else "")
