"""The branches that must still be committed or rolled back, because their resource failed after the decision.

A thread of the manager repeats the call of each branch with growing pauses. A branch in a database also ends when
``TransactionManager.recover`` gets another connection to the database.
"""

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from spool.engine import Clock
from spool.model.xid import Xid
from xa.manager.branches import HeuristicMismatch, ResourceBranch

log = logging.getLogger("spool")

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 10.0


class Unfinished(NamedTuple):
    """A branch whose decision is known. ``ended`` is called once the branch has ended."""

    branch: ResourceBranch
    committed: bool
    ended: Callable[[], None]

    def finish(self) -> None:
        """Commit or roll back the branch."""
        if self.committed:
            self.branch.commit()
        else:
            self.branch.rollback("its transaction was rolled back")


class UnfinishedBranches:
    """The unfinished branches of one manager. Many threads may use them."""

    def __init__(self, clock: Clock, repeat: Callable[[], object], has_more: Callable[[], bool]) -> None:
        """``repeat`` is called by the thread as long as branches are unfinished or ``has_more`` returns True."""
        self._clock = clock
        self._repeat = repeat
        self._has_more = has_more
        self._branches: dict[Xid, Unfinished] = {}
        self._mutex = threading.Lock()
        self._changed = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._branches)

    def list(self) -> list[Unfinished]:
        with self._mutex:
            return list(self._branches.values())

    def add(self, one: Unfinished, error: BaseException) -> None:
        """Add a branch whose call failed with this error."""
        doing = "committed" if one.committed else "rolled back"
        log.warning(
            "the branch %s in %s is decided but not %s yet, and the call is repeated: %s",
            one.branch.xid, one.branch.name, doing, error,
        )  # fmt: skip
        self.put(one)

    def put(self, one: Unfinished) -> None:
        """Add a branch whose call was not made yet."""
        with self._mutex:
            self._branches[one.branch.xid] = one
        self.start()

    def start(self) -> None:
        """Start the thread, unless it runs."""
        with self._mutex:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="xaspool transactions", daemon=True)
                self._thread.start()
        self._changed.set()

    def end(self, xid: Xid) -> None:
        """Remove a branch that has ended."""
        with self._mutex:
            one = self._branches.pop(xid, None)
        if one is not None:
            one.ended()

    def repeat_all(self) -> None:
        """Repeat the call of each branch once."""
        for one in self.list():
            try:
                one.finish()
            except HeuristicMismatch as error:
                log.error("%s", error)
            except Exception:
                continue  # (the failure was logged when the branch was added)
            self.end(one.branch.xid)

    def close(self) -> None:
        self._closed = True
        self._changed.set()

    def _run(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while not self._closed:
            if not self._branches and not self._has_more():
                self._changed.wait()
                pause = _FIRST_PAUSE_SECONDS
            self._changed.clear()
            with suppress(Exception):  # (the failure was logged when the branch was added)
                self._repeat()
            self._clock.wait(self._changed.wait, pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
