"""Texts of the pages: numbers, times, and users' texts with visible control characters."""

from markupsafe import Markup

from spool.model.text import printable
from spool.model.xid import FORMATS_USED_ONCE, Xid
from spool.watch import units

_LINES = "\n\t"
NOTHING = "–"


def finalized(value: object) -> object:
    """Return a value with visible control characters. Templates use this for all values, so none can be forgotten."""
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


def runtime(seconds: float | None) -> str:
    """Return the runtime of a task."""
    return NOTHING if seconds is None else units.runtime(seconds)


def moment(seconds: float | None) -> str:
    """Return a time as text, in the server's time zone."""
    return NOTHING if seconds is None else units.moment(seconds)


def short(text: str, most: int) -> str:
    """Return a text, cut in the middle to at most `most` characters."""
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
