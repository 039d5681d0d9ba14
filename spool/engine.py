"""The engine's interface: the verbs with which ``xa``, the forwarder and the programs are built upon an open space.

``Space.engine`` returns an ``Engine``. Applications call the methods of ``spool.Space`` instead.

Each verb is one call of the space, unless its text says otherwise: the space is not closed, and Ctrl-C waits, until the
verb ends. All may be called from many threads, and each raises, beside the errors that its text names:

* NotOpen: the space is closed.
* SpaceStopped: a flush has failed, in this process or another one, and nothing can be committed any more.
* DiskFailure: the operating system refused to read or write a file.
* WaitExpired: another process held a lock for 30 s.

Times are seconds. "Rule" means one of docs/architecture.md, "The
rules that keep processes apart".
"""

from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Literal

from spool.admin.stats import first_due
from spool.coordination.locks import xid_byte
from spool.disk.disk import Disk
from spool.errors import NotOpen, ProtocolError, SpoolError
from spool.model.settings import SpaceConfig
from spool.model.xid import Xid
from spool.policies import heuristics
from spool.runtime.calls import CallGuard, public_call
from spool.runtime.calls import deferred as deferred
from spool.runtime.clock import Clock
from spool.runtime.clock import WaitExpired as WaitExpired
from spool.runtime.context import Joinable as Joinable
from spool.runtime.context import associate, associated
from spool.transactions import resolution, two_phase
from spool.transactions.coordinated import CoordinatedTransaction as CoordinatedTransaction
from spool.transactions.core import Core
from spool.transactions.resolution import InDoubt as InDoubt
from spool.transactions.transaction import mark_lost
from spool.transactions.two_phase import UnknownBranch as UnknownBranch

if TYPE_CHECKING:
    from spool.admin.doctor import Proof

Decision = Literal["committed", "rolled back"]
"""An administrator's decision about a branch."""


class BranchExists(SpoolError):
    """A branch with this xid exists, is prepared, or was committed a while ago."""


