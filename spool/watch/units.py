"""Sizes and times as short texts for people."""

from collections.abc import Iterator, Sequence
from datetime import datetime

_TIMES = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
_SIZES = (" B", " kB", " MB", " GB", " TB", " PB", " EB")
_LONG_SECONDS = 60


def size(count: float) -> str:
    """Return a number of bytes, e.g. ``3.4 MB`` for 3,400,000 bytes."""
    return scaled(count, _SIZES)


def scaled(count: float, units: Sequence[str]) -> str:
    """Return a number in thousands, millions etc.; `units`: the texts after the number, from the smallest unit."""
    for unit in units:
        if count < 999.5 or unit == units[-1]:
            return f"{count:.1f}{unit}" if unit != units[0] and count < 9.95 else f"{count:.0f}{unit}"
        count /= 1_000
    raise AssertionError("the last unit has no limit")


def moment(seconds: float) -> str:
    """Return a time, in seconds since the epoch, as text in the local time zone."""
    try:
        return datetime.fromtimestamp(seconds).astimezone().isoformat(sep=" ", timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{seconds:.0f}"


def age(seconds: float) -> str:
    """Return a time span in its largest unit, e.g. ``31 min`` or ``2 d``. A negative span is ``0 s``."""
    return next(_in_units(round(max(0.0, seconds))), "0 s")


def span(seconds: float) -> str:
    """Return a whole time span, e.g. ``1 min 30 s``."""
    if seconds < _LONG_SECONDS:
        return f"{seconds:.3f}".rstrip("0").rstrip(".") + " s"
    return " ".join(_in_units(round(seconds)))


def runtime(seconds: float) -> str:
    """Return a time span in seconds with three digits, or in its largest unit, e.g. ``0.137 s`` or ``31 min``."""
    return f"{seconds:.3g} s" if seconds < _LONG_SECONDS else age(seconds)


def _in_units(left: int) -> Iterator[str]:
    for unit, length in _TIMES:
        number, left = divmod(left, length)
        if number:
            yield f"{number} {unit}"
