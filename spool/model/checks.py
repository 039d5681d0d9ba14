"""Check the values of options, messages, routes, pipelines and files. Pure.

Every error names the argument, the allowed values and the given value: ``threads is a whole number from 1 to 1000, not
0``. The error also has the name and the allowed values as attributes: ``InvalidArgument.name`` and ``.expected``.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from spool.errors import Argument, InvalidArgument
from spool.model.text import shortened, shown


class ValueCheck(NamedTuple):
    """One kind of value.

    expected: the allowed values, in words.
    convert: the function that returns the value in its stored form. Raises ValueError if the value is not allowed.
    metavar: the placeholder of the value in the help of a command. The metavar also determines how a command parses the
        value.
    optional: whether None is also allowed.
    """

    expected: str
    convert: Callable[[Any], Any]
    metavar: str = "TEXT"
    optional: bool = False


class Option(NamedTuple):
    """An option, with the check of its values, one sentence of help, and its default.

    The help names other options in braces. A command shows ``{retry_delay}`` as ``--retry-delay``.
    """

    check: ValueCheck
    help: str
    default: Any = None


def check(name: str, value: object, value_check: ValueCheck, where: str = "") -> Any:
    """Return the value in its stored form. Raises InvalidArgument if the value is not allowed.

    ``where``: the beginning of the error's text, e.g. a file and a queue.
    """
    if value is None and value_check.optional:
        return None
    try:
        return value_check.convert(value)
    except UnicodeEncodeError:
        raise unwritable(name, value, where) from None
    except ValueError as error:
        if isinstance(error, InvalidArgument) and error.name is not None:
            raise  # (this error already names the argument)
        expected = f"{value_check.expected}, or none" if value_check.optional else value_check.expected
        raise InvalidArgument(where, Argument(name), f" is {expected}, not {given(value)}", expected=expected) from None


def check_options(
    options: Mapping[str, Any], checks: Mapping[str, ValueCheck], where: str = "", others: Collection[str] = ()
) -> dict[str, Any]:
    """Return options in their stored form. Raises InvalidArgument if a name is unknown or a value is not allowed.

    For an unknown name, the error's text lists the names in ``checks`` and ``others``.
    """
    for option in options:
        if option not in checks:
            known = ", ".join((*checks, *others))
            raise InvalidArgument(f"{where}there is no option {shown(option)}; there are {known}")
    return {option: check(option, value, checks[option], where) for option, value in options.items()}


def given(value: object) -> str:
    """Return a value in the form for error texts: in the notation of commands, not of Python."""
    if isinstance(value, Mapping):
        return shortened(", ".join(f"{key}={one}" for key, one in value.items())) or "empty"
    return shortened(",".join(map(str, value))) or "empty" if isinstance(value, list | tuple) else shown(value)


def unwritable(name: str, value: object, where: str = "") -> InvalidArgument:
    """Return the error for a text that UTF-8 cannot encode, e.g. half of a surrogate pair from ``os.fsdecode``."""
    return InvalidArgument(where, Argument(name), f" cannot be written as UTF-8: {shown(value)}")


def body_list(bodies: Iterable[Any]) -> list[Any]:
    """List the bodies of a ``put_many``. A str, bytes or a map is refused, because it is a single body."""
    if isinstance(bodies, str | bytes | bytearray | memoryview | dict):
        raise InvalidArgument(f"put_many takes bodies, e.g. a list, not one {type(bodies).__name__}: use put for that")
    return list(bodies)


def check_time_limit(seconds: object) -> None:
    """Check the time limit of a transaction."""
    check_timeout(seconds, "a number of seconds above 0, or None for no limit", least=math.ulp(0.0))


def check_timeout(seconds: object, what: str, least: float = 0.0) -> None:
    """Check a timeout: seconds, or None. ``what``: the allowed values in words, for the error's text."""
    if seconds is not None and (
        isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= least
    ):
        raise InvalidArgument(Argument("timeout"), f" is {what}, not {shown(seconds)}")


def whole(value: Any, most: int, least: int = 0) -> int:
    """Return the value if it is a whole number within these bounds. Otherwise raise ValueError."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{value!r:.40} is no whole number from {least} to {most}")
    return int(value)


def seconds(value: Any, most: float, least: float = 0.0) -> float:
    """Return the value if it is a number of seconds, ``least <= value < most``. Otherwise raise ValueError."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value < most:
        raise ValueError(f"{value!r:.40} is no number of seconds")
    return float(value)


def moment(value: Any, most: float) -> float:
    """Convert a number, or a datetime with a time zone, to seconds since the epoch.

    Raises ValueError for another type, or if the result is not from 0 to less than ``most``.
    """
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise ValueError(f"{value!r:.80} has no time zone")
        value = value.timestamp()
    return seconds(value, most)


def text(value: Any, most: int | None = None) -> str:
    """Return the value if it is a text of 1 to ``most`` characters. Otherwise raise ValueError.

    If UTF-8 cannot encode the text, raise UnicodeEncodeError, a ValueError, because no file can contain the text.
    """
    found = plain(value)
    require(bool(found) and (most is None or len(found) <= most))
    found.encode("utf-8")
    return found


def plain(value: Any) -> str:
    """Return a text as a plain ``str``, even if its class is derived from ``str``. Raise ValueError for other
    values."""
    require(isinstance(value, str))
    return str.__str__(value)


def flag(value: Any) -> bool:
    """Return the value if it is True or False. Otherwise raise ValueError."""
    require(isinstance(value, bool))
    return bool(value)


def _above_zero(value: Any) -> float:
    found = seconds(value, MOST_SECONDS)
    require(found > 0)
    return found


def require(allowed: bool) -> None:
    """Raise ValueError unless the value is allowed."""
    if not allowed:
        raise ValueError


def one_of(*allowed: str, metavar: str = "TEXT") -> ValueCheck:
    """Return a check that accepts only these words."""
    return ValueCheck(f"one of {', '.join(allowed)}", lambda value: allowed[allowed.index(value)], metavar)


def number(most: int, least: int = 0, metavar: str = "N", optional: bool = False) -> ValueCheck:
    """Return a check that accepts only whole numbers in these bounds."""
    convert = partial(whole, most=most, least=least)
    return ValueCheck(f"a whole number from {least} to {most}", convert, metavar, optional)


SHORT_TEXT = ValueCheck("a text of 1 to 255 characters", partial(text, most=255))
FLAG = ValueCheck("true or false", flag, "FLAG")
MOST_SECONDS = 1e10
DELAY = ValueCheck(
    f"a number of seconds, from 0 to less than {MOST_SECONDS:.0f}", partial(seconds, most=MOST_SECONDS), "TIME"
)
TIME_LIMIT = ValueCheck("a number of seconds above 0", _above_zero, "TIME")
