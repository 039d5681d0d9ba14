"""The transactions of one manager whose branches have not all ended, and the steps that end these branches.

A transaction is *open* from its begin until each of its branches has ended. Recoveries do not touch its branches
meanwhile. An outcome is *unknown* if the connection broke during the commit that decides; ``settle`` learns the outcome
from the table of decisions.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from spool.decisions import DecisionLog, LogDirectory
from spool.engine import Clock
from spool.errors import NotOpen
from spool.model.xid import Xid
from xa.manager.branches import HeuristicMismatch, ResourceBranch
from xa.manager.decision_table import settle
from xa.manager.ids import TransactionId
from xa.manager.last_resource import EndedDecisions
from xa.manager.lazy import LazyCommits
from xa.manager.recovery import Participants, Recovery, finish
from xa.manager.space_branch import SpaceBranch
from xa.manager.unfinished_branches import Unfinished, UnfinishedBranches

log = logging.getLogger("spool")


class _Unknown(NamedTuple):
    """A transaction whose outcome is unknown: its prepared branches, and the table that has the decision, if any."""

    id: TransactionId
    branches: Sequence[ResourceBranch]
    table: str | None


class Outcomes:
    """The open transactions of a manager. Many threads may use it.

    repeat: called by a background thread as long as branches are unfinished or outcomes unknown.
    """

    def __init__(self, decisions: DecisionLog, clock: Clock, repeat: Callable[[], object]) -> None:
        self._decisions = decisions
        self._open: dict[int, None] = {}
        self._completing: dict[int, None] = {}  # committed transactions whose branches end without a recovery
        self._is_closing = False
        self._unknown: dict[int, _Unknown] = {}
        self._ended: dict[str, EndedDecisions] = {}
        self._lazy = LazyCommits(clock)
        self._mutex = threading.Lock()
        self._changed = threading.Condition(self._mutex)
        self.unfinished = UnfinishedBranches(clock, repeat, lambda: bool(self._unknown))

    def begin(self, serial: int) -> None:
        self._open[serial] = None

    def ended_decisions(self, table: str) -> EndedDecisions:
        """Return the rows of a table that a transaction of this manager may remove."""
        with self._mutex:
            return self._ended.setdefault(table, EndedDecisions())

    def tables_with_rows(self) -> list[str]:
        """Return the tables that have rows whose branches have ended."""
        with self._mutex:
            return [table for table, ended in self._ended.items() if len(ended)]

    def decide(self, id: TransactionId) -> None:
        """Note that a transaction decides now: ``close`` waits for its decision. Raises NotOpen after ``close``."""
        with self._changed:
            if self._is_closing:
                raise NotOpen("the transaction manager is closed: create another one")
            self._completing[id.serial] = None

    # -- the ends of transactions -----------------------------------------------------------------------------------

    def complete(self, id: TransactionId, branches: Sequence[ResourceBranch], table: str | None) -> None:
        """Commit the prepared branches of a decided transaction; a branch that fails is committed later.

        A branch that is not urgent is committed a little later: see ``lazy``. An interrupt is raised at the end.
        """
        if not branches:
            self._end(id.serial, table, decided=False)
            return
        self._completing[id.serial] = None
        end = _Countdown(len(branches), partial(self._end, id.serial, table))
        interrupt: BaseException | None = None
        for branch in branches:
            later = partial(self._ended_later, id.serial, Unfinished(branch, True, end))
            try:
                if isinstance(branch, SpaceBranch) and not branch.is_urgent:
                    self._lazy.add(branch, later)
                else:
                    branch.commit()
                    end()
            except BaseException as error:
                later(error)
                interrupt = interrupt or (None if isinstance(error, Exception) else error)
        if interrupt is not None:
            raise interrupt

    def _ended_later(self, serial: int, one: Unfinished, error: BaseException | None) -> None:
        if isinstance(error, HeuristicMismatch):
            log.error("%s", error)
        if error is None or isinstance(error, HeuristicMismatch):
            one.ended()
            return
        self.unfinished.add(one, error)
        self._leave(serial, self._completing)

    def roll_back_later(self, branch: ResourceBranch, error: BaseException) -> None:
        """Repeat the rollback of a branch that failed with this error."""
        self.unfinished.add(Unfinished(branch, False, lambda: None), error)

    def keep_unknown(self, id: TransactionId, branches: Sequence[ResourceBranch], table: str | None) -> None:
        """Keep a transaction whose outcome is unknown. Without prepared branches there is nothing to settle."""
        self._leave(id.serial, self._completing)
        if branches:
            self._unknown[id.serial] = _Unknown(id, branches, table)
            self.unfinished.start()
        else:
            self.forget(id)

    def forget(self, id: TransactionId) -> None:
        """End a transaction that was rolled back."""
        self._leave(id.serial, self._open, self._completing)

    def _end(self, serial: int, table: str | None, *, decided: bool = True) -> None:
        """End a committed transaction, whose branches have ended: its decision is not needed any more."""
        if table is None:
            self._decisions.end(serial)
        elif decided:
            self.ended_decisions(table).add(serial)
        self._leave(serial, self._open, self._completing)

    def _leave(self, serial: int, *places: dict[int, None]) -> None:
        with self._changed:
            for place in places:
                place.pop(serial, None)
            self._changed.notify_all()

    def drop(self, id: TransactionId) -> None:
        """End a transaction that the program dropped. Takes no lock, so a finalizer may call it."""
        self._open.pop(id.serial, None)

    def wait(self, seconds: float) -> bool:
        """Wait for the transactions that decide or have decided; return whether only unfinished ones are left."""
        self._lazy.commit_all()
        with self._changed:
            return self._changed.wait_for(lambda: not self._completing, seconds)

    def close(self, seconds: float) -> bool:
        """Refuse further decisions, wait as ``wait`` does, and end the background threads."""
        with self._changed:
            self._is_closing = True
        self._lazy.close()
        done = self.wait(seconds)
        self.unfinished.close()
        return done

    @property
    def is_empty(self) -> bool:
        """Whether no branch of this manager can be in doubt."""
        return not (self._open or self._unknown or self.unfinished)

    # -- recovery ----------------------------------------------------------------------------------------------------

    def settle(self, participants: Participants) -> None:
        """Learn the unknown outcomes from the given tables of decisions."""
        for serial, one in list(self._unknown.items()):
            database = participants.tables.get(one.table or "")
            if database is None or one.table is None:
                continue
            committed = settle(database, one.table, one.id.decider, serial)
            if self._unknown.pop(serial, None) is None:
                continue  # another thread has settled it
            end = _Countdown(len(one.branches), partial(self._end, serial, one.table))
            for branch in one.branches:
                self.unfinished.put(Unfinished(branch, committed, end))

    def recover(self, directory: LogDirectory, participants: Participants) -> Recovery:
        """Finish the branches of this manager in the given resources; return the branches that were decided."""
        self._lazy.commit_all()
        self.settle(participants)
        committed, rolled_back, left = list[Xid](), list[Xid](), list[Xid]()
        unfinished = {one.branch.xid: one for one in self.unfinished.list()}
        found = participants.doubtful(directory)
        for id, branch in found:
            if id.coordinator != self._decisions.coordinator:
                continue
            one = unfinished.pop(branch.xid, None)
            if one is None and (id.serial in self._open or not branch.is_at_home):
                left.append(branch.xid)
                continue
            verdict = one is not None and one.committed
            finish(branch, committed if verdict else rolled_back, committed=verdict)
            self.unfinished.end(branch.xid)
        for xid, one in unfinished.items():
            if participants.has(one.branch.name):  # the resource does not have the branch any more
                self.unfinished.end(xid)
        return Recovery(committed, rolled_back, left)


class _Countdown:
    """Calls a function once the countdown was called a number of times, from any thread."""

    def __init__(self, times: int, then: Callable[[], object]) -> None:
        self._left = times
        self._then = then
        self._mutex = threading.Lock()

    def __call__(self) -> None:
        with self._mutex:
            self._left -= 1
            done = self._left == 0
        if done:
            self._then()