class Engine:
    """An open space, for packages that are built upon the library.

    call: a context manager that makes one call of several verbs, between which the space is not closed. It may be
        nested. Raises NotOpen on entering.
    joined: ``joined()`` returns the transaction that the puts and gets of the caller (a thread or an asyncio task)
        join; None if they join none.
    join: ``join(transaction)`` makes the caller's puts and gets join a transaction of this space from now on; None:
        none.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._store = store = core.store
        # (not methods: a call of Python more would be most of their cost)
        self.call: CallGuard = store.guard
        self.joined: Callable[[], Joinable | None] = partial(associated, store)
        self.join: Callable[[Joinable | None], object] = partial(associate, store)
        self.core, self.store = core, core.store  # (until the forwarder and the programs have verbs)

    # -- the space and its calls --------------------------------------------------------------------------------------

    @property
    def path(self) -> str:
        """The directory of the space, as an absolute path."""
        return self._store.files.disk.root

    @property
    def closed(self) -> bool:
        """Whether the space is closed, or closes now."""
        return self._store.closed

    @property
    def clock(self) -> Clock:
        """The clock of the space: ``now()`` is the time since the epoch, ``monotonic()`` one that never goes back."""
        return self._store.clock

    @public_call("reading the settings")
    def config(self) -> SpaceConfig:
        """Return the options of the space and of its queues, as ``space.toml`` has them now."""
        return self._store.settings.current().config

    def deliver_stored_bytes(self) -> None:
        """Deliver bodies as the bytes that are stored, from now on: a program that only shows them needs no codecs."""
        self._store.view.deliver_stored_bytes()

    @public_call("looking for processes")
    def other_processes(self) -> list[str]:
        """Return the other processes that have the space open, as far as this user may see them: ``process 4711
        (python3)``."""
        return self._store.shared.open_lock.others()

    @public_call("counting messages")
    def first_due(self, queue: str) -> float | None:
        """Return when the first delayed message of a queue is due, in seconds since the epoch; None if none is delayed.

        Raises:
            KeyError: there is no such queue.
        """
        return first_due(self._store, queue)

    def at_close(self, function: Callable[[], None]) -> None:
        """Have a function called when the space is closed, after its last call has ended. Takes no lock."""
        self._store.at_end[function] = None

    def not_at_close(self, function: Callable[[], None]) -> None:
        """Undo ``at_close``; a function that was not given is ignored. Takes no lock."""
        self._store.at_end.pop(function, None)

    # -- branches of a foreign coordinator: phase one ------------------------------------------------------------------

    def begin_branch(self, xid: Xid, timeout: float | None = None) -> CoordinatedTransaction:
        """Begin a branch of a global transaction. Its xid is locked from now on (Rule 6), so that no other process can
        begin, commit or roll back a branch of that xid. Called inside ``call``; errors of the system come as they are.

        Args:
            xid: of the branch.
            timeout: seconds after which the branch is rolled back unless it is prepared; None: never.

        Raises:
            BranchExists: another process has the branch, or the xid was used before.
        """
        transaction = CoordinatedTransaction(self._core, timeout=timeout, xid=xid)
        if not transaction.lock_xid_now():
            raise BranchExists(f"another process has the branch {xid}: use another xid")
        try:  # with the lock: the process that had it may have prepared the branch
            if two_phase.is_prepared(self._store, xid):
                raise BranchExists(f"there is a branch {xid} already, which is prepared: use another xid")
            if xid in self._store.view.index.adopted:  # the new file would be taken for the committed one
                raise BranchExists(f"a branch {xid} was committed a while ago: an xid is used once, take another")
        except BaseException:
            transaction.abandon()
            raise
        return transaction

    def roll_back_later(self, transaction: CoordinatedTransaction, reason: str) -> None:
        """Have the housekeeper roll back a branch that its program has dropped. It takes no more puts and gets.

        Takes no lock and touches no file, so a ``__del__`` may call this.
        """
        mark_lost(transaction, reason)
        if associated(self._store) is transaction:
            associate(self._store, None)
        self._store.dropped.append(lambda: _roll_back(transaction, reason))

    # -- branches of a foreign coordinator: phase two ------------------------------------------------------------------

    def commit_branch(self, xid: Xid, *, vote_known: bool) -> int:
        """Commit a prepared branch; returns the number of the commit. Branches that are committed at the same time
        share a flush. Called inside ``call``; errors of the system come as they are.

        Args:
            vote_known: whether this process was told the vote, so that the branch is durable. Otherwise its bytes are
                made durable first.

        Raises:
            UnknownBranch: there is no such prepared branch.
            Full: it does not fit.
            CommitUnknown: the outcome is unknown; ask again once the space is open again.
        """
        return two_phase.commit_prepared(self._core, xid, vote_known=vote_known)

    @public_call("rolling back a branch")
    def roll_back_branch(self, xid: Xid) -> None:
        """Roll back a prepared branch: its puts are gone, and its gets free, with one attempt more counted.

        Costs no flush. A commit and a rollback of one branch exclude each other (Rule 5).

        Raises:
            UnknownBranch: there is no such prepared branch.
        """
        two_phase.rollback_prepared(self._store, xid, self._store.deadline())

    @public_call("looking for branches in doubt")
    def in_doubt(self, known_votes: Collection[Xid] = ()) -> list[Xid]:
        """Return the prepared, undecided branches of foreign coordinators, sorted; each is durable.

        Branches whose processes still vote are left out. Branches of our own coordinators that have ended are rolled
        back first.

        Args:
            known_votes: the branches whose votes this process was told. All others are made durable first.
        """
        return resolution.in_doubt(self._store, self._store.deadline(), known_votes=known_votes)

    @public_call("looking at a branch")
    def describe(self, xid: Xid) -> InDoubt:
        """Return how many messages a prepared branch puts and takes, and which process prepared it. UnknownBranch."""
        return resolution.describe(self._store, xid)

    @public_call("looking at a branch")
    def is_prepared(self, xid: Xid) -> bool:
        """Return whether a branch is prepared and undecided, as far as this process can see now."""
        return two_phase.is_prepared(self._store, xid)

    @public_call("looking at a branch")
    def owner_of(self, xid: Xid) -> Literal["this process", "another process"] | None:
        """Return which live process has a branch that is not prepared yet; None if none has."""
        if not two_phase.has_owner(self._store.shared.xids, xid):
            return None
        return "this process" if self._store.shared.xids.is_held_here(xid_byte(xid)) else "another process"

    # -- an administrator's decisions ----------------------------------------------------------------------------------

    @public_call("deciding about a branch")
    def decide(self, xid: Xid, *, commit: bool) -> None:
        """Commit or roll back a prepared branch in the place of its coordinator, durably.

        The decision is kept, for the coordinator to learn, until ``forget``.

        Raises:
            UnknownBranch: there is no such prepared branch.
        """
        resolution.decide_heuristically(self._core, xid, self._store.deadline(), commit=commit)

    @public_call("looking for decisions")
    def decision(self, xid: Xid) -> Decision | None:
        """Return what an administrator decided about a branch; None if nothing, or if it is forgotten."""
        return heuristics.heuristic_outcome(self._store, xid)  # type: ignore[return-value]

    @public_call("looking for decisions")
    def decisions(self) -> dict[str, Decision]:
        """Return the decisions of administrators that are not forgotten, by the xid as text."""
        return heuristics.heuristic_outcomes(self._store)  # type: ignore[return-value]

    @public_call("forgetting a decision")
    def forget(self, xid: Xid) -> bool:
        """Forget an administrator's decision, durably; False if none is kept."""
        return resolution.forget(self._store, xid, self._store.deadline())


def _roll_back(transaction: CoordinatedTransaction, reason: str) -> None:
    try:
        transaction.rollback(reason)
    except (NotOpen, ProtocolError):  # it has ended since, by a call from a copied context
        pass


# -- directories that need not be an open space ------------------------------------------------------------------------


def examine(path: str) -> "list[Proof]":
    """Try out everything that a space needs of a directory's file system; return one proof for each need.

    The directory exists. It may be a space that is in use. No file stays there.
    """
    from spool.admin import doctor

    return doctor.examine(Disk(path), Clock())


def examine_kind(path: str) -> "Proof":
    """Return the kind of the file system of a directory that exists: the one proof that needs no trial."""
    from spool.admin import doctor

    return doctor.examine_kind(Disk(path))


def local_file_system(path: str) -> str | None:
    """Return the kind of the file system of a directory that exists; None if it is one of a network."""
    disk = Disk(path)
    return disk.file_system().kind if disk.network_file_system() is None else None
