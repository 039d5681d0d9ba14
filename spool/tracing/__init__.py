"""Spans of OpenTelemetry around puts, gets and calls of functions, and the trace context in the headers of messages.

The package is an instrumentation: it replaces the methods of a table (``spool/tracing/methods.py``) by methods with
spans. ``instrument`` runs when a space is opened, and when a worker or a service begins. If the program has not
imported OpenTelemetry by then, no method is replaced, so a put or get has neither a check nor a frame of this package.
"""

import logging
from contextlib import suppress
from sys import modules

API = "opentelemetry.trace"
"""The module that a program has imported if it may record spans. This package never imports the module first."""

log = logging.getLogger("spool")

_has_failed = False


def instrument() -> None:
    """Give spans to the methods of all imported modules, if the program has imported OpenTelemetry.

    The methods of the classes are replaced, so spaces that are already open also get spans. A method is replaced once.
    """
    if API in modules:
        try:
            from spool.tracing.methods import replace_methods  # (it imports OpenTelemetry)

            replace_methods()
        except Exception as error:
            note_failure(error)


def note_failure(error: Exception) -> None:
    """Log an exception of OpenTelemetry, the first time only: a faulty tracer fails at every put."""
    global _has_failed
    if not _has_failed:
        _has_failed = True
        with suppress(Exception):  # the text of a foreign exception may also fail
            log.warning("OpenTelemetry failed, so spans may be missing: %s: %s", type(error).__name__, error)
