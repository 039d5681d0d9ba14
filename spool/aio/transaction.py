"""A transaction for asyncio. A thread makes every call that reads, locks or waits for the disk."""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Any, Self, Unpack

import spool.transactions.transaction
from spool.aio.receiver import Receiver
from spool.aio.tasks import threaded
from spool.model.message import Message
from spool.model.options import GetOptions, PutOptions
from spool.model.xid import Xid
from spool.transactions.claiming import check_wanted
from spool.transactions.transaction import end_block, enter, leave, mark_lost
from spool.transactions.validation import body_list


class Transaction:
    """A transaction of the task that entered it, and of tasks that this task starts. ``sync``: the transaction for
    threads."""

    def __init__(self, transaction: "spool.transactions.transaction.Transaction", receiver: Receiver) -> None:
        """Not for applications, which call ``Space.transaction``."""
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
        if not (
            self._receiver.core.store.settings.known.config.has_limits
            or options.keys() & {"before", "deduplication_key"}
        ):
            return self.sync.put_many(queue, bodies, **options)
        put = partial(self.sync.put_many, queue, body_list(bodies), **options)  # reads the queue
        return await self._threads.run_to_end(put, patient=options.get("deduplication_key") is not None)

    async def get(self, queue: str, **options: Unpack[GetOptions]) -> Message:
        """As ``Space.get``, in this transaction. A get that is cancelled while it claims rolls the transaction back.
        The next call, ``commit`` too, raises TransactionRolledBack."""
        return (await self.get_many(queue, 1, **options))[0]

    async def get_many(self, queue: str, max_messages: int, **options: Unpack[GetOptions]) -> list[Message]:
        """As ``Space.get_many``, in this transaction. A cancellation has the same effect as for ``get``."""
        wanted = check_wanted(queue, max_messages, **options)
        options["timeout"] = 0  # the task waits, so no thread has to wait
        get_once = partial(self.sync.get_many, queue, max_messages, **options)
        return await self._receiver.receive(wanted, partial(self._attempt, get_once))

    async def _attempt(self, get_once: Callable[[], list[Message]]) -> list[Message]:
        """Get messages once, in a thread.

        A get that is cancelled may have taken a message that no task has seen, so the transaction is rolled back.
        """
        taking = self._threads.submit(get_once)
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            mark_lost(self.sync, "a get in it was cancelled")
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
