"""What values may be: one set of checks for options, for messages, and for what is read from files. Pure.

An error of an argument has one form in the whole project, which programs rely on to name an option instead: the name,
what it takes, and what was given, ``threads is a whole number from 1 to 1000, not 0``.
A text that has no name of its own is refused by what it is not, ``'x' is not an xid, which is written …``.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

from spool.errors import InvalidArgument
from spool.text import shown


class ValueCheck(NamedTuple):
    """``expected``: in words. ``convert``: returns the value as it is kept; ValueError if it is not allowed."""

    expected: str
    convert: Callable[[Any], Any]


def check(name: str, value: object, value_check: ValueCheck) -> Any:
    """Return the value as it is kept; InvalidArgument, which names it and what it takes, if it is not allowed."""
    try:
        return value_check.convert(value)
    except ValueError:
        raise InvalidArgument(f"{name} is {value_check.expected}, not {shown(value)}") from None


def whole(value: Any, most: int, least: int = 0) -> int:
    """Return a whole number in these bounds; ValueError for anything else."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{value!r:.40} is no whole number from {least} to {most}")
    return int(value)


def seconds(value: Any, most: float, least: float = 0.0) -> float:
    """Return a number of seconds from ``least`` to less than ``most``; ValueError for anything else."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value < most:
        raise ValueError(f"{value!r:.40} is no number of seconds")
    return float(value)


def moment(value: Any, most: float) -> float:
    """Return a time in seconds since the epoch, from 0 to less than ``most``, of a number or of a datetime with a time
    zone; ValueError for anything else."""
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise ValueError(f"{value!r:.80} has no time zone")
        value = value.timestamp()
    return seconds(value, most)


def text(value: Any, most: int | None = None) -> str:
    """Return a text of one character at least, and of ``most`` at most; ValueError for anything else."""
    if not isinstance(value, str) or not value or (most is not None and len(value) > most):
        raise ValueError(f"{value!r:.40} is no text of the right length")
    return str(value)
