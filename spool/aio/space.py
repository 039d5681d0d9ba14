"""A queue space for asyncio: ``async with spool.aio.open(path) as space: await space.put(…)``.

The engine is the same. A put joins the line of what is committed next, and the loop hears once of all that a commit
did, not once a message. What reads, locks or waits for the disk works in a thread. Of the tasks that wait for a message
of one queue, one looks for all: one that gets a message makes room for the next.

A task that is cancelled loses no message: before its commit has begun nothing has happened; once it has, it comes to
its end, and a get returns, and is cancelled where the task waits next. (A put that is cancelled then may be there.)
Every other call comes to its end before its task is cancelled.

``submit`` and ``commit_async`` are not here: ``put`` and ``commit`` are awaitable, and what several tasks await at the
same time shares a flush.
"""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any, BinaryIO, Self, Unpack

import spool.opening
import spool.space
import spool.transactions.transaction
from spool.admin.export import Progress
from spool.admin.findings import RecoveryReport
from spool.aio import worker
from spool.aio.administration import Administration
from spool.aio.tasks import Opening, finish
from spool.errors import Empty
from spool.log.commit_queue import CommitRequest, PutRequest
from spool.model.message import Message
from spool.model.options import JOIN, Join, PutOptions, SpaceOptions
from spool.model.xid import Xid
from spool.runtime.gate import public_call
from spool.transactions.claiming import IDLE_SECONDS, pause_seconds
from spool.transactions.selection import Wanted
from spool.transactions.transaction import doom, enter, leave
from spool.transactions.transaction import finish as finish_transaction
from spool.transactions.validation import check_wanted, listed

_THREADS = 4
_PAUSE_MIN_SECONDS, _PAUSE_MAX_SECONDS = 0.001, 0.02


