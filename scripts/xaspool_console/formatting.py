"""Texts of the pages: numbers, times, and text of others with its control characters made visible."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from spool.errors import SpoolError
from spool.model import codecs
from spool.model.text import printable
from spool.model.xid import FORMATS_USED_ONCE, Xid
from spool.watch import units

if TYPE_CHECKING:
    from spool import Message

_MOST_DECODED = 256 << 10  # bytes; a larger body is shown undecoded
_MOST_SHOWN = 64 << 10  # characters
_MOST_DUMPED = 4_000  # bytes
_MOST_IN_LIST = 16 << 10  # bytes; a list shows a larger msgpack body as bytes
_LEVELS_IN_LIST = 5
# How many bytes of a body to read: one byte more than a page decodes, so that a longer body is recognized.
BODY_PREVIEW, LIST_PREVIEW = _MOST_DECODED + 1, _MOST_IN_LIST + 1
_MOST_LEVELS = 50  # of nested values: more levels would let a small body become a large text
_PIECE = 100
_MOST_PIECE = 200  # characters of a body in a list
_ROW = 16
_LINES = "\n\t"
NOTHING = "–"


def finalized(value: object) -> object:
    """Return the form in which a template shows a value. A template then cannot show hidden characters by mistake."""
    if value is None:
        return NOTHING
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return printable(value)


def lines(text: str) -> Markup:
    """Return a preformatted text, in which line ends and tabs remain."""
    return Markup.escape(printable(text, keep=_LINES))


def number(value: float | None) -> str:
    """Return ``1,234``, or a fraction with at most two digits after the point."""
    if value is None:
        return NOTHING
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}".rstrip("0").rstrip(".")


def size(count: int | None) -> str:
    """Return a number of bytes, e.g. ``3.4 MB``."""
    return NOTHING if count is None else units.size(count)


def age(seconds: float | None) -> str:
    """Return a time span in its largest unit, e.g. ``31 min``."""
    return NOTHING if seconds is None else units.age(seconds)


def duration(seconds: float | None) -> str:
    """Return a short time span, e.g. ``2.5 ms``."""
    if seconds is None:
        return NOTHING
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def moment(seconds: float | None) -> str:
    """Return a time as text, in the server's time zone."""
    if seconds is None:
        return NOTHING
    try:
        return datetime.fromtimestamp(seconds).astimezone().isoformat(sep=" ", timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{seconds:.0f}"


def short(text: str, most: int) -> str:
    """Return a text without its middle, at most `most` characters long."""
    shown = printable(text)
    if len(shown) <= most:
        return shown
    half = (most - 1) // 2
    return f"{shown[:half]}…{shown[len(shown) - (most - 1 - half) :]}"


def gtrid(xid: str | None) -> str:
    """Return the gtrid of an xid if it is printable text, otherwise "". The gtrids of this library's own transactions
    are random."""
    try:
        parsed = Xid.parse(xid or "")
        text = parsed.gtrid.decode("utf-8")
    except ValueError:
        return ""
    return text if text.isprintable() and text.strip() and parsed.format_id not in FORMATS_USED_ONCE else ""


# -- bodies ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BodyView:
    """A body as text.

    kind: "JSON", "msgpack", "text", "bytes" or "empty".
    text: the text, which may have any characters.
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
            pass  # the body is not of its type: it is shown as text or bytes
        else:
            return _cut("JSON" if name == "json" else name, text, "value")
    decoded = None if name == "msgpack" else _text_of(raw[: 4 * _MOST_SHOWN], len(raw) > 4 * _MOST_SHOWN)
    is_named = name is not None or message.content_type.startswith("text/")
    if decoded is not None and (is_named or "\0" not in decoded):
        return _cut("text", decoded, "body", len(raw) > 4 * _MOST_SHOWN)
    note = f"the first {size(_MOST_DUMPED)} of {size(body_bytes)}" if len(raw) > _MOST_DUMPED else ""
    return BodyView("bytes", dump(raw[:_MOST_DUMPED]), note)


def _cut(kind: str, text: str, whole: str, is_cut: bool = False) -> BodyView:
    is_cut = is_cut or len(text) > _MOST_SHOWN
    return BodyView(kind, text[:_MOST_SHOWN], f"the first {_MOST_SHOWN:,} characters of the {whole}" if is_cut else "")


def _text_of(raw: bytes, is_cut: bool) -> str | None:
    """Return the text of the bytes if they are UTF-8. `is_cut`: whether the last character may be incomplete."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return raw[: error.start].decode("utf-8") if is_cut and len(raw) - error.start < 4 else None


def _plain(value: Any, levels: int) -> Any:
    """Return a value that JSON can express. Values below `levels` levels become ``…``."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if levels == 0:
        return "…"
    if isinstance(value, Mapping):
        return {
            key if isinstance(key, str) else short(repr(key), _PIECE): _plain(item, levels - 1)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_plain(item, levels - 1) for item in value]
    return short(repr(value), 8 * _PIECE)


def dump(raw: bytes) -> str:
    """Return a hex dump: offsets, bytes, and the bytes as ASCII."""
    rows = []
    for offset in range(0, len(raw), _ROW):
        row = raw[offset : offset + _ROW]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        rows.append(f"{offset:08x}  {row.hex(' ').ljust(3 * _ROW)} {letters}")
    return "\n".join(rows)


def piece(message: "Message") -> str:
    """Return the beginning of a body on one line. A msgpack body is shown as JSON."""
    raw: bytes = message.body
    name = message.codec or codecs.codec_of(message.content_type)
    text = _msgpack_as_line(raw) if name == "msgpack" else _text_of(raw[: 4 * _MOST_PIECE], len(raw) > 4 * _MOST_PIECE)
    if text is None or "\0" in text:
        return f"bytes {raw[:_ROW].hex(' ')}{' …' if len(raw) > _ROW else ''}"
    is_cut = len(text) > _MOST_PIECE or (name != "msgpack" and len(raw) > 4 * _MOST_PIECE)
    return printable(" ".join(text[:_MOST_PIECE].split())) + (" …" if is_cut else "")


def _msgpack_as_line(raw: bytes) -> str | None:
    """Return a msgpack body as JSON on one line; None if the body is large, or no msgpack."""
    if len(raw) > _MOST_IN_LIST:
        return None
    try:
        return json.dumps(_plain(codecs.decode(raw, "msgpack"), _LEVELS_IN_LIST), ensure_ascii=False)
    except (SpoolError, ValueError, RecursionError):
        return None


def beginning(raw: bytes) -> str:
    """Return the beginning of a file as text if it is UTF-8, otherwise as a hex dump."""
    text = _text_of(raw, is_cut=True)
    return dump(raw) if text is None or "\0" in text else text
