"""Texts for the command line: numbers, and escaped control characters. ``spool.watch.units`` has sizes and times."""

import sys


def plural(count: int, singular: str, plural_form: str = "") -> str:
    """Return ``1 file``, ``2 files``, ``1,000 files``; `plural_form`: the plural, if it is irregular."""
    from spool.model import text  # (imported here, because help and completion do not need it)

    return text.plural(count, singular, plural_form)


def on_terminal() -> bool:
    """Return whether standard output is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def printable(text: str, keep: str = "") -> str:
    """Escape the control characters of a text, except the characters in `keep`."""
    if text.isprintable():
        return text
    from spool.model.text import printable as escaped  # (imported here, because help and completion do not need it)

    return escaped(text, keep)