class Space(Administration):
    """An open queue space, for the tasks of one loop. ``sync`` is the same space as threads see it."""

    def __init__(self, space: "spool.space.Space") -> None:
        self.sync = space
        self._store = space.engine.store
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(_THREADS, "spool-aio")
        self._patient = ThreadPoolExecutor(_THREADS, "spool-aio-keys")  # for calls that may wait for another's commit
        self._ears = ThreadPoolExecutor(1, "spool-aio-bell")
        self._listening: asyncio.Future[None] | None = None
        self._turns: dict[str, asyncio.Lock] = {}

    @property
    def path(self) -> str:
        """The directory of the space, as an absolute path."""
        return self.sync.path

    @property
    def recovery(self) -> RecoveryReport:
        """What opening the space found, and did about it."""
        return self.sync.recovery

    # -- putting ----------------------------------------------------------------------------------------------------

    async def put(
        self,
        queue: str,
        body: Any,
        *,
        transaction: "Transaction | Join | None" = JOIN,
        **options: Unpack[PutOptions],
    ) -> str:
        """As ``spool.Space.put``. A put that is cancelled before its commit has begun leaves nothing."""
        return (await self.put_many(queue, (body,), transaction=transaction, **options))[0]

    async def put_many(
        self,
        queue: str,
        bodies: Iterable[Any],
        *,
        transaction: "Transaction | Join | None" = JOIN,
        **options: Unpack[PutOptions],
    ) -> list[str]:
        """As ``spool.Space.put_many``."""
        joined = self._joined(transaction)
        if joined is not None:
            return await self._put_in(joined, queue, bodies, options)
        if options.get("deduplication_key") is not None:  # another put of the same one meanwhile waits
            put = partial(self.sync.put_many, queue, listed(bodies), transaction=None, **options)
            return await finish(self._loop.run_in_executor(self._patient, put))
        work = self._send(queue, listed(bodies), options)
        await work.future
        return work.ids

    async def _put_in(
        self,
        transaction: "spool.transactions.transaction.Transaction",
        queue: str,
        bodies: Iterable[Any],
        options: PutOptions,
    ) -> list[str]:
        """At once, unless it has to look at what is there."""
        if self._store.config.limited or options.keys() & {"before", "deduplication_key"}:
            threads = self._patient if options.get("deduplication_key") is not None else self._threads
            put = partial(transaction.put_many, queue, listed(bodies), **options)
            return await finish(self._loop.run_in_executor(threads, put))
        return transaction.put_many(queue, bodies, **options)

    @public_call("committing")
    def _send(self, queue: str, bodies: list[Any], options: PutOptions) -> PutRequest:
        work = self.sync._puts(queue, bodies, **options)
        work.future = future = self._loop.create_future()
        work.begin = lambda: not future.cancelled()
        work.on_done = self._on_done
        self.sync.engine.group_commit.send(work)
        return work

    def _on_done(self, works: Sequence[CommitRequest]) -> None:
        """In another thread; of all that one commit did."""
        try:
            self._loop.call_soon_threadsafe(self._resolve, works)
        except RuntimeError:
            pass  # the loop is closed: nobody waits any more

    def _resolve(self, works: Sequence[CommitRequest]) -> None:
        for work in works:
            if work.future.done():
                continue  # cancelled, too late
            if work.error is None:
                work.future.set_result(None)
            else:
                work.future.set_exception(self.sync.engine.group_commit.spoken(work.error))

    # -- getting ----------------------------------------------------------------------------------------------------

    async def get(
        self,
        queue: str,
        *,
        timeout: float | None = 0,
        message_id: str | None = None,
        correlation_id: str | None = None,
        transaction: "Transaction | Join | None" = JOIN,
    ) -> Message:
        """As ``spool.Space.get``. Cancelled, it gives back what it has claimed; once its commit has begun it comes to
        its end and returns the message, and the task is cancelled where it waits next."""
        found = await self.get_many(
            queue, 1, timeout=timeout, message_id=message_id, correlation_id=correlation_id, transaction=transaction
        )
        return found[0]

    async def get_many(
        self,
        queue: str,
        max_messages: int,
        *,
        timeout: float | None = 0,
        message_id: str | None = None,
        correlation_id: str | None = None,
        transaction: "Transaction | Join | None" = JOIN,
    ) -> list[Message]:
        """As ``spool.Space.get_many``."""
        wanted = check_wanted(queue, max_messages, timeout, message_id, correlation_id)
        joined = self._joined(transaction)
        if joined is not None:
            return await self._get_in(joined, wanted, timeout)
        return await self._get(wanted, timeout, partial(self._take, wanted))

    async def _get_in(
        self, transaction: "spool.transactions.transaction.Transaction", wanted: Wanted, timeout: float | None
    ) -> list[Message]:
        """A get that is cancelled may have taken a message that nobody saw: the transaction is rolled back then."""

        async def attempt() -> list[Message]:
            taking = self._loop.run_in_executor(self._threads, partial(_get_now, transaction, wanted))
            try:
                return await asyncio.shield(taking)
            except asyncio.CancelledError:
                doom(transaction, "a get in it was cancelled")
                taking.add_done_callback(asyncio.Future.exception)  # nothing asks for it any more
                raise

        return await self._get(wanted, timeout, attempt)

    def _take(self, wanted: Wanted) -> Awaitable[list[Message]]:
        self._store.gate.check()
        return _Taking(self, wanted).take()

    async def _get(
        self, wanted: Wanted, timeout: float | None, attempt: Callable[[], Awaitable[list[Message]]]
    ) -> list[Message]:
        """Look; then, while there is none, wait for the queue's turn, and look whenever something may have come."""
        try:
            return await attempt()
        except Empty:
            if timeout == 0:
                raise
        until = None if timeout is None else self._loop.time() + timeout
        turn = self._turns.setdefault(wanted.queue, asyncio.Lock())
        try:
            async with asyncio.timeout_at(until):
                await turn.acquire()
        except TimeoutError:
            return await attempt()
        try:
            return await self._wait(wanted, until, attempt)
        finally:
            turn.release()

    async def _wait(
        self, wanted: Wanted, until: float | None, attempt: Callable[[], Awaitable[list[Message]]]
    ) -> list[Message]:
        pause = _PAUSE_MIN_SECONDS
        while True:
            heard = self._store.shared.notifier.rings
            try:
                return await attempt()
            except Empty:
                left = IDLE_SECONDS if until is None else until - self._loop.time()
                if left <= 0:
                    raise
            seconds = min(left, await self._in_thread(partial(self._patience, wanted, pause)))
            if self._store.shared.notifier.rings == heard:
                await self._hear(seconds)
            pause = min(pause * 1.5, _PAUSE_MAX_SECONDS)

    @public_call("waiting for a message")
    def _patience(self, wanted: Wanted, short: float) -> float:
        return pause_seconds(self._store, wanted, short)

    async def _hear(self, seconds: float) -> None:
        """Until something may have come, or the time is over. One thread listens for all tasks."""
        if self._listening is None or self._listening.done():
            self._listening = self._loop.run_in_executor(self._ears, self._listen)
            self._listening.add_done_callback(asyncio.Future.exception)  # a closed space: who looks next is told
        await asyncio.wait((self._listening,), timeout=seconds)

    @public_call("waiting for a message")
    def _listen(self) -> None:
        bell = self._store.shared.notifier
        bell.wait(bell.rings, IDLE_SECONDS, deaf_seconds=_PAUSE_MAX_SECONDS)

    # -- transactions -----------------------------------------------------------------------------------------------

    def transaction(self, timeout: float | None = 30.0) -> "Transaction":
        """As ``spool.Space.transaction``: ``async with`` commits it on leaving, and rolls it back on an exception."""
        return Transaction(self, self.sync.transaction(timeout))

    async def consume(
        self, queue: str, timeout: float | None = None
    ) -> "AsyncGenerator[tuple[Transaction, Message], None]":
        """As ``spool.Space.consume``, without a time limit. A loop that may be left early closes the generator
        (``contextlib.aclosing``), or its last message is given back only when the generator is collected."""
        while True:
            async with self.transaction(timeout=None) as tx:
                try:
                    message = await tx.get(queue, timeout=timeout)
                except Empty:
                    return
                yield tx, message

    work = worker.work

    def _joined(self, transaction: "Transaction | Join | None") -> "spool.transactions.transaction.Transaction | None":
        return self.sync._transaction_of(transaction.sync if isinstance(transaction, Transaction) else transaction)

    # -- the end ----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """As ``spool.Space.close``: what was put is committed first."""
        closing = ThreadPoolExecutor(1, "spool-aio-close")  # the others, and the loop's, may have much to do
        await self._loop.run_in_executor(closing, self.sync.close)
        for threads in (self._threads, self._patient, self._ears, closing):
            threads.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<{self.sync!r}, for asyncio>"


