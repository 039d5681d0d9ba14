"""Texts for the command line: numbers, time spans, and escaped control characters."""

import sys
from collections.abc import Iterator

_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
_LONG_SECONDS = 60


def plural(count: int, singular: str, plural_form: str = "") -> str:
    """Return ``1 file``, ``2 files``, ``1,000 files``; `plural_form`: the plural, if it is not the singular with an
    s."""
    from spool.model import text  # (imported here, because help and completion do not need it)

    return text.plural(count, singular, plural_form)


def span(seconds: float) -> str:
    """Return a time span in words, e.g. ``1 min 30 s``."""
    if seconds < _LONG_SECONDS:
        return f"{seconds:.3f}".rstrip("0").rstrip(".") + " s"
    return " ".join(_in_units(round(seconds)))


def age(seconds: float) -> str:
    """Return a time span in its largest unit, e.g. ``31 min`` or ``2 d``."""
    return next(_in_units(round(seconds)), "0 s")


def _in_units(left: int) -> Iterator[str]:
    for unit, length in _UNITS:
        number, left = divmod(left, length)
        if number:
            yield f"{number} {unit}"


def on_terminal() -> bool:
    """Return whether standard output is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def printable(text: str, keep: str = "") -> str:
    """Escape the control characters of a text, except those in `keep`."""
    if text.isprintable():
        return text
    from spool.model.text import printable as escaped  # (imported here, because help and completion do not need it)

    return escaped(text, keep)
