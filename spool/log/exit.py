"""What becomes of work that a program leaves behind: it ends without closing its space, or drops a transaction.

What was submitted is committed as the interpreter ends, as futures of ``concurrent.futures`` are. A transaction that
is only dropped is rolled back by the housekeeper. (Python drops objects between any two instructions of any thread, so
what happens at once takes no lock and touches no file.)
"""

import atexit
import logging
import sys
import warnings
import weakref
from collections import deque
from typing import TYPE_CHECKING

from spool.errors import NotOpen, SpoolError

if TYPE_CHECKING:
    from spool.log.futures import Promises
    from spool.log.group_commit import Group
    from spool.store.store import Store
    from spool.transactions.branch import Branch

log = logging.getLogger("spool")

_REASON = "its transaction was dropped without a commit or a rollback"

_warn = warnings.warn  # (while the interpreter ends, a module may be gone before what it is used for)

# Those to which something was submitted.
_groups: "weakref.WeakSet[Group]" = weakref.WeakSet()


def finish_at_exit(group: "Group") -> None:
    """Once for each group, before the first work that no caller waits for."""
    _groups.add(group)
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        from multiprocessing.util import Finalize  # such a process may end without what atexit would call

        Finalize(None, _finish_all, exitpriority=0)


@atexit.register
def _finish_all() -> None:
    for group in list(_groups):
        finish(group)


def finish(group: "Group") -> None:
    """Commit what was submitted; no more is accepted. A warning with the count of what could not be committed."""
    before, why = group.failed, ""
    try:
        with group.store.gate:
            group.drain("the program is ending: nothing can be submitted any more")
    except NotOpen:  # it was closed, or is its parent's
        return
    except (KeyboardInterrupt, OSError, SpoolError) as error:
        why = f": {str(error) or type(error).__name__}"
    lost = group.failed - before + group.line.waiting
    if lost:
        where = group.store.files.disk.root
        log.warning("%s: the program ends, and %d messages that were submitted were not committed%s", where, lost, why)


# -- a transaction that is dropped -------------------------------------------------------------------------------------


class Guard:
    """Goes with a transaction: if that has not ended by then, what it has in hand is the housekeeper's to undo."""

    __slots__ = ("_branch", "_promises", "_store")

    def __init__(self, store: "Store", branch: "Branch", promises: "Promises") -> None:
        self._store = store
        self._branch: Branch | None = branch
        self._promises = promises

    def dismiss(self) -> None:
        """The transaction has ended."""
        self._branch = None

    def __del__(self) -> None:
        branch = self._branch
        if branch is None or self._store.closed:
            return
        self._store.dropped.append((branch, self._promises))
        _warn(
            f"a transaction of {self._store.files.disk.root} was dropped without a commit or a rollback, and is rolled "
            "back within seconds: use it in a with statement",
            ResourceWarning,
            2,
        )


def undo_dropped(store: "Store") -> None:
    """By the housekeeper: what dropped transactions held is free again, with one try more counted, and the futures of
    what was submitted in them fail."""
    dropped: deque[tuple[Branch, Promises]] = store.dropped
    while dropped:
        branch, promises = dropped.popleft()
        try:
            branch.undo(_REASON)
        finally:
            promises.roll_back(_REASON)
            branch.let_go()