class Transaction:
    """A transaction of the task that entered it, and of tasks that it starts meanwhile; ``sync`` as threads see it."""

    def __init__(self, space: Space, transaction: "spool.transactions.transaction.Transaction") -> None:
        self.sync = transaction
        self._space = space

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
        return await self._space._put_in(self.sync, queue, bodies, options)

    async def get(
        self,
        queue: str,
        *,
        timeout: float | None = 0,
        message_id: str | None = None,
        correlation_id: str | None = None,
    ) -> Message:
        """As ``Space.get``, in this transaction. One that is cancelled while it takes dooms the transaction: whatever
        is asked of it next, its end too, raises TransactionRolledBack."""
        found = await self.get_many(queue, 1, timeout=timeout, message_id=message_id, correlation_id=correlation_id)
        return found[0]

    async def get_many(
        self,
        queue: str,
        max_messages: int,
        *,
        timeout: float | None = 0,
        message_id: str | None = None,
        correlation_id: str | None = None,
    ) -> list[Message]:
        """As ``Space.get_many``, in this transaction; cancelled, as ``get``."""
        wanted = check_wanted(queue, max_messages, timeout, message_id, correlation_id)
        return await self._space._get_in(self.sync, wanted, timeout)

    def set_rollback_only(self, reason: str = "the transaction was marked rollback-only") -> None:
        """Whatever comes, this transaction will be rolled back."""
        self.sync.set_rollback_only(reason)

    async def commit(self) -> None:
        """As ``spool.Transaction.commit``."""
        await self._space._to_the_end(self.sync.commit)

    async def rollback(self, reason: str = "its transaction was rolled back") -> None:
        """As ``spool.Transaction.rollback``."""
        await self._space._to_the_end(partial(self.sync.rollback, reason))

    async def abandon(self) -> None:
        """As ``spool.Transaction.abandon``."""
        await self._space._to_the_end(self.sync.abandon)

    async def __aenter__(self) -> Self:
        enter(self.sync)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._space._to_the_end(partial(finish_transaction, self.sync, kind, error))
        finally:
            leave(self.sync)

    def __repr__(self) -> str:
        return f"<{self.sync!r}, for asyncio>"


class _Taking:
    """One attempt to get messages: claimed in a thread, and committed unless the task was cancelled meanwhile."""

    def __init__(self, space: Space, wanted: Wanted) -> None:
        self.space = space
        self.wanted = wanted
        self.mutex = threading.Lock()
        self.cancelled = self.begun = False

    async def take(self) -> list[Message]:
        claiming = self.space._loop.run_in_executor(self.space._threads, self._claim)
        return await finish(claiming, self._give_up)

    def _give_up(self) -> bool:
        """False if its commit has begun: then it comes to its end."""
        with self.mutex:
            self.cancelled = not self.begun
        return self.cancelled

    def _claim(self) -> list[Message]:
        own = self.space.sync._own_transaction()
        try:
            found = _get_now(own, self.wanted)
            with self.mutex:
                if self.cancelled:
                    return []
                self.begun = True
            own.commit()
            return found
        finally:
            own.abandon()


def _get_now(transaction: "spool.transactions.transaction.Transaction", wanted: Wanted) -> list[Message]:
    return transaction.get_many(
        wanted.queue, wanted.count, message_id=wanted.message_id, correlation_id=wanted.correlation_id
    )


def open(path: str | os.PathLike[str]) -> Opening[Space]:
    """An existing queue space, for ``async with`` or ``await``; errors as of ``spool.open``."""
    return Opening(partial(spool.opening.open, path), Space)


def create(path: str | os.PathLike[str], **options: Unpack[SpaceOptions]) -> Opening[Space]:
    """A new queue space, for ``async with`` or ``await``; options and errors as of ``spool.create``."""
    return Opening(partial(spool.opening.create, path, **options), Space)


def import_space(
    path: str | os.PathLike[str], file: BinaryIO, *, progress: Callable[[Progress], None] | None = None
) -> Opening[Space]:
    """A new space out of an export, for ``async with`` or ``await``; errors as of ``spool.import_space``."""
    return Opening(partial(spool.opening.import_space, path, file, progress=progress), Space)
