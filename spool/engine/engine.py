"""The engine's interface: the verbs with which ``xa``, the forwarder and the programs work on an open space.

``Space.engine`` returns an ``Engine``. Applications call the methods of ``spool.Space`` instead.

Each verb is one call of the space, unless the verb's docstring says otherwise. The close of the space and Ctrl-C take
effect only when the verb has ended. Many threads may call the verbs. Besides the errors in the docstring, each verb may
raise:

* NotOpen: the space is closed.
* SpaceStopped: a flush has failed in this process or in another process, so no process can commit any more.
* DiskFailure: the operating system refused to read or write a file.
* WaitExpired: another process held a lock for 30 s.

Some verbs import a module of the engine at their first call, because most programs need little of the engine. Times are
in seconds. "Rule" means a rule of docs/architecture.md, "The rules that keep processes apart".
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

from spool.admin import in_doubt
from spool.admin.in_doubt import InDoubt
from spool.admin.stats import first_due
from spool.coordination.locks import xid_byte
from spool.coordination.resumptions import Resumptions
from spool.disk.disk import Disk
from spool.errors import NotOpen, ProtocolError, SpoolError
from spool.index.commit import Subscription
from spool.log.adoption import HEURISTIC_FACT
from spool.log.sequence import flush_published
from spool.log.visibility import catch_up
from spool.maintenance.disk_space import free_room
from spool.model.message import Message
from spool.model.position import Position
from spool.model.settings import SpaceConfig
from spool.model.xid import Xid, new_local_xid
from spool.policies import heuristics, subscriptions
from spool.policies.retries import count_failures
from spool.runtime.call_guard import public_call, step, within
from spool.runtime.clock import Clock
from spool.runtime.context import Joinable, associate, associated
from spool.store.meters import Meters
from spool.transactions import two_phase
from spool.transactions.claims import Claims
from spool.transactions.coordinated import CoordinatedTransaction, Coordinator, lock_coordinator
from spool.transactions.core import Core
from spool.transactions.delivery import set_aside, stored_body
from spool.transactions.transaction import Transaction

if TYPE_CHECKING:
    from spool.admin.doctor import TrialResult
    from spool.admin.listing import QueueEntry
    from spool.policies.applications import BatchOf
    from spool.reading.backlog import Backlog
    from spool.watch.consumers import Consumer
    from spool.watch.live_tasks import WaitingTasks
    from spool.workers.claimed import ClaimedAttempt

Decision = Literal["committed", "rolled back"]
"""An administrator's decision about a branch."""


class RoomLeft(NamedTuple):
    """The remaining room for messages.

    ``messages``: the number of messages that fit; None: any number. ``full``: the name of a full queue; "" if none is
    full.
    """

    messages: int | None = None
    full: str = ""


class BranchExists(SpoolError):
    """A branch with this xid exists, is prepared, or was committed earlier."""


