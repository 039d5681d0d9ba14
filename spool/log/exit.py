"""Commit what was submitted, when the program ends without closing its space.

It is committed as the interpreter ends, like futures of ``concurrent.futures``.
"""

import atexit
import logging
import sys
import weakref
from typing import Protocol

from spool.errors import NotOpen, SpoolError
from spool.store.store import Store

log = logging.getLogger("spool")


class Submitted(Protocol):
    """Messages that no caller waits for, of one open space. ``failed``: how many of them were not committed."""

    store: Store
    failed: int

    @property
    def waiting(self) -> int:
        """How many are not committed yet."""

    def drain(self, because: str = ...) -> None:
        """Commit what was submitted; what comes later fails by NotOpen(because)."""


# Those to which something was submitted.
_submitted: "weakref.WeakSet[Submitted]" = weakref.WeakSet()


def commit_at_exit(submitted: Submitted) -> None:
    """Commit it as the interpreter ends. Called once for each space, before the first work that no caller waits for."""
    _submitted.add(submitted)
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        from multiprocessing.util import Finalize  # such a process may end without what atexit would call

        Finalize(None, _commit_all, exitpriority=0)


@atexit.register
def _commit_all() -> None:
    for submitted in list(_submitted):
        commit_submitted(submitted)


def commit_submitted(submitted: Submitted) -> None:
    """Commit what was submitted; no more is accepted. A warning with the count of what could not be committed."""
    store, before, why = submitted.store, submitted.failed, ""
    try:
        with store.guard:
            submitted.drain("the program is ending: nothing can be submitted any more")
    except NotOpen:  # it was closed, or is its parent's
        return
    except (KeyboardInterrupt, OSError, SpoolError) as error:
        why = f": {str(error) or type(error).__name__}"
    lost = submitted.failed - before + submitted.waiting
    if lost:
        where = store.files.disk.root
        log.warning("%s: the program ends, and %d messages that were submitted were not committed%s", where, lost, why)
