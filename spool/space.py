"""An open queue space, as an application uses it: puts, gets and transactions. ``spool.admin`` has the rest."""

import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast

from spool.admin.admin import Administration
from spool.admin.findings import Finding, RecoveryReport
from spool.admin.reads import check_find, find
from spool.admin.schedules import put_due
from spool.errors import Empty, InvalidArgument, NotOpen, SpaceStopped
from spool.maintenance.housekeeper import Housekeeper
from spool.maintenance.time_limits import end_overdue
from spool.maintenance.triggers import RECLAIM_BYTES
from spool.model import layout
from spool.model.checks import body_list, check_time_limit
from spool.model.message import Message
from spool.model.options import JOIN, GetOptions, Join, PutOptions
from spool.model.text import shown
from spool.runtime import call_guard
from spool.runtime.call_guard import later_if_busy, public_call, within
from spool.runtime.context import associated, joined_by_caller
from spool.runtime.pickling import refuse_pickling
from spool.store.store import Store
from spool.transactions.arrivals import QueueArrivals, arrivals_in
from spool.transactions.claiming import check_wanted, next_of
from spool.transactions.claims import Claims
from spool.transactions.core import Core
from spool.transactions.hold import get_alone
from spool.transactions.request_reply import PendingRequest, check_request, wait_for_reply
from spool.transactions.transaction import Transaction, check_active, submit_alone
from spool.transactions.validation import put_request

if TYPE_CHECKING:
    from spool.engine import Engine
    from spool.watch.figures import KeptFigures, SpaceMetrics
    from spool.workers.attempt import Attempts
    from spool.workers.handler import Handler
    from spool.workers.worker import WorkSummary

T = TypeVar("T")
_warn = warnings.warn  # (the end of the interpreter may remove the module warnings before the last space)


def enclosing(store: Store, chosen: Transaction | Join | None) -> Transaction | None:
    """Return the transaction that a call is part of: ``chosen``, the caller's transaction, or None."""
    if chosen is JOIN:
        return associated(store)  # type: ignore[return-value]  # (only the space's own transactions have its store)
    if chosen is not None and getattr(chosen, "_store", None) is not store:
        path = store.files.disk.root
        raise InvalidArgument(f"transaction is JOIN, None, or one of this space, {path}, not {shown(chosen)}")
    return chosen


def _publisher(store: Store) -> Callable[[], None]:
    """Return a function that publishes the metrics if the space's settings ask for published metrics.

    The function imports ``Publisher`` only when it publishes, because most spaces publish nothing.
    """
    made: list[Callable[[], None]] = []

    def publish() -> None:
        if store.settings.known.config.monitor_group is not None or store.files.disk.exists(layout.STATUS):
            if not made:
                from spool.watch.published import Publisher

                made.append(Publisher(store))
            made[0]()

    return publish


