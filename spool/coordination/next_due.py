"""The time of the next message of a schedule, as the processes of a space tell it to each other.

One process puts the messages, and may be stopped, e.g. by a debugger. The others see here that a message is late. The
time is the time of change of ``run/control``. It is only a hint: it is not flushed, and nothing is wrong if it is lost.
"""

from contextlib import suppress
from math import inf

from spool.coordination.locks import LockFile

LOOK_NOW = 1.0
"""A due time long ago, after which any process looks at the schedules."""


def next_due(control: LockFile) -> float:
    """Return the time of the next message, or of the last attempt to put a late one, in seconds since the epoch; 0 if
    none is due."""
    return control.disk.handle_identity(control.handle).modified_ns / 1e9


def tell_next_due(control: LockFile, due: float, before: float | None = None) -> None:
    """Tell the time. ``before``: the time that was told when this process looked; the call does nothing if another
    process has told a time since then."""
    told, seconds = next_due(control), 0 if due == inf else int(due)
    if told != seconds and before in (None, told):
        with suppress(OSError):
            control.disk.set_modified(control.handle, seconds * 10**9)
