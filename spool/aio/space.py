"""A queue space for asyncio: ``async with spool.aio.open(path) as space: await space.put(…)``.

The engine is the same as for ``spool.Space``. A put joins the next group commit, and the loop gets one notification for
each commit, not one for each message. A thread makes every call that reads, locks or waits for the disk (see
``tasks``). If several tasks wait for one queue, one task checks the queue for all (see ``receiver``).

A cancelled task loses no message. A get or put that is cancelled before its commit has begun has no effect. A get that
is cancelled after this point returns its messages, and the task is cancelled at its next wait. A put that is cancelled
after this point may have been committed. A cancelled task first completes any other call.

This module has no ``submit`` and no ``commit_async``, because ``put`` and ``commit`` are awaitable, and concurrent
tasks share a flush.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import islice
from math import inf
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Self, TypeVar, Unpack, overload

import spool.opening
import spool.space
import spool.transactions.transaction
from spool.admin.findings import RecoveryReport
from spool.admin.listing import QueueEntry
from spool.admin.manifest import ExportReport, Progress
from spool.admin.reads import check_find
from spool.admin.stats import QueueStats
from spool.aio.claims import Claims
from spool.aio.receiver import Receiver
from spool.aio.task_worker import TaskWorker
from spool.aio.threads import Threads, threaded, wait_to_end
from spool.errors import Empty
from spool.log.write_set import WriteSet
from spool.model.checks import body_list
from spool.model.message import Message
from spool.model.options import JOIN, GetOptions, Join, MessageFilters, PutOptions, SpaceOptions
from spool.model.xid import Xid
from spool.runtime.call_guard import public_call
from spool.runtime.pickling import refuse_pickling
from spool.space import enclosing
from spool.transactions.claiming import check_wanted
from spool.transactions.core import core_of
from spool.transactions.request_reply import PendingRequest, check_request
from spool.transactions.transaction import end_block, enter, holds_groups, leave
from spool.transactions.validation import put_request
from spool.workers.handler import Handler
from spool.workers.pauses import PAUSE_AFTER
from spool.workers.worker import WorkSummary

if TYPE_CHECKING:
    from spool.watch.figures import SpaceMetrics

_BROWSED_AT_ONCE = 64

T = TypeVar("T")


class Transaction:
    """A transaction of the task that entered it, and of tasks that this task starts. ``sync``: the transaction for
    threads."""

    __reduce_ex__ = refuse_pickling

    def __init__(self, transaction: "spool.transactions.transaction.Transaction", receiver: Receiver) -> None:
        """Applications do not call this method. Instead, they call ``Space.transaction``."""
        self.sync = transaction
        self._receiver = receiver
        self._threads = receiver.threads

    @property
    def xid(self) -> Xid:
        """As ``spool.Transaction.xid``."""
        return self.sync.xid

    @property
    def is_active(self) -> bool:
        """As ``spool.Transaction.is_active``."""
        return self.sync.is_active

    @property
    def rollback_only(self) -> bool:
        """As ``spool.Transaction.rollback_only``."""
        return self.sync.rollback_only

    async def put(self, queue: str, body: Any, **options: Unpack[PutOptions]) -> str:
        """As ``Space.put``, in this transaction."""
        return (await self.put_many(queue, (body,), **options))[0]

    async def put_many(self, queue: str, bodies: Iterable[Any], **options: Unpack[PutOptions]) -> list[str]:
        """As ``Space.put_many``, in this transaction."""
        has_limits, mutex = self._receiver.core.store.settings.known.config.has_limits, self.sync.mutex
        reads_queue = has_limits or options.keys() & {"before", "deduplication_key"}
        if not reads_queue and mutex.acquire(blocking=False):  # (a thread may hold it, e.g. a replace that waits)
            try:
                return self.sync.put_many(queue, bodies, **options)
            finally:
                mutex.release()
        put = partial(self.sync.put_many, queue, body_list(bodies), **options)
        return await self._threads.run_to_end(put, "holding")

    async def replace(
        self, queue: str, body: Any, *, timeout: float | None = 30.0, **options: Unpack[PutOptions]
    ) -> str:
        """As ``Space.replace``, in this transaction."""
        replace = partial(self.sync.replace, queue, body, timeout=timeout, **options)
        return await self._threads.run_to_end(replace, "holding")

    async def get(self, queue: str, **options: Unpack[GetOptions]) -> Message:
        """As ``Space.get``, in this transaction. If a get is cancelled during its claim, the transaction is rolled
        back. The next call in the transaction, even ``commit``, then raises TransactionRolledBack."""
        return (await self.get_many(queue, 1, **options))[0]

    async def get_many(self, queue: str, max_messages: int, **options: Unpack[GetOptions]) -> list[Message]:
        """As ``Space.get_many``, in this transaction. A cancellation has the same effect as for ``get``."""
        wanted = check_wanted(queue, max_messages, **options)
        if self.sync.until < inf:  # (a get at this moment raises TransactionTimeout)
            left = self.sync.until - self._receiver.core.store.clock.monotonic()
            wanted = replace(wanted, timeout=left if wanted.timeout is None else min(wanted.timeout, left))
        options["timeout"] = 0  # the task waits, so no thread has to wait
        get_once = partial(self._attempt, partial(self.sync.get_many, queue, max_messages, **options))
        return await self._receiver.receive(wanted, get_once, alone=holds_groups(self.sync))

    async def _attempt(self, get_once: Callable[[], list[Message]]) -> list[Message]:
        """Get messages once, in a thread.

        A cancelled get may have taken a message that no task has seen. So the transaction is rolled back.
        """
        taking = self._threads.submit(get_once)
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            self.sync.lost = "a get in it was cancelled"
            taking.add_done_callback(asyncio.Future.exception)  # no task asks for the result any more
            raise

    def set_rollback_only(self, reason: str = "the transaction was marked rollback-only") -> None:
        """As ``spool.Transaction.set_rollback_only``."""
        self.sync.set_rollback_only(reason)

    commit = threaded(spool.transactions.transaction.Transaction.commit)
    rollback = threaded(spool.transactions.transaction.Transaction.rollback)
    abandon = threaded(spool.transactions.transaction.Transaction.abandon)

    async def __aenter__(self) -> Self:
        enter(self.sync)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._threads.run_to_end(partial(end_block, self.sync, kind, error))
        finally:
            leave(self.sync)

    def __repr__(self) -> str:
        return f"<{self.sync!r}, for asyncio>"


class Space:
    """An open queue space, for the tasks of one loop. ``sync`` is the same space for threads."""

    __reduce_ex__ = refuse_pickling

    def __init__(self, space: "spool.space.Space") -> None:
        self.sync = space
        self._core = core = core_of(space)
        self._store = core.store
        self._threads = Threads(self._store.guard)
        self._receiver = Receiver(core, self._threads)
        self._on_done = partial(self._threads.notify, self._resolve)  # one object: a commit calls it only once

    @property
    def path(self) -> str:
        """The directory of the space, as an absolute path."""
        return self.sync.path

    @property
    def id(self) -> str:
        """As ``spool.Space.id``."""
        return self.sync.id

    @property
    def recovery(self) -> RecoveryReport:
        """As ``spool.Space.recovery``."""
        return self.sync.recovery

    # -- putting ----------------------------------------------------------------------------------------------------

    async def put(
        self, queue: str, body: Any, *, transaction: Transaction | Join | None = JOIN, **options: Unpack[PutOptions]
    ) -> str:
        """As ``spool.Space.put``. A put that is cancelled before its commit has begun adds no message."""
        return (await self.put_many(queue, (body,), transaction=transaction, **options))[0]

    async def put_many(
        self,
        queue: str,
        bodies: Iterable[Any],
        *,
        transaction: Transaction | Join | None = JOIN,
        **options: Unpack[PutOptions],
    ) -> list[str]:
        """As ``spool.Space.put_many``."""
        if (joined := self._joined(transaction)) is not None:
            return await joined.put_many(queue, bodies, **options)
        return await self._put(queue, body_list(bodies), **options)

    async def replace(
        self,
        queue: str,
        body: Any,
        *,
        timeout: float | None = 30.0,
        transaction: Transaction | Join | None = JOIN,
        **options: Unpack[PutOptions],
    ) -> str:
        """As ``spool.Space.replace``. A cancelled call ends before the task is cancelled."""
        if (joined := self._joined(transaction)) is not None:
            return await joined.replace(queue, body, timeout=timeout, **options)
        replace = partial(self.sync.replace, queue, body, timeout=timeout, transaction=None, **options)
        return await self._threads.run_to_end(replace, "patient")

    async def _put(self, queue: str, bodies: list[Any], **options: Unpack[PutOptions]) -> list[str]:
        """Put messages that are part of no transaction."""
        if options.get("deduplication_key") is not None:  # this put may wait for another put with the same key
            put = partial(self.sync.put_many, queue, bodies, transaction=None, **options)
            return await self._threads.run_to_end(put, "patient")
        request = self._send(queue, bodies, options)
        await request.future
        return request.ids

    @public_call("committing")
    def _send(self, queue: str, bodies: list[Any], options: PutOptions) -> WriteSet:
        request = put_request(self._core, queue, bodies, **options)
        request.future = future = self._threads.loop.create_future()
        request.begin = lambda: not future.cancelled()
        request.on_done = self._on_done
        self._core.leader.send(request)
        return request

    def _resolve(self, requests: Sequence[WriteSet]) -> None:
        """End the waits for all requests of one commit."""
        for request in requests:
            if request.future.done():
                continue  # the put was cancelled after the commit had begun
            if request.error is None:
                request.future.set_result(None)
            else:
                request.future.set_exception(self._core.leader.translate_error(request.error))

    # -- getting ----------------------------------------------------------------------------------------------------

    async def get(
        self, queue: str, *, transaction: Transaction | Join | None = JOIN, **options: Unpack[GetOptions]
    ) -> Message:
        """As ``spool.Space.get``. A cancelled get releases its claimed message. But if the commit has begun, the get
        returns the message, and the task is cancelled at its next wait."""
        return (await self.get_many(queue, 1, transaction=transaction, **options))[0]

    async def get_many(
        self,
        queue: str,
        max_messages: int,
        *,
        transaction: Transaction | Join | None = JOIN,
        **options: Unpack[GetOptions],
    ) -> list[Message]:
        """As ``spool.Space.get_many``."""
        if (joined := self._joined(transaction)) is not None:
            return await joined.get_many(queue, max_messages, **options)
        return await self._receiver.take(check_wanted(queue, max_messages, **options))

    async def find(
        self, queue: str, *, correlation_id: str, timeout: float | None = 0, other_than: str | None = None
    ) -> Message | None:
        """As ``spool.Space.find``. A cancelled search has no effect."""
        return await self._receiver.find(check_find(queue, correlation_id, timeout, other_than), other_than)

    async def request(
        self, queue: str, body: Any, *, timeout: float | None = 30.0, **options: Unpack[PutOptions]
    ) -> Message:
        """As ``spool.Space.request``. Cancelling the wait removes neither the request nor its reply."""
        checked = self._checked(queue, timeout, options)
        message_id = await self.put(queue, body, transaction=None, **checked.options)
        return await self._receiver.take_reply(replace(checked, message_id=message_id))

    @public_call("requesting from queue {queue}")
    def _checked(self, queue: str, timeout: float | None, options: PutOptions) -> PendingRequest:
        return check_request(self._store, queue, timeout, options)

    # -- transactions -----------------------------------------------------------------------------------------------

    def transaction(self, timeout: float | None = 30.0) -> Transaction:
        """As ``spool.Space.transaction``, for ``async with``."""
        return Transaction(self.sync.transaction(timeout), self._receiver)

    def claims(self) -> Claims:
        """As ``spool.Space.claims``, for ``async with``."""
        return Claims(self.sync.claims(), self._threads)

    async def consume(
        self, queue: str, timeout: float | None = None
    ) -> AsyncGenerator[tuple[Transaction, Message], None]:
        """As ``spool.Space.consume``, but the transactions have no time limit. If the loop may end early, close the
        generator (``contextlib.aclosing``). Otherwise the last message is released only when Python collects the
        generator."""
        while True:
            async with self.transaction(timeout=None) as tx:
                try:
                    message = await tx.get(queue, timeout=timeout)
                except Empty:
                    return
                yield tx, message

    async def work(
        self,
        queue: str,
        function: Callable[[Message], Any] | Handler,
        *,
        tasks: int = 1,
        once: bool = False,
        timeout: float | None = 30.0,
        stop: asyncio.Event | None = None,
        pause_after: int = PAUSE_AFTER,
    ) -> WorkSummary:
        """As ``spool.Space.work``. Up to ``tasks`` tasks call ``function``, which is a coroutine function or a plain
        function. A coroutine that takes longer than ``timeout`` seconds is cancelled.

        If ``work`` is cancelled, the calls under way are also cancelled. The messages of these calls return to the
        queue with one more attempt.
        """
        worker = TaskWorker(
            self.sync, self._receiver, queue, function, timeout, once=once, stop=stop, pause_after=pause_after
        )
        return await worker.work(tasks)

    def _joined(self, transaction: Transaction | Join | None) -> Transaction | None:
        chosen = transaction.sync if isinstance(transaction, Transaction) else transaction
        joined = enclosing(self._store, chosen)
        return None if joined is None else Transaction(joined, self._receiver)

    # -- what an administrator asks for -----------------------------------------------------------------------------

    async def browse(self, queue: str, **filters: Unpack[MessageFilters]) -> AsyncIterator[Message]:
        """As ``spool.Space.browse``."""
        async for message in self._each(self.sync.browse(queue, **filters)):
            yield message

    async def entries(
        self, queue: str, *, preview: int | None = None, **filters: Unpack[MessageFilters]
    ) -> AsyncIterator[QueueEntry]:
        """As ``spool.Space.entries``."""
        async for entry in self._each(self.sync.entries(queue, preview=preview, **filters)):
            yield entry

    async def _each(self, found: Iterator[T]) -> AsyncIterator[T]:
        while some := await self._threads.run(lambda: list(islice(found, _BROWSED_AT_ONCE))):
            for one in some:
                yield one

    @overload
    async def stats(self) -> dict[str, QueueStats]: ...
    @overload
    async def stats(self, queue: str) -> QueueStats: ...
    async def stats(self, queue: str | None = None) -> dict[str, QueueStats] | QueueStats:
        """As ``spool.Space.stats``."""
        return await self._threads.run(self.sync.stats if queue is None else partial(self.sync.stats, queue))

    async def metrics(self) -> "SpaceMetrics":
        """As ``spool.Space.metrics``."""
        return await self._threads.run(self.sync.metrics)

    queues = threaded(spool.space.Space.queues)
    create_queue = threaded(spool.space.Space.create_queue)
    ensure_queue = threaded(spool.space.Space.ensure_queue)
    create_queues = threaded(spool.space.Space.create_queues)
    change_queue = threaded(spool.space.Space.change_queue)
    delete_queue = threaded(spool.space.Space.delete_queue)
    holders = threaded(spool.space.Space.holders)
    entry = threaded(spool.space.Space.entry)
    show = threaded(spool.space.Space.show)
    state = threaded(spool.space.Space.state)
    delete = threaded(spool.space.Space.delete)
    move = threaded(spool.space.Space.move)
    change = threaded(spool.space.Space.change)
    purge = threaded(spool.space.Space.purge)
    redrive = threaded(spool.space.Space.redrive)
    resume = threaded(spool.space.Space.resume)
    check = threaded(spool.space.Space.check)
    subscriptions = threaded(spool.space.Space.subscriptions)
    delete_subscription = threaded(spool.space.Space.delete_subscription)
    create_schedule = threaded(spool.space.Space.create_schedule)
    change_schedule = threaded(spool.space.Space.change_schedule)
    schedules = threaded(spool.space.Space.schedules)
    delete_schedule = threaded(spool.space.Space.delete_schedule)
    run_schedule = threaded(spool.space.Space.run_schedule)
    quarantined = threaded(spool.space.Space.quarantined)
    quarantined_file = threaded(spool.space.Space.quarantined_file)
    restore_quarantined = threaded(spool.space.Space.restore_quarantined)
    delete_quarantined = threaded(spool.space.Space.delete_quarantined)
    export = threaded(spool.space.Space.export)

    # -- the end ----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """As ``spool.Space.close``."""
        closing = ThreadPoolExecutor(1, "spool-aio-close")  # all other threads may be busy
        await wait_to_end(self._threads.loop.run_in_executor(closing, self.sync.close))
        closing.shutdown(wait=False)
        self._threads.end()
        self._receiver.end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<{self.sync!r}, for asyncio>"


class Opening:
    """A space that is being opened: ``await`` this object, or enter it with ``async with``. ``begin``: the function
    that opens the space, in a thread."""

    def __init__(self, begin: "Callable[[], spool.space.Space]") -> None:
        self._begin = begin
        self._space: Space | None = None

    def __await__(self) -> Generator[Any, None, Space]:
        return self._open().__await__()

    async def _open(self) -> Space:
        opening = asyncio.get_running_loop().run_in_executor(None, self._begin)
        try:
            return Space(await asyncio.shield(opening))
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unseen)
            raise

    async def __aenter__(self) -> Space:
        self._space = await self._open()
        return self._space

    async def __aexit__(self, *_: object) -> None:
        assert self._space is not None
        await self._space.close()


def _close_unseen(opening: "asyncio.Future[spool.space.Space]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.get_loop().run_in_executor(None, opening.result().close)


def open(path: str | os.PathLike[str]) -> Opening:
    """Open an existing queue space: ``await`` the result, or enter it with ``async with``. Raises the errors of
    ``spool.open``."""
    return Opening(partial(spool.opening.open, path))


def create(path: str | os.PathLike[str], *, exist_ok: bool = False, **options: Unpack[SpaceOptions]) -> Opening:
    """Create a queue space: ``await`` the result, or enter it with ``async with``. The arguments and errors are as in
    ``spool.create``."""
    return Opening(partial(spool.opening.create, path, exist_ok=exist_ok, **options))


def import_space(
    path: str | os.PathLike[str],
    file: BinaryIO,
    *,
    progress: Callable[[Progress], None] | None = None,
    new_id: bool = False,
) -> Opening:
    """Create a queue space from an export: ``await`` the result, or enter it with ``async with``. Raises the errors of
    ``spool.import_space``."""
    return Opening(partial(spool.opening.import_space, path, file, progress=progress, new_id=new_id))


async def verify_export(file: BinaryIO, *, progress: Callable[[Progress], None] | None = None) -> ExportReport:
    """Verify, in a thread, that a file is a whole export. Raises the errors of ``spool.verify_export``."""
    from spool.admin.unpack import verify_export  # imported here, because this import loads all code that reads exports

    return await asyncio.to_thread(verify_export, file, progress=progress)