class Space(Administration):
    """An open queue space. Many threads may use a space. In a forked child the space is closed."""

    __reduce_ex__ = refuse_pickling

    def __init__(
        self,
        core: Core,
        report: RecoveryReport,
        check: Callable[[Store], list[Finding]],
        repair: Callable[[Store], list[Finding]],
    ) -> None:
        """Applications call ``spool.open`` instead. ``check``, ``repair``: functions of a package above this one."""
        super().__init__(core)
        self._check, self._repair = check, repair
        self._recovery = report
        self._kept_figures: KeptFigures | None = None
        end = partial(end_overdue, core.store, check_active)
        self._housekeeper = Housekeeper(core.store, _publisher(core.store), partial(put_due, core), end)
        core.leader.committed = self._housekeeper.committed

    @property
    def engine(self) -> "Engine":
        """The engine of the space, for packages that are built upon the library: see ``spool.engine``."""
        from spool.engine import Engine  # (imported here: most programs do not use the engine)

        return Engine(self._core)

    @property
    def path(self) -> str:
        """The directory of the space, as an absolute path."""
        return self._store.files.disk.root

    @property
    def id(self) -> str:
        """The id of the space: 32 hex digits, random. A moved space keeps its id, and a copy of the space has the same
        id."""
        return self._store.files.id

    @property
    def recovery(self) -> RecoveryReport:
        """The findings and repairs from the time when this space was opened."""
        return self._recovery

    @public_call("committing")
    def put(
        self, queue: str, body: Any, *, transaction: Transaction | Join | None = JOIN, **options: Unpack[PutOptions]
    ) -> str:
        """Put a message; returns its id, 32 hex digits.

        The message is durable when the call returns. In a transaction, the message is durable when the transaction
        commits.

        Args:
            body: bytes, a str, or a value that a codec knows.
            transaction: JOIN for the caller's transaction, if any; None for a separate transaction; or a transaction of
                this space.
            options: see ``spool.PutOptions``.

        Raises:
            QueueNotFound: the queue does not exist.
            InvalidArgument: an option has a value that is not allowed.
            Full: a limit of the queue or the space is reached.
            BadMessageId: the message given as ``before`` was removed.
            MessageInUse: a branch in doubt, or a transaction that does not end, uses the deduplication key.
        """
        if (transaction is not JOIN or joined_by_caller.get()) and (joined := enclosing(self._store, transaction)):
            return within(Transaction.put)(joined, queue, body, **options)
        return self._put(queue, (body,), **options)[0]

    @public_call("committing")
    def replace(
        self,
        queue: str,
        body: Any,
        *,
        timeout: float | None = 30.0,
        transaction: Transaction | Join | None = JOIN,
        **options: Unpack[PutOptions],
    ) -> str:
        """Put a message in place of all messages of the queue with the same correlation id, in one commit.

        If the queue has no such message, the call only puts. If several transactions and processes replace messages
        with one correlation id at the same time, one message remains. A transaction may replace a message several
        times; all these calls return the same id. But no call replaces a message of a ``put`` in its own transaction.
        A rollback counts no attempt for the replaced messages.

        Args:
            body: see ``put``.
            timeout: the seconds to wait while another transaction holds an old message, or has replaced a message with
                this correlation id; None waits for ever.
            transaction: see ``put``. Inside a transaction, the old messages remain until the commit.
            options: see ``spool.PutOptions``. ``correlation_id`` is required; ``deduplication_key`` is not allowed.

        Returns:
            The id of the new message.

        Raises:
            MessageInUse: another transaction held an old message or the correlation id for ``timeout`` seconds. Nothing
                was replaced.
            ProtocolError: the transaction of the call has replaced the message before, and has meanwhile become so
                large that its messages are on the disk.
            The other errors of ``put``.
        """
        if (joined := enclosing(self._store, transaction)) is not None:
            return within(Transaction.replace)(joined, queue, body, timeout=timeout, **options)
        id = self._alone(Transaction.replace, queue, body, timeout=timeout, **options)
        self._after_commit()
        return id

    def put_many(
        self,
        queue: str,
        bodies: Iterable[Any],
        *,
        transaction: Transaction | Join | None = JOIN,
        **options: Unpack[PutOptions],
    ) -> list[str]:
        """Put messages with the same options, in one commit; returns their ids. Arguments and errors: see ``put``."""
        # The caller supplies the iterable, so an error of the iterable is no failure of the space's disk.
        return self._put_list(queue, body_list(bodies), transaction, **options)

    @public_call("committing")
    def _put_list(
        self, queue: str, bodies: list[Any], transaction: Transaction | Join | None, **options: Unpack[PutOptions]
    ) -> list[str]:
        if (joined := enclosing(self._store, transaction)) is not None:
            return within(Transaction._put_list)(joined, queue, bodies, **options)
        return self._put(queue, bodies, **options)

    def _put(self, queue: str, bodies: Sequence[Any], **options: Unpack[PutOptions]) -> list[str]:
        """Put messages that are part of no transaction."""
        request = None
        if not options or options.get("deduplication_key") is None:
            request = put_request(self._core, queue, bodies, **options)
        if request is None or request.is_large:
            ids = self._alone(Transaction._put_list, queue, list(bodies), **options)
        else:
            self._core.leader.commit(request)
            ids = request.ids
        self._after_commit()
        return ids

    def _alone(self, method: Callable[..., T], *args: Any, **options: Any) -> T:
        """Call a method of a separate transaction, and commit the transaction."""
        own = Transaction(self._core, counted=False)
        try:
            result = within(method)(own, *args, **options)
            within(Transaction.commit)(own)
            return result
        finally:
            own.abandon()

    def _after_commit(self) -> None:
        """Notify the housekeeper of a commit, if the housekeeper may have work."""
        index = self._store.view.index
        if index.applied >= self._housekeeper.next_look or index.idle_bytes >= RECLAIM_BYTES:
            self._housekeeper.committed()

    @later_if_busy
    @public_call("committing")
    def submit(
        self, queue: str, body: Any, *, transaction: Transaction | Join | None = JOIN, **options: Unpack[PutOptions]
    ) -> "Future[str]":
        """Put a message without waiting; returns a future, whose result is the message's id.

        The future is done when the message is durable and visible. Messages that threads and tasks submit while the
        disk is busy share the next flush. The call waits only while more than 65,536 messages or 32 MiB are being
        committed. In a transaction the future is done when the transaction commits, and fails with
        TransactionRolledBack when the transaction rolls back. The submitted messages are committed when the space
        closes, and when the program ends normally. In a forked child the copies of the futures are never done.
        Arguments and errors: see ``put``.
        """
        if (joined := enclosing(self._store, transaction)) is not None:
            return within(Transaction.submit)(joined, queue, body, **options)
        if options.get("deduplication_key") is not None:  # (waits for other puts with the key)
            return submit_alone(self._core, queue, body, **options)
        return self._core.leader.future(put_request(self._core, queue, (body,), **options))

    @public_call("taking from queue {queue}")
    def get(
        self, queue: str, *, transaction: Transaction | Join | None = JOIN, **options: Unpack[GetOptions]
    ) -> Message:
        """Take a message: the next message of the queue, or a message by id or correlation id.

        Args:
            transaction: JOIN for the caller's transaction, if any; None for a separate transaction; or a transaction of
                this space.
            options: see ``spool.GetOptions``.

        Raises:
            Empty: no message became free in time.
            QueueNotFound: the queue does not exist.
        """
        if (transaction is not JOIN or joined_by_caller.get()) and (joined := enclosing(self._store, transaction)):
            return within(Transaction.get)(joined, queue, **options)
        wanted = check_wanted(queue, 1, **options) if options else next_of(queue)
        # Pending signals are delivered before the commit. A later signal does not prevent the commit.
        found = get_alone(self._core, wanted, call_guard.deliver_pending_signals)
        self._after_commit()
        return found[0]

    @public_call("taking from queue {queue}")
    def get_many(
        self,
        queue: str,
        max_messages: int,
        *,
        transaction: Transaction | Join | None = JOIN,
        **options: Unpack[GetOptions],
    ) -> list[Message]:
        """Take up to ``max_messages`` messages in one commit, at least one. Arguments and errors: see ``get``."""
        if (joined := enclosing(self._store, transaction)) is not None:
            return within(Transaction.get_many)(joined, queue, max_messages, **options)
        wanted = check_wanted(queue, max_messages, **options)
        found = get_alone(self._core, wanted, call_guard.deliver_pending_signals)
        self._after_commit()
        return found

    @public_call("waiting for messages")
    def arrivals(self, queues: Iterable[str]) -> QueueArrivals:
        """Return a descriptor for event loops, which is readable while messages of the queues may be free.

        ``select`` and event loops take the returned object, or its ``fileno()``. ``ready()`` returns the queues from
        which the program then takes messages until it finds none::

            with space.arrivals(["orders", "mail"]) as arrivals:
                while select.select([arrivals], [], []):
                    for queue in arrivals.ready():
                        while take_one(queue):
                            ...

        A commit of any process makes the descriptor readable within a few milliseconds. The due time of a delayed
        message, the release of a claim, and the death of its holder make it readable within 0.2 seconds. The
        descriptor is readable at first, and when the space is closed. A program that can take no more messages stops to
        watch the descriptor, because it remains readable. One thread watches for all arrivals of the process. In a
        forked child the arrivals are closed.

        Args:
            queues: the names of the queues.

        Raises:
            QueueNotFound: a queue does not exist.
            InvalidArgument: ``queues`` is one text, or names no queue.
            ProtocolError: gevent or eventlet has replaced the threads of this process.
        """
        return arrivals_in(self._store, queues)

    @public_call("looking into queue {queue}")
    def find(
        self, queue: str, *, correlation_id: str, timeout: float | None = 0, other_than: str | None = None
    ) -> Message | None:
        """Return the newest message of the queue with this correlation id, or None. Nothing is claimed.

        The message may be ready, delayed or claimed. Expired messages, and messages of transactions that have not
        committed, are not found. This also holds for the transaction of the caller.

        The first search reads the table of each large file of the queue: some 0.5 ms for every 4,096 compacted
        messages. Later searches read only the tables that may have the correlation id. For this, the memory has four
        bytes for each of at most two million ids; with more ids, each search also reads the other tables. This also
        holds for ``get``, ``browse`` and ``purge`` by correlation id, and, over all queues, by message id.

        Args:
            timeout: the seconds to wait until such a message exists; 0 does not wait, and None waits for ever.
            other_than: the id of a message that the caller knows, e.g. of an earlier value. While it is the newest
                message, the call returns None or waits.

        Raises:
            QueueNotFound: the queue does not exist.
            InvalidArgument: the correlation id or the timeout is not valid.
            BadMessageId: ``other_than`` is no message id.
            CorruptedFile: the message is damaged.
        """
        return find(self._store, check_find(queue, correlation_id, timeout, other_than), other_than)

    def request(self, queue: str, body: Any, *, timeout: float | None = 30.0, **options: Unpack[PutOptions]) -> Message:
        """Put a message, wait for its reply and take the reply.

        The reply is the message with the request's correlation id in the reply queue. The put and the get are separate
        transactions.

        Args:
            body: see ``put``.
            timeout: the seconds to wait for the reply, from the commit of the put; None waits for ever.
            options: see ``spool.PutOptions``. Without ``reply_queue`` the request takes the ``reply_queue`` of its
                queue; without ``correlation_id`` the request gets a new correlation id.

        Raises:
            Empty: no reply came in time. The request remains. The error has the request's ``correlation_id``, by which
                ``get`` takes a late reply.
            RequestFailed: a service rejected the request, or the request has failed too often and is in the error
                queue.
            ProtocolError: the caller is in a transaction. No service would see the request before the commit.
            QueueNotFound, InvalidArgument, Full, BadMessageId: nothing was put.
        """
        checked = self._check_request(queue, timeout, options)
        message_id = self.put(queue, body, transaction=None, **checked.options)
        return self._take_reply(replace(checked, message_id=message_id))

    @public_call("requesting from queue {queue}")
    def _check_request(self, queue: str, timeout: float | None, options: PutOptions) -> PendingRequest:
        return check_request(self._store, queue, timeout, options)

    @public_call("requesting from queue {request.queue}")
    def _take_reply(self, request: PendingRequest) -> Message:
        reply = wait_for_reply(self._core, request, call_guard.deliver_pending_signals)
        self._after_commit()
        return reply

    def transaction(self, timeout: float | None = 30.0) -> Transaction:
        """Begin a transaction: a ``with`` block commits at its end, and rolls back on an exception.

        Args:
            timeout: the seconds after which the transaction is rolled back; None for no limit.
        """
        if type(timeout) is not float or not timeout > 0:
            check_time_limit(timeout)
        self._store.check_usable()
        return Transaction(self._core, timeout=timeout, guarded=True)

    @public_call("beginning claims")
    def claims(self) -> Claims:
        """Return an object that claims messages outside of any transaction, each until it is acknowledged.

        This is the interface for programs that handle many messages side by side, e.g. the frameworks of task queues:
        take messages, ``begin`` each, then ``remove``, ``fail``, ``reject`` or ``release`` each, in any order. See
        docs/claims.md.
        """
        self._store.check_usable()
        return Claims(self._core)

    def consume(self, queue: str, timeout: float | None = None) -> Iterator[tuple[Transaction, Message]]:
        """Yield one message after another, each with a transaction that commits at the end of the loop's body.

        An exception in the body rolls the transaction back, and counts one more attempt. ``break`` and ``return`` also
        roll the transaction back, because Python does not tell a generator how its loop ended. To commit, call
        ``tx.commit()`` before these statements. The transactions have no time limit. Unlike ``consume``, ``work``
        records the reason of a failure, and continues.

        Args:
            timeout: the seconds without a message after which the iteration ends; None: never.
        """
        while True:
            with self.transaction(timeout=None) as tx:
                try:
                    message = tx.get(queue, timeout=timeout)
                except Empty:
                    return
                yield tx, message

    def work(
        self,
        queue: str,
        function: "Callable[[Message], Any] | Handler",
        *,
        threads: int = 1,
        once: bool = False,
        timeout: float | None = 30.0,
        stop: threading.Event | None = None,
        pause_after: int = 10,
    ) -> "WorkSummary":
        """Call ``function`` with each message of the queue, in a separate transaction.

        The function's puts and gets join the transaction. The function returns the reply, for the message's reply
        queue; None is an empty reply. If the function raises ``spool.Reject``, the failure is final; with
        ``spool.Retry`` or any other exception, the attempt has failed. The reply and the removal of the message are one
        commit; after a failure none of the function's puts is committed.

        Args:
            function: a function of the message, or a ``spool.Handler``.
            threads: the number of threads that call the function side by side.
            once: whether to end after every message that can be claimed was claimed once.
            timeout: the limit of one call in seconds; None: no limit. A call that takes longer is abandoned: the
                message returns to the queue with one more attempt, and the call's thread keeps running.
            stop: an event; ``work`` ends when the event is set.
            pause_after: how many messages fail one after another, with the same kind of failure, before ``work``
                pauses; 0: any number. The kind is the reason up to its first colon, without digits. After a pause, one
                message shows whether calls succeed again; if it fails, the next pause is twice as long, up to a minute.
                With ``once``, ``work`` does not pause.

        Raises:
            QueueNotFound, InvalidArgument: at once, before a message is taken.
            SystemFailure: too many calls have not ended.
        """
        from spool.workers.worker import Worker  # most programs that open a space are no workers

        return Worker(
            self, queue, function, threads=threads, once=once, timeout=timeout, stop=stop, pause_after=pause_after
        ).run()

    def _attempts(self) -> "Attempts":
        from spool.workers.attempt import Attempts

        return Attempts(self._core)

    @public_call("reading the metrics")
    def metrics(self) -> "SpaceMetrics":
        """Return the figures of the whole space at one moment: see ``spool.SpaceMetrics``.

        The figures are also readable after a failed flush has stopped the space.
        """
        from spool.watch.figures import KeptFigures, space_metrics  # imported here: most programs do not use it

        self._kept_figures = self._kept_figures or KeptFigures()
        return space_metrics(self._store, self._kept_figures)

    @public_call("checking the space")
    def check(self, repair: bool = False) -> list[Finding]:
        """Read every file; return the findings, damage first.

        Args:
            repair: whether to repair damaged files, or move them to quarantine.
        """
        self._store.check_usable()
        return self._repair(self._store) if repair else self._check(self._store)

    def close(self) -> None:
        """Close the space, once the calls of other threads have ended; waiting calls end at once with NotOpen.

        Submitted messages are committed first. If a transaction is not finished when the space closes, the next process
        that finds the transaction rolls it back.
        """
        with call_guard.deferred(self._store.guard.end):
            if call_guard.is_in_a_call():
                call_guard.call_later(self.close)
            elif not self._store.closed:
                # (each submitted message that cannot be committed has the error in its future)
                with suppress(NotOpen, SpaceStopped), self._store.guard.step:
                    for function in list(self._store.before_end):
                        function()
                    self._drain()
                self._housekeeper.tidy_up()
                self._store.guard.close()
                self._housekeeper.end()
            else:  # an interrupted call has closed the space, or another thread is closing it
                self._store.guard.close()

    @public_call("committing")
    def _drain(self) -> None:
        self._core.leader.drain()

    def _check_open(self) -> None:
        self._store.guard.check()

    def __del__(self) -> None:
        """Warn of a space that was not closed. The space remains open, because its transactions may continue."""
        if "_housekeeper" in self.__dict__ and not self._store.closed:
            _warn(f"the space {self.path} was dropped, and not closed: use it in a with statement", ResourceWarning, 2)

    def __repr__(self) -> str:
        return f"<queue space {self.path}{' (closed)' if self._store.closed else ''}>"


def current_space() -> Space:
    """Return the space of the worker whose function calls this.

    The space's puts and gets join the transaction of the worker's message. Raises ProtocolError outside of a worker's
    call.
    """
    from spool.workers.attempt import working_space  # (see Space.work)

    return cast(Space, working_space())
