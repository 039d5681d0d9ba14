"""Bodies for people: decoded by the codec that wrote them, or by their content type, and never without a bound."""

import json
from base64 import b64encode
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from xaspool_scripts.output import printable
from xaspool_scripts.wording import on_terminal, plural

if TYPE_CHECKING:
    from spool.model.message import Message

_MOST_DECODED = 1 << 20  # bytes; a larger body is shown as it begins
_MOST_SHOWN = 1 << 16  # characters
_PIECE = 120
_ROW = 16
_ENDING = " …"


class _NoValue(Exception):
    """The body is text or bytes, or what it should be cannot be read."""


def value(message: "Message") -> Any:
    """What a consumer in Python gets for a JSON or msgpack body; ``_NoValue`` for any other."""
    from spool.errors import SpoolError
    from spool.model import codecs

    raw = message.body
    name = message.codec or codecs.codec_of(message.content_type)
    if name not in ("json", "msgpack") or len(raw) > _MOST_DECODED:
        raise _NoValue
    try:
        return codecs.decode(raw, name)
    except (SpoolError, RecursionError):
        raise _NoValue from None


def json_value(message: "Message") -> dict[str, Any]:
    """``{"value": …}`` if the body has a value that JSON can express, else {}."""
    try:
        found = value(message)
        json.dumps(found, allow_nan=False)
    except (_NoValue, TypeError, ValueError, RecursionError):
        return {}
    return {"value": found}


def message_object(message: "Message", *, body: bool = True) -> dict[str, Any]:
    """Return a message as an object for JSON.

    The body is text, or else base64, as `body_encoding` tells; `value` is what it decodes to, if JSON has such a value.
    """
    fields: dict[str, Any] = {}
    for name, field in message.as_dict().items():
        if name != "body":
            fields[name] = field
        elif body:
            fields |= {**_encoded(message.body), **json_value(message)}
    return fields


def _encoded(raw: bytes) -> dict[str, str]:
    try:
        return {"body": raw.decode("utf-8"), "body_encoding": "utf-8"}
    except UnicodeDecodeError:
        return {"body": b64encode(raw).decode("ascii"), "body_encoding": "base64"}


def write(message: "Message") -> str:
    """Show the body on standard output, in colours on a terminal; returns what was left out of it, or ""."""
    text, structured = _text(message)
    left_out = ""
    if len(text) > _MOST_SHOWN:
        text, left_out = text[:_MOST_SHOWN] + _ENDING, f"the first {plural(_MOST_SHOWN, 'character')} of the body"
    elif len(message.body) > _MOST_DECODED:
        left_out = f"the first {plural(_MOST_DECODED, 'byte')} of the body"
    if structured and on_terminal():
        from rich.console import Console
        from rich.highlighter import JSONHighlighter

        Console().print(JSONHighlighter()(text), soft_wrap=True)
    else:
        click.echo(text)
    return left_out


def _text(message: "Message") -> tuple[str, bool]:
    """The body as text without control characters, and whether it is a value's."""
    try:
        return printable(_pretty(value(message)), keep="\n\t"), True
    except _NoValue:
        pass
    raw = message.body[:_MOST_DECODED]
    text = _decoded(raw, cut=len(message.body) > len(raw))
    return _dump(raw) if text is None else printable(text, keep="\n\t"), False


def _decoded(raw: bytes, *, cut: bool) -> str | None:
    """Text if it is UTF-8. ``cut``: the last character may lack its end."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return raw[: error.start].decode("utf-8") if cut and len(raw) - error.start < 4 else None


def _pretty(found: Any) -> str:
    try:
        return json.dumps(found, indent=2, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        from rich.pretty import pretty_repr

        return pretty_repr(_with_plain_times(found), max_width=100, max_depth=50)


def _with_plain_times(found: Any) -> Any:
    return found.isoformat() if isinstance(found, datetime) else found


def _dump(raw: bytes) -> str:
    """Offsets, bytes and what of them is ASCII."""
    rows = []
    for offset in range(0, min(len(raw), _MOST_SHOWN // 4), _ROW):
        row = raw[offset : offset + _ROW]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        rows.append(f"{offset:08x}  {row.hex(' ').ljust(3 * _ROW)} {letters}")
    if len(raw) > _MOST_SHOWN // 4:
        rows.append(_ENDING.strip())
    return "\n".join(rows)


def piece(message: "Message") -> str:
    """The beginning of the body on one line."""
    raw = message.body
    cut = raw[:_PIECE]
    text = None if message.codec == "msgpack" else _decoded(cut, cut=len(raw) > _PIECE)
    if text is None:
        try:
            text = " ".join(_one_line(value(message)).split()) if len(raw) <= 8 * _PIECE else None
        except _NoValue:
            text = None
    if text is None:
        text = cut[:_ROW].hex(" ")
        return f"bytes {text}{_ENDING if len(raw) > _ROW else ''}"
    text = printable(" ".join(text[:_PIECE].split()))
    return text + (_ENDING if len(raw) > _PIECE else "")


def _one_line(found: Any) -> str:
    try:
        return json.dumps(found, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return repr(_with_plain_times(found))
