"""What values may be: one set of checks for options, for messages, and for what is read from files. Pure.

An error of an argument has one form in the whole project, which programs rely on to name an option instead: the name,
what it takes, and what was given, ``threads is a whole number from 1 to 1000, not 0``.
A text that has no name of its own is refused by what it is not, ``'x' is not an xid, which is written …``.
"""

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from spool.errors import InvalidArgument
from spool.model.text import shown


class ValueCheck(NamedTuple):
    """``expected``: in words. ``convert``: returns the value as it is kept; ValueError if it is not allowed."""

    expected: str
    convert: Callable[[Any], Any]


def check(name: str, value: object, value_check: ValueCheck) -> Any:
    """Return the value as it is kept; InvalidArgument, which names it and what it takes, if it is not allowed."""
    try:
        return value_check.convert(value)
    except UnicodeEncodeError:
        raise unwritable(name, value) from None
    except ValueError:
        raise InvalidArgument(f"{name} is {value_check.expected}, not {shown(value)}") from None


def unwritable(name: str, value: object) -> InvalidArgument:
    """Return the error for a text that UTF-8 cannot write: one with half of a pair, as ``os.fsdecode`` makes."""
    return InvalidArgument(f"{name} cannot be written as UTF-8: {shown(value)}")


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
    """Return a text of one character at least, and of ``most`` at most; ValueError for anything else.

    UnicodeEncodeError, which is a ValueError: UTF-8 cannot write the text, so no file can hold it.
    """
    found = plain(value)
    if not found or (most is not None and len(found) > most):
        raise ValueError("it is no text of the right length")
    found.encode("utf-8")
    return found


def plain(value: Any) -> str:
    """Return a text as a ``str``, also one of a class derived from ``str``; ValueError for anything else."""
    if not isinstance(value, str):
        raise ValueError("it is no text")
    return str.__str__(value)


SHORT_TEXT = ValueCheck("a text of 1 to 255 characters", partial(text, most=255))
