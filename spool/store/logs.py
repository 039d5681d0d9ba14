"""The loggers of the library: no foreign name can forge a log line.

The log quotes names that other users or programs chose, e.g. names of dropped files. Such a name may have a line break,
or a control sequence for a terminal. A filter on each logger escapes these characters in the arguments and in the
traceback of each record, before the record reaches a handler of the application.
"""

import logging
from collections.abc import Mapping
from typing import Any

from spool.model.text import printable

LOGGERS = ("spool", "spool.forwarder", "spool.server")


def _escaped(argument: Any) -> Any:
    """Return the argument, or its text without control characters if its text has some."""
    if isinstance(argument, int | float) or argument is None:
        return argument
    try:
        text = str(argument)
        return argument if text.isprintable() else printable(text)
    except Exception:  # (the handler would meet the same error, which must not end e.g. a get)
        return f"<{type(argument).__name__}>"


class _Escaping(logging.Filter):
    """Passes every record on. (A filter of a logger does not see the records of its child loggers.)"""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(map(_escaped, record.args))
        elif isinstance(record.args, Mapping):
            record.args = {name: _escaped(argument) for name, argument in record.args.items()}
        if record.exc_info and not record.exc_text:
            record.exc_text = _traceback(record)
        return True


def _traceback(record: logging.LogRecord) -> str | None:
    """Return the traceback, escaped. Each line but the first is indented, so that none looks like a record."""
    try:
        text = logging.Formatter().formatException(record.exc_info)  # type: ignore[arg-type]
    except Exception:
        return None
    first, *more = printable(text, keep="\n").split("\n")
    return "\n".join([first, *(f"  {line}" for line in more)])


def escape_names() -> None:
    """Install the filter."""
    escaping = _Escaping()
    for name in LOGGERS:
        logging.getLogger(name).addFilter(escaping)
