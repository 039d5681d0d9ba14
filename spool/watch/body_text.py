"""Bodies as text for people: JSON and msgpack as JSON, other text as it is, other bytes as a hex dump. Pure.

The length of the text is limited. The text may have any characters, so each view escapes it for its own medium.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from spool.errors import SpoolError
from spool.model import codecs
from spool.model.objects import text_of
from spool.model.text import plural, printable, shown
from spool.watch.units import size

if TYPE_CHECKING:
    from spool.model.message import Message

_MOST_DECODED = 256 << 10  # bytes; a larger body is shown undecoded
_MOST_SHOWN = 64 << 10  # characters
_MOST_DUMPED = 4_000  # bytes
_MOST_IN_LIST = 16 << 10  # bytes; a list shows a larger msgpack body as bytes
# How many bytes of a body to read: one byte more than is decoded, so that a longer body is recognized.
BODY_PREVIEW, LIST_PREVIEW = _MOST_DECODED + 1, _MOST_IN_LIST + 1
_MOST_LEVELS, _LEVELS_IN_LIST = 50, 5  # of nested values: with more levels, a small body could become a large text
_ROW = 16


@dataclass(frozen=True)
class BodyView:
    """A body as text.

    kind: "JSON", "msgpack", "text", "bytes" or "empty".
    note: the part that is shown, if it is not the whole body.
    """

    kind: str
    text: str
    note: str = ""


def body_view(message: "Message", body_bytes: int) -> BodyView:
    """Return a body as text. The body of `message` is the stored bytes, or at least their first ``BODY_PREVIEW``.

    body_bytes: the size of the whole body.
    """
    raw: bytes = message.body
    if not raw:
        return BodyView("empty", "")
    name = message.codec or codecs.codec_of(message.content_type)
    if name in ("json", "msgpack") and len(raw) <= _MOST_DECODED:
        try:
            text = json.dumps(_plain(codecs.decode(raw, name), _MOST_LEVELS), indent=2, ensure_ascii=False)
        except (SpoolError, ValueError, RecursionError):
            pass  # the body does not fit its type, and is shown as text or bytes
        else:
            return _cut("JSON" if name == "json" else name, text, "value")
    is_cut = len(raw) > 4 * _MOST_SHOWN
    decoded = None if name == "msgpack" else text_of(raw[: 4 * _MOST_SHOWN], is_cut=is_cut)
    is_named = name is not None or message.content_type.startswith("text/")
    if decoded is not None and (is_named or "\0" not in decoded):
        return _cut("text", decoded, "body", is_cut)
    note = f"the first {size(_MOST_DUMPED)} of {size(body_bytes)}" if len(raw) > _MOST_DUMPED else ""
    return BodyView("bytes", _dump(raw[:_MOST_DUMPED]), note)


def _cut(kind: str, text: str, whole: str, is_cut: bool = False) -> BodyView:
    note = f"the first {plural(_MOST_SHOWN, 'character')} of the {whole}"
    return BodyView(kind, text[:_MOST_SHOWN], note if is_cut or len(text) > _MOST_SHOWN else "")


def _plain(value: Any, levels: int) -> Any:
    """Return a value that JSON can express. Values below `levels` levels become ``…``."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if levels == 0:
        return "…"
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else shown(key): _plain(item, levels - 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, levels - 1) for item in value]
    return value.isoformat() if isinstance(value, datetime) else shown(value)


def _dump(raw: bytes) -> str:
    """Return a hex dump: offsets, bytes, and the bytes as ASCII."""
    rows = []
    for offset in range(0, len(raw), _ROW):
        row = raw[offset : offset + _ROW]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        rows.append(f"{offset:08x}  {row.hex(' ').ljust(3 * _ROW)} {letters}")
    return "\n".join(rows)


def piece(message: "Message", most: int) -> str:
    """Return the beginning of a body on one line, with at most `most` printable characters. A sign marks a body that is
    cut.

    The body of `message` is the stored bytes, or at least their first ``LIST_PREVIEW``.
    """
    raw: bytes = message.body
    name = message.codec or codecs.codec_of(message.content_type)
    is_cut = name != "msgpack" and len(raw) > 4 * most
    text = _msgpack_as_line(raw) if name == "msgpack" else text_of(raw[: 4 * most], is_cut=is_cut)
    if text is None or "\0" in text:
        return f"bytes {raw[:_ROW].hex(' ')}{' …' if len(raw) > _ROW else ''}"
    return printable(" ".join(text[:most].split())) + (" …" if is_cut or len(text) > most else "")


def _msgpack_as_line(raw: bytes) -> str | None:
    """Return a msgpack body as JSON on one line; None if the body is large or is no msgpack."""
    if len(raw) > _MOST_IN_LIST:
        return None
    try:
        return json.dumps(_plain(codecs.decode(raw, "msgpack"), _LEVELS_IN_LIST), ensure_ascii=False)
    except (SpoolError, ValueError, RecursionError):
        return None


def beginning(raw: bytes) -> str:
    """Return the beginning of a file as text if it is UTF-8, otherwise as a hex dump."""
    text = text_of(raw, is_cut=True)
    return _dump(raw) if text is None or "\0" in text else text
