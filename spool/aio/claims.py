"""Claims for asyncio: ``async with space.claims() as claims``.

``remove``, ``fail`` and ``reject`` return when the commit is durable, so tasks that await them at one moment share a
commit. A cancelled task first completes its call, and is cancelled at its next wait.
"""

import asyncio
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any, Self, TypeVar

import spool.transactions.claims
from spool.aio.threads import Threads, threaded, wait_to_end
from spool.model.message import Message
from spool.model.options import PutOptions
from spool.runtime.pickling import refuse_pickling

T = TypeVar("T")


class Claims:
    """As ``spool.Claims``, for the tasks of one loop. ``sync``: the same claims for threads."""

    __reduce_ex__ = refuse_pickling

    def __init__(self, claims: "spool.transactions.claims.Claims", threads: Threads) -> None:
        """Applications call ``Space.claims`` instead."""
        self.sync = claims
        self._threads = threads

    @property
    def held(self) -> int:
        """As ``spool.Claims.held``."""
        return self.sync.held

    take = threaded(spool.transactions.claims.Claims.take)
    begin = threaded(spool.transactions.claims.Claims.begin)
    release = threaded(spool.transactions.claims.Claims.release)
    close = threaded(spool.transactions.claims.Claims.close)

    async def remove(self, messages: Iterable[Message]) -> None:
        """As ``spool.Claims.remove``; returns when the removal is durable."""
        await _ended(self.sync.remove(messages))

    async def commit(
        self, messages: Iterable[Message], puts: Iterable[tuple[str, Any, PutOptions]]
    ) -> list[str] | None:
        """As ``spool.Claims.commit``; returns the ids when the commit is durable."""
        return await _ended(self.sync.commit(messages, puts))

    async def fail(self, message: Message, reason: str, delay: float | None = None) -> None:
        """As ``spool.Claims.fail``; returns when the attempt is counted."""
        await _ended(self.sync.fail(message, reason, delay))

    async def reject(self, messages: Iterable[Message], reason: str, delay: float | None = None) -> None:
        """As ``spool.Claims.reject``; returns when the rejection is durable."""
        await _ended(self.sync.reject(messages, reason, delay))

    async def __aenter__(self) -> Self:
        self.sync.__enter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._threads.run_to_end(self.sync.close)

    def __repr__(self) -> str:
        return f"<{self.sync!r}, for asyncio>"


async def _ended(commit: "Future[T]") -> T:
    """Wait for the end of a commit, even if the task is cancelled."""
    return await wait_to_end(asyncio.wrap_future(commit))
