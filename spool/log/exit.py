"""Commit submitted messages when the program ends without closing its space.

The interpreter commits the messages as it exits, just as it completes the futures of ``concurrent.futures``.
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
    """The submitted messages of one open space. ``failed``: the number of messages that were not committed."""

    store: Store
    failed: int

    @property
    def waiting(self) -> int:
        """Return the number of messages that are not committed yet."""

    def drain(self, because: str = ...) -> None:
        """Commit the submitted messages; a later submission raises NotOpen(because)."""


# Objects with submitted messages.
_submitted: "weakref.WeakSet[Submitted]" = weakref.WeakSet()


def commit_at_exit(submitted: Submitted) -> None:
    """Commit the messages when the interpreter exits. Called once for each space, before its first submission."""
    _submitted.add(submitted)
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        from multiprocessing.util import Finalize  # a child process may end without atexit's functions

        Finalize(None, _commit_all, exitpriority=0)


@atexit.register
def _commit_all() -> None:
    for submitted in list(_submitted):
        commit_submitted(submitted)


def commit_submitted(submitted: Submitted) -> None:
    """Commit the submitted messages and accept no more. Log how many messages could not be committed."""
    store, before, why = submitted.store, submitted.failed, ""
    try:
        with store.guard:
            submitted.drain("the program is ending: nothing can be submitted any more")
    except NotOpen:  # the space was closed, or belongs to the parent process
        return
    except (KeyboardInterrupt, OSError, SpoolError) as error:
        why = f": {str(error) or type(error).__name__}"
    lost = submitted.failed - before + submitted.waiting
    if lost:
        where = store.files.disk.root
        log.warning("%s: the program ends, and %d messages that were submitted were not committed%s", where, lost, why)
