"""Short texts for the columns of ``spool-admin top``: numbers, ages, and names that are cut to a width.

A name may come from any program. A name is made printable, so that it cannot control the terminal, and its length is
limited before any other work.
"""

from rich.cells import cell_len
from rich.text import Text

from spool.watch.units import age, scaled
from xaspool_scripts.terminal.wording import printable

UNKNOWN = "-"
_CUT = "…"
_THOUSANDS = ("", "k", "M", "G", "T", "P", "E")
_MOST_FULL = 99_999  # the greatest number that is written with all digits
_MOST_CHARACTERS = 2_000  # the most characters of a text


def number(value: float) -> str:
    """Return a count in at most 6 characters, e.g. ``99,999`` or ``1.2M``."""
    return f"{value:,.0f}" if value <= _MOST_FULL else scaled(value, _THOUSANDS)


def rate(value: float | None) -> str:
    """Return a rate per second in at most 6 characters; ``-`` if two samples are missing."""
    if value is None:
        return UNKNOWN
    if 0 < value < 0.05:
        return "<0.1"
    return f"{value:.1f}" if 0 < value < 9.95 else number(value)


def old(seconds: float | None) -> str:
    """Return an age in its largest unit; ``-`` if it is not known."""
    return UNKNOWN if seconds is None else age(seconds)


def milliseconds(*seconds: float | None) -> str:
    """Return upper bounds in milliseconds, e.g. ``≤0.5/2.5 ms``; a duration beyond the last bound is "inf"."""
    known = [f"{each * 1_000:g}" for each in seconds if each is not None]
    return f"≤{'/'.join(known)} ms" if known else UNKNOWN


def clean(text: str, most: int = _MOST_CHARACTERS) -> str:
    """Return a text as one line of printable characters, of limited length."""
    return printable(text[:most]) + (_CUT if len(text) > most else "")


def cut(text: str, width: int) -> str:
    """Return a text as printable characters that take at most ``width`` columns. A cut text ends with ``…``."""
    # (a text of one column could have any number of characters without a width)
    line = Text(clean(text, 4 * width + 16))
    line.truncate(width, overflow="ellipsis")
    return line.plain


def fit(text: str, width: int, *, right: bool = False) -> str:
    """Return a text of exactly ``width`` columns."""
    shown = cut(text, width)
    space = " " * (width - cell_len(shown))
    return space + shown if right else shown + space
