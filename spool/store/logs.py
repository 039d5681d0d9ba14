"""The loggers of the library: no name from outside can forge a line of a log.

The log quotes names that other users or programs chose, e.g. those of dropped files. Such a name may have a line break,
or a control sequence for a terminal. A filter on each logger escapes these characters in the arguments of each record,
before the record reaches a handler of the application.
"""

import logging
from typing import Any

from spool.model.text import printable

LOGGERS = ("spool", "spool.forwarder", "spool.server")


def _escaped(argument: Any) -> Any:
    """Return the argument, or its text without control characters if its text has some."""
    if isinstance(argument, int | float) or argument is None:
        return argument
    text = str(argument)
    return argument if text.isprintable() else printable(text)


class _Escaping(logging.Filter):
    """Passes every record on. (A filter of a logger does not see the records of the loggers below it.)"""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(map(_escaped, record.args))
        return True


def escape_names() -> None:
    """Install the filter."""
    escaping = _Escaping()
    for name in LOGGERS:
        logging.getLogger(name).addFilter(escaping)
