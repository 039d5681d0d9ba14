"""Short texts for the columns of ``spool-admin top``: numbers, sizes, ages, and names that are cut to a width.

A name may come from any program. It is made printable, so that it cannot control the terminal, and its length is
limited before any other work.
"""

from rich.cells import cell_len

from spool.watch.units import age
from xaspool_scripts.terminal.wording import printable

UNKNOWN = "-"
_CUT = "…"
_THOUSANDS = ("", "k", "M", "G", "T", "P", "E")
_MOST_FULL = 99_999  # the greatest number that is written with all its digits
_MOST_CHARACTERS = 2_000  # of a text that is shown whole


def number(value: float) -> str:
    """Return a count in at most 6 characters, e.g. ``99,999`` or ``1.2M``."""
    if value <= _MOST_FULL:
        return f"{value:,.0f}"
    return _with_unit(value)


def rate(value: float | None) -> str:
    """Return a rate per second in at most 6 characters; ``-`` if two samples are missing."""
    if value is None:
        return UNKNOWN
    if 0 < value < 0.05:
        return "<0.1"
    return f"{value:.1f}" if 0 < value < 9.95 else number(value)


def _with_unit(value: float) -> str:
    for unit in _THOUSANDS:
        if value < 999.5 or unit == _THOUSANDS[-1]:
            return f"{value:.1f}{unit}" if unit and value < 9.95 else f"{value:.0f}{unit}"
        value /= 1_000
    raise AssertionError("the last unit has no limit")


def old(seconds: float | None) -> str:
    """Return an age in its largest unit; ``-`` if it is not known."""
    return UNKNOWN if seconds is None else age(seconds)


def milliseconds(*seconds: float | None) -> str:
    """Return upper bounds in milliseconds, e.g. ``≤0.5/2.5 ms``; "inf" for a duration beyond the last bound."""
    known = [f"{each * 1_000:g}" for each in seconds if each is not None]
    return f"≤{'/'.join(known)} ms" if known else UNKNOWN


def clean(text: str) -> str:
    """Return a text as one line of printable characters, of limited length."""
    short = text[:_MOST_CHARACTERS]
    return printable(short) + (_CUT if len(text) > len(short) else "")


def cut(text: str, width: int) -> str:
    """Return a text as printable characters that take at most ``width`` columns. A cut text ends with ``…``."""
    limit = 4 * max(width, 0) + 16  # characters without a width could make a text of one column endless
    shown = printable(text[:limit])
    if len(text) <= limit and _width(shown) <= width:
        return shown
    kept, left = "", width - 1
    for character in shown:
        left -= cell_len(character)
        if left < 0:
            break
        kept += character
    return kept + _CUT if width > 0 else ""


def fit(text: str, width: int, *, right: bool = False) -> str:
    """Return a text of exactly ``width`` columns."""
    shown = cut(text, width)
    space = " " * max(0, width - _width(shown))
    return space + shown if right else shown + space


def folded(text: str, width: int) -> list[str]:
    """Return a text as lines of at most ``width`` columns."""
    lines, line, left = [], "", width
    for character in clean(text):
        left -= cell_len(character)
        if left < 0 and line:
            lines.append(line)
            line, left = "", width - cell_len(character)
        line += character
    return [*lines, line]


def _width(text: str) -> int:
    return len(text) if text.isascii() else sum(map(cell_len, text))