class Engine:
    """An open space, for packages that are built upon the library.

    path: the directory of the space, as an absolute path.
    space_id: the id of the space: 32 hex digits.
    original: an identity that the space keeps when it is moved, and that no copy has; see ``is_same_original``.
    meters: this process's counts, for monitoring.
    call: a context manager that makes several verbs one call, so that the space is not closed between the verbs. The
        blocks may be nested. Entering a block raises NotOpen if the space is closed.
    coordinate: ``coordinate()`` begins a coordinator, which claims messages, and commits the branches of processes
        without an index. This process holds the lock on the coordinator's id until ``Coordinator.close`` (Rule 6).
    joined: ``joined()`` returns the transaction that the caller's puts and gets join, or None. The caller is a thread
        or an asyncio task.
    join: ``join(transaction)``: from now on, the caller's puts and gets join this transaction of this space. After
        ``join(None)``, they join no transaction.
    at_close: ``at_close(function)`` registers a function, which is called when the space is closed and the space's last
        call has ended. ``at_close`` takes no lock.
    not_at_close: ``not_at_close(function)`` undoes ``at_close`` for a function. Other functions are ignored.
    before_close: ``before_close(function)`` registers a function, which is called when a program closes the space. The
        function may still commit.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._store = store = core.store
        self.path, self.space_id, self.original = store.files.disk.root, store.files.id, store.files.original
        # (attributes, not methods, because a method call would cost more than the work)
        self.meters: Meters = store.meters
        self.call = store.guard.step
        self.coordinate: Callable[[], Coordinator] = partial(Coordinator, core)
        self.joined: Callable[[], Joinable | None] = partial(associated, store)
        self.join: Callable[[Joinable | None], object] = partial(associate, store)
        self.before_close: Callable[[Callable[[], None]], object] = store.before_end.setdefault
        self.at_close: Callable[[Callable[[], None]], object] = store.at_end.setdefault
        self.not_at_close: Callable[[Callable[[], None]], object] = lambda function: store.at_end.pop(function, None)

    def resumptions(self, queue: str) -> Resumptions:
        """Return the requests of administrators to end the pauses of the queue's routes."""
        return Resumptions(self._store.files.disk, queue)

    # -- the space and its calls --------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether the space is closed, or is being closed."""
        return self._store.closed

    @public_call("looking for the space")
    def check_in_place(self) -> None:
        """Raise SpaceStopped if the directory of the space was moved, replaced or removed. A program that only answers
        requests asks now and then, and ends."""
        self._store.check_in_place()

    @property
    def clock(self) -> Clock:
        """The clock of the space: ``now()`` is the time since the epoch, ``monotonic()`` never goes back."""
        return self._store.clock

    @public_call("reading the settings")
    def config(self) -> SpaceConfig:
        """Return the options of the space and of its queues from the current ``space.toml``."""
        return self._store.settings.current().config

    def deliver_stored_bytes(self) -> None:
        """From now on, deliver the stored bytes of bodies, undecoded.

        So a program that only shows bodies needs no codecs.
        """
        self._store.view.decodes_bodies = False

    @public_call("reclaiming")
    def free_room(self) -> None:
        """Remove every file that the space does not need, before the call returns. A failure is only logged."""
        free_room(self._store)

    @public_call("looking for processes")
    def other_processes(self) -> list[str]:
        """Return the other processes that have the space open, e.g. ``process 4711 (python3)``.

        Processes that this user may not see are left out.
        """
        return self._store.shared.open_lock.others()

    @public_call("counting messages")
    def first_due(self, queue: str) -> float | None:
        """Return the due time of a queue's first delayed message, in seconds since the epoch; None without such a
        message.

        Raises KeyError if the queue does not exist.
        """
        return first_due(self._store, queue)

    @public_call("looking for consumers")
    def consumers(self) -> "dict[str, list[Consumer]]":
        """Return the consumers of each queue, those that have served longest first."""
        from spool.watch.consumers import consumers
        from spool.watch.figures import claims

        return consumers(self.meters.read().states, claims(self._store))

    @public_call("counting tasks")
    def waiting_tasks(self, queue: str, most: int) -> "tuple[dict[str, WaitingTasks], bool]":
        """Count the waiting messages of a queue by task; see ``spool.watch.live_tasks``. KeyError: no such queue."""
        from spool.watch.live_tasks import waiting_tasks

        return waiting_tasks(self._store, queue, most)

    @public_call("reading messages")
    def held_messages(self, most: int, preview: int) -> "list[QueueEntry]":
        """Return the messages that programs hold; see ``spool.watch.live_tasks``."""
        from spool.watch.live_tasks import held_messages

        return held_messages(self._store, most, preview)

    # -- branches of a foreign coordinator: phase one ------------------------------------------------------------------

    def begin_branch(self, xid: Xid, timeout: float | None = None) -> CoordinatedTransaction:
        """Begin a branch of a global transaction, and lock its xid (Rule 6).

        Because of the lock, no other process can begin, commit or roll back a branch with this xid. The caller is
        inside ``call``. Errors of the operating system are raised unchanged.

        Args:
            xid: the xid of the branch.
            timeout: the seconds after which the branch is rolled back if it is not prepared; None: never.

        Raises:
            BranchExists: another process has the branch, or the xid was used before.
        """
        transaction = CoordinatedTransaction(self._core, timeout=timeout, xid=xid)
        if not transaction.lock_xid_now():
            raise BranchExists(f"another process has the branch {xid}: use another xid")
        try:  # checked under the lock, because the lock's last holder may have prepared the branch
            if two_phase.is_prepared(self._store, xid):
                raise BranchExists(f"there is a branch {xid} already, which is prepared: use another xid")
            if f"{HEURISTIC_FACT}{xid}" in self._store.view.index.facts:  # (``is_prepared`` has applied every commit)
                raise BranchExists(f"an administrator has decided a branch {xid}: acknowledge it with xa_forget")
            if xid in self._store.view.index.adopted:  # the new file would look like the committed file
                raise BranchExists(f"a branch {xid} was committed a while ago: an xid is used once, take another")
        except BaseException:
            transaction.abandon()
            raise
        return transaction

    def roll_back_later(self, transaction: CoordinatedTransaction, reason: str) -> None:
        """Let the housekeeper roll back a branch that the program has dropped.

        From now on, the branch refuses puts and gets.

        This method takes no lock and touches no file, so a ``__del__`` may call it.
        """
        transaction.lost = reason
        if associated(self._store) is transaction:
            associate(self._store, None)

        def roll_back() -> None:
            with suppress(NotOpen, ProtocolError):  # a call from a copied context may have ended the transaction
                within(Transaction.rollback)(transaction, reason)  # the housekeeper makes a separate call

        self._store.dropped.append(roll_back)

    # -- branches of a foreign coordinator: phase two ------------------------------------------------------------------

    def commit_branch(self, xid: Xid, *, vote_known: bool) -> int:
        """Commit a prepared branch; returns the number of the commit.

        Branches that are committed at the same time share a flush. The caller is inside ``call``; errors of the
        operating system are raised unchanged.

        Args:
            vote_known: whether this process got the vote, so the branch is durable. Otherwise the bytes of the branch
                are made durable first.

        Raises:
            UnknownBranch: no prepared branch has this xid.
            Full: the messages of the branch do not fit.
            CommitUnknown: the outcome is unknown. Open the space again, and repeat the call.
        """
        return two_phase.commit_prepared(self._core, xid, vote_known=vote_known)

    @step("committing branches")
    def commit_together(self, xids: Sequence[Xid]) -> None:
        """Commit, as one commit, prepared branches whose votes this process got.

        The commit of a single branch shares its flush with commits of other threads. Raises the errors of
        ``commit_branch``. If the error is UnknownBranch, no branch was committed.
        """
        if len(xids) == 1:
            two_phase.commit_prepared(self._core, xids[0], vote_known=True)
            return
        decision = self.begin_branch(new_local_xid())
        try:
            decision.commit(adopt=xids)
        finally:
            decision.abandon()

    @public_call("rolling back a branch")
    def roll_back_branch(self, xid: Xid, reason: str = "its transaction was rolled back") -> None:
        """Roll back a prepared branch: drop its puts, and release the messages of its gets with one more attempt each.

        A power cut may undo a rollback, so a coordinator may have to repeat it. A commit and a rollback of one branch
        exclude each other (Rule 5). Raises UnknownBranch if no prepared branch has this xid.
        """
        two_phase.rollback_prepared(self._store, xid, self._store.deadline(), reason, counted=True)

    @public_call("looking for branches in doubt")
    def in_doubt(self, known_votes: Collection[Xid] = ()) -> list[Xid]:
        """Return the prepared, undecided branches of foreign coordinators, sorted. Each branch is durable.

        Branches whose processes are still voting are left out. The method first rolls back the branches of our
        coordinators that have ended.

        Args:
            known_votes: the branches whose votes this process got. All other branches are made durable first.
        """
        return two_phase.in_doubt(self._store, self._store.deadline(), known_votes=known_votes)

    @public_call("looking at a branch")
    def describe(self, xid: Xid) -> InDoubt:
        """Return a prepared branch's puts and gets, and the process that prepared the branch. Raises UnknownBranch."""
        return in_doubt.describe(self._store, xid)

    @public_call("looking for branches in doubt")
    def describe_all(self) -> list[InDoubt]:
        """Return the puts and gets of all prepared, undecided branches of foreign coordinators, the oldest first.

        Unlike ``in_doubt``, this method makes no branch durable, so it is fast even for thousands of branches.
        """
        return in_doubt.describe_all(self._store)

    @public_call("looking at a branch")
    def is_prepared(self, xid: Xid) -> bool:
        """Return whether a branch is prepared and undecided, according to this process's current knowledge."""
        return two_phase.is_prepared(self._store, xid)

    @public_call("looking at a branch")
    def owner_of(self, xid: Xid) -> Literal["this process", "another process"] | None:
        """Return whether this process or another process has an unprepared branch; None if no process has the
        branch."""
        xids, byte = self._store.shared.xids, xid_byte(xid)
        if xids.is_free(byte):
            return None
        return "this process" if xids.is_held_here(byte) else "another process"

    # -- an administrator's decisions ----------------------------------------------------------------------------------

    @public_call("deciding about a branch")
    def decide(self, xid: Xid, *, commit: bool) -> None:
        """Durably commit or roll back a prepared branch, in place of its coordinator.

        The decision is kept until ``forget``, so that a coordinator that asks later gets the decision. Raises
        UnknownBranch if no prepared branch has this xid.
        """
        in_doubt.decide_heuristically(self._core, xid, self._store.deadline(), commit=commit)

    @public_call("looking for decisions")
    def decision(self, xid: Xid) -> Decision | None:
        """Return an administrator's decision about a branch; None if no decision exists (any more)."""
        return heuristics.heuristic_outcome(self._store, xid)  # type: ignore[return-value]

    @public_call("looking for decisions")
    def decisions(self) -> dict[str, Decision]:
        """Return the administrators' decisions that are not forgotten, by the text of the xid."""
        return heuristics.heuristic_outcomes(self._store)  # type: ignore[return-value]

    @public_call("forgetting a decision")
    def forget(self, xid: Xid) -> bool:
        """Durably forget an administrator's decision. Return False if no decision about the branch exists."""
        return in_doubt.forget(self._store, xid, self._store.deadline())

    # -- coordinators of ours ------------------------------------------------------------------------------------------

    @contextmanager
    def locked_coordinator(self, gtrid: bytes) -> Iterator[tuple[int, int]]:
        """Lock a new coordinator's id, for a process that inherits the lock.

        The block gets the descriptors of two locks: the lock on the id, and the lock that marks the space as open. At
        the end of the block, this process closes the descriptors. A process that inherits the descriptors holds the
        locks until it closes the descriptors or dies. Until then no other process rolls back a branch of the
        coordinator, and a process that opens the space is not its first opener.

        Args:
            gtrid: the id, 1 to 64 bytes.

        Raises:
            ProtocolError: a coordinator with this id lives.
        """
        disk = self._store.files.disk
        with self._store.guard.step:
            locks = lock_coordinator(disk, gtrid)
            try:
                yield locks
            finally:
                for handle in locks:
                    disk.close(handle)

    @step("committing branches")
    def commit_branches(self, xids: Sequence[Xid], batch: "BatchOf | None" = None) -> bool:
        """Commit prepared branches of one coordinator as one commit, in the given order.

        The caller has the votes of the branches. A message is left out if an earlier message has the same deduplication
        key.

        Args:
            batch: the application's batch, if the branches are the parts of a batch. The same commit records the batch.
                If the application repeats a batch, the batch is still committed only once.

        Returns:
            False if this batch or a later batch of the application was committed before. In this case nothing was done.

        Raises:
            UnknownBranch: one of the branches was rolled back. Nothing was done.
            Full: the messages do not fit. Nothing was done.
            MessageInUse: a branch in doubt, or a transaction that does not end, uses a deduplication key. Nothing was
                done.
            InvalidArgument: earlier batches of the application came from another source.
            CorruptedFile: the record of the application's batches is damaged.
            CommitUnknown: the outcome is unknown.
        """
        from spool.remote.remote_adoption import commit_branches

        return commit_branches(self._core, xids, batch)

    @public_call("looking for branches of coordinators that have ended")
    def resolve_orphans(self) -> list[Xid]:
        """Roll back the undecided branches of our coordinators that have ended (Rule 6).

        Returns the xids of the branches.
        """
        return two_phase.resolve_orphans(self._store, self._store.deadline())

    # -- messages ------------------------------------------------------------------------------------------------------

    @public_call("counting messages")
    def room(self, queues: Iterable[str]) -> RoomLeft:
        """Return the number of messages that still fit into each of these queues."""
        from spool.workers.answer_room import room_for_answers

        return RoomLeft(*room_for_answers(self._store, queues))

    @public_call("counting an attempt")
    def count_failure(self, position: Position, reason: str, *, died: bool = False) -> str | None:
        """Count a failed attempt for a message that the caller holds. The count needs no flush.
        ``died``: whether the attempt ended with the death of its process.

        The message is available again later, moves to the error queue, or is dropped.

        Returns:
            The queue that has the message now; None if the message was dropped.
        """
        count_failures(self._store, [position], reason, self._store.deadline(), died=died)
        with self._store.view.mutex:
            run = self._store.view.index.messages.find(position)
        return None if run is None else run.queue.name

    @public_call("counting messages")
    def waiting(self, queue: str, places: Iterable[Position]) -> int:
        """Count the messages at these positions that are in the queue and not due yet."""
        now = self._store.clock.now()
        with self._store.view.mutex:
            runs = [run for run in map(self._store.view.index.messages.find, places) if run is not None]
        return sum(run.queue.name == queue and run.due is not None and run.due > now for run in runs)

    @public_call("moving a damaged message to quarantine")
    def quarantine(self, position: Position, reason: str) -> None:
        """Move a held message with a damaged body to quarantine, and store the reason there. The move is durable."""
        set_aside(self._store, position, reason, self._store.deadline())

    @public_call("reading a message")
    def stored_body(self, message: Message) -> bytes:
        """Return the stored bytes of a body. The caller holds the message. Raises CorruptedFile."""
        return stored_body(self._store.files, self._store.view, message)

    def claimed_attempt(self, claims: Claims, message: Message) -> "ClaimedAttempt":
        """Return an attempt for a message that ``claims`` holds, to end it with the outcome of a service."""
        from spool.workers.claimed import ClaimedAttempt

        return ClaimedAttempt(self._core, claims, message)

    # -- reading without taking ----------------------------------------------------------------------------------------

    @public_call("reading messages")
    def backlog(self, queues: Sequence[str] = (), headers: Mapping[str, str] | None = None) -> "Backlog":
        """Return the places and sizes of the messages of some queues, by commit.

        ``MessageReader`` reads the messages at these places.

        Args:
            queues: the names of the queues; none: all queues.
            headers: the names and values of headers. Only messages with all of these headers are returned; they may
                have further headers.

        Raises:
            QueueNotFound: one of the queues does not exist.
        """
        from spool.reading.backlog import Backlog

        return Backlog(self._store, queues, headers)

    @public_call("looking for the newest commit")
    def durable_number(self) -> int:
        """Make the newest visible commit durable, and return its number (Rule 2).

        Afterwards a power cut loses no commit up to this number. If commits were made without a flush, this call
        flushes these commits.
        """
        page = self._store.check_usable()
        if page.durable == page.published:
            return page.published
        flush_published(self._store)
        return self._store.shared.counters.read().durable

    # -- subscriptions: non-consuming readers, for which commits are kept ----------------------------------------------

    @public_call("registering a subscription")
    def register_subscription(
        self, name: str, queues: Sequence[str], seconds: float, *, anew: bool = False, directory: str = ""
    ) -> int:
        """Durably register a subscription: later commits are kept until the subscription has read them (Rule 15).

        Args:
            name: 1 to 255 characters.
            queues: the names of the subscription's queues, sorted; none: all queues.
            seconds: the seconds after which the subscription ends unless it is renewed before.
            anew: whether to replace an existing subscription of this name that has already read commits.
            directory: the directory of the archive that reads; "" for another reader.

        Returns:
            The number of the commit that registered the subscription. Successive subscriptions of one name have
            different numbers.

        Raises:
            InvalidArgument: a subscription of this name has read commits, or is of an archive in another directory.
        """
        return subscriptions.register(self._store, name, queues, seconds, anew, directory)

    @public_call("looking for a subscription")
    def subscription(self, name: str) -> Subscription | None:
        """Return the subscription of this name; None if no such subscription exists."""
        catch_up(self._store)
        return subscriptions.subscription(self._store.view, name)

    @public_call("renewing a subscription")
    def advance_subscription(self, name: str, since: int, after: int, seconds: float, *, directory: str = "") -> bool:
        """Record durably that a subscription has read all commits up to ``after``, and renew the subscription.

        Args:
            since: the number of the commit that registered the subscription.
            after: the number of the last commit that the subscription has read.
            seconds: the seconds after which the subscription ends unless it is renewed before.
            directory: the present directory of the archive that reads; "" for another reader.

        Returns:
            False if the subscription has ended.

        Raises:
            InvalidArgument: the commit ``after`` does not exist yet.
        """
        return subscriptions.advance(self._store, name, since, after, seconds, directory)


def examine(path: str) -> "list[TrialResult]":
    """Try every operation that a space needs from a directory's file system. Return a ``TrialResult`` for each.

    The directory exists, and may be a space that is in use. The files of the trials are removed.
    """
    from spool.admin import doctor

    return doctor.examine(Disk(path))


def examine_kind(path: str) -> "TrialResult":
    """Return the ``TrialResult`` about a directory's file system, without a trial. The directory exists."""
    from spool.admin import doctor

    return doctor.examine_kind(Disk(path))


def local_file_system(path: str) -> str | None:
    """Return the kind of a directory's file system; None for a network file system. The directory exists."""
    disk = Disk(path)
    return disk.file_system().kind if disk.network_file_system() is None else None
