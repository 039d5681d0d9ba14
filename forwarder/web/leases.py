"""The messages that clients hold: a lease for each, named by a receipt that nobody can guess.

A lease is a claim of this process (``spool.Claims``) with a time limit. A client ends its lease in time; otherwise the
server counts a failed attempt, and the message is due again. So a message that ends its clients reaches the error
queue. If the server dies, the kernel releases its claims, and an attempt is counted for each leased message.

The client of an ended lease may not have got the answer, so it may repeat its call: the server remembers how the last
leases ended. All leases belong to the loop of the server.
"""

import asyncio
import logging
import secrets
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import spool
import spool.aio
from forwarder.web import limits
from forwarder.web.tokens import Client
from spool.client.problems import TooMany
from spool.errors import BadMessageId, NotOpen, SpoolError, SystemFailure
from spool.model.message import Message, stored_fields

MOST_LEASES, MOST_OF_A_TOKEN = 20_000, 10_000
MOST_AT_ONCE = 1_000
"""The most messages of one claim."""
ENDED = "the server ended during the call"
_FIRST, _MOST_BYTES = 4, 32 << 20  # of one claim: the messages that it reads first, and the bytes after which it ends
_MOST_REMEMBERED = 20_000
_IDLE_SECONDS = 30.0  # the time for which a queue without waiting clients is watched

log = logging.getLogger("spool.server")

_Future = asyncio.Future[Any]


@dataclass(eq=False)
class Lease:
    """A message that a client holds.

    message: the message without its body. owner: the identity of the client's token. ending: the end of the lease,
    from its call on: the name of the call, and the task that makes it.
    """

    receipt: str
    message: Message
    owner: str
    seconds: float
    timer: asyncio.TimerHandle | None = None
    ending: tuple[str, "asyncio.Task[Any]"] | None = None


@dataclass(eq=False)
class _Waiter:
    """A client that waits for messages, at most ``most``. ``waits``: whether to wait if the queue has none now."""

    most: int
    waits: bool
    found: "asyncio.Future[list[Message]]"


class Leases:
    """The leases of one space.

    Args:
        space: the space, opened in the running loop.
        prefix: the beginning of all receipts, which names the process of the server.
    """

    def __init__(self, space: spool.aio.Space, prefix: str = "") -> None:
        self.claims = space.claims()
        self._space, self._prefix = space, prefix
        self._loop = asyncio.get_running_loop()
        self._leases: dict[str, Lease] = {}
        self._ended: OrderedDict[str, tuple[str, str, Any]] = OrderedDict()  # receipt: owner, call, result
        self._owners: Counter[str] = Counter()
        self._lines: dict[tuple[Any, ...], _Line] = {}
        self._waits, self._is_closed = True, False

    def __len__(self) -> int:
        return len(self._leases)

    # -- taking -------------------------------------------------------------------------------------------------------

    async def take(
        self, queue: str, most: int, wait: float, seconds: float, client: Client, gone: "_Future", **wanted: Any
    ) -> list[tuple[Lease, Message]]:
        """Claim messages for a client, at most ``most``; wait up to ``wait`` seconds for the first.

        Args:
            seconds: the time limit of the leases.
            gone: done once the client has left. Then nothing is claimed.
            wanted: ``message_id`` or ``correlation_id``, as for ``spool.Claims.take``.

        Raises:
            TooMany: the client, or all clients together, hold too many messages.
            SystemFailure: the server ends.
            the errors of ``spool.Claims.take``.
        """
        if self._is_closed:  # (a connection may be accepted at the last moment)
            raise SystemFailure(ENDED)
        if len(self._leases) + most > MOST_LEASES or self._owners[client.token] + most > MOST_OF_A_TOKEN:
            raise TooMany("too many messages are held: end some leases, then claim again")
        key = (queue, *wanted.items())
        line = self._lines.get(key)
        if line is None:
            self._space.sync.stats(queue)  # (a missing queue is an error now)
            limits.check_room([each.token for each in self._lines.values()], client.token, *limits.MOST_WAITS, "waits")
            line = _Line(self._space, self.claims, queue, wanted, client.token, partial(self._lines.pop, key, None))
            self._lines[key] = line
        waiter = _Waiter(most, wait > 0 and self._waits, self._loop.create_future())
        line.enter(waiter)
        try:
            await asyncio.wait((waiter.found, gone), timeout=wait or None, return_when=asyncio.FIRST_COMPLETED)
        finally:
            line.leave(waiter)
            if (gone.done() or not waiter.found.done()) and not waiter.found.cancel():
                self._give_back(waiter.found)
        if gone.done() or waiter.found.cancelled():
            return []
        return [(self._lease(message, seconds, client), message) for message in waiter.found.result()]

    def _give_back(self, found: "asyncio.Future[list[Message]]") -> None:
        """Release the messages that a client cannot get any more."""
        if not found.cancelled() and found.exception() is None:
            self.release_all(found.result())

    def release_all(self, messages: Sequence[Message]) -> None:
        """Return messages that no client has seen to their queue; no attempt is counted."""
        if messages:
            task = self._loop.create_task(self.claims.release(messages))
            task.add_done_callback(_logged)

    def _lease(self, message: Message, seconds: float, client: Client) -> Lease:
        bare = Message(message.id, message.queue, b"", message.enqueued_at, message.position, stored_fields(message))
        lease = Lease(self._prefix + secrets.token_urlsafe(24), bare, client.token, seconds)
        self._leases[lease.receipt] = lease
        self._owners[lease.owner] += 1
        self._start(lease, seconds)
        return lease

    # -- leases -------------------------------------------------------------------------------------------------------

    def knows(self, receipt: str, client: Client) -> bool:
        """Return whether a client has this lease."""
        lease = self._leases.get(receipt)
        return lease is not None and lease.owner == client.token

    def find(self, receipt: str, client: Client) -> Lease:
        """Return a lease of the client. BadMessageId if the lease has ended, or never was."""
        if not self.knows(receipt, client):
            raise BadMessageId("the receipt names no lease: it has ended, or the server has started again: claim again")
        return self._leases[receipt]

    def check_known(self, receipt: str, client: Client) -> None:
        """Raise BadMessageId, before a long body is read, unless the client has this lease or has ended it lately."""
        if receipt not in self._ended or self._ended[receipt][0] != client.token:
            self.find(receipt, client)

    def extend(self, lease: Lease, seconds: float) -> None:
        """Let the lease end ``seconds`` from now. Raises BadMessageId if its expiry is being committed."""
        if lease.ending is not None and lease.ending[0] == "expiry":
            raise BadMessageId("the lease has ended: claim a message again")
        if lease.ending is None:
            self._start(lease, seconds)

    def _start(self, lease: Lease, seconds: float) -> None:
        if lease.timer is not None:
            lease.timer.cancel()
        lease.seconds = seconds
        lease.timer = self._loop.call_later(seconds, self._expire, lease)

    def _expire(self, lease: Lease) -> None:
        if lease.ending is None:
            reason = f"its lease of {lease.seconds:g} s ended before its client had answered"
            log.warning("message %s of queue %s: %s", lease.message.id, lease.message.queue, reason)
            lease.ending = "expiry", self._loop.create_task(self._expired(lease, reason))

    async def _expired(self, lease: Lease, reason: str) -> None:
        try:
            await self.claims.fail(lease.message, reason)
        except (SpoolError, OSError) as error:
            log.warning("message %s: the end of its lease was not counted: %s", lease.message.id, error)
            with suppress(SpoolError, OSError):
                await self.claims.release([lease.message])
        self._forget(lease)

    async def end(
        self, receipts: Sequence[str], client: Client, name: str, call: "Callable[[list[Message]], Awaitable[Any]]"
    ) -> Any:
        """End leases by one call, and return its result. A repeated call of the same name gets the same result.

        If the call fails, the client still holds the messages.

        Raises:
            BadMessageId: a lease has ended otherwise.
            the errors of the call.
        """
        ended = [self._ended.get(receipt, ("", "", None)) for receipt in receipts]
        if {each[:2] for each in ended} == {(client.token, name)}:
            return ended[0][2]
        leases = [self.find(receipt, client) for receipt in dict.fromkeys(receipts)]
        endings = {lease.ending for lease in leases}
        if endings == {None}:
            started = name, self._loop.create_task(self._end(leases, name, call))
            for lease in leases:
                lease.ending = started
        ending = leases[0].ending
        if endings not in ({None}, {ending}) or ending is None or ending[0] != name:
            raise BadMessageId("another call ends the lease at this moment")
        return await asyncio.shield(ending[1])

    async def _end(self, leases: Sequence[Lease], name: str, call: "Callable[[list[Message]], Awaitable[Any]]") -> Any:
        try:
            result = await call([lease.message for lease in leases])
        except BaseException:
            for lease in leases:
                lease.ending = None
                self._start(lease, lease.seconds)
            raise
        for lease in leases:
            self._forget(lease)
            self._ended[lease.receipt] = lease.owner, name, result
        while len(self._ended) > _MOST_REMEMBERED:
            self._ended.popitem(last=False)
        return result

    def _forget(self, lease: Lease) -> None:
        if lease.timer is not None:
            lease.timer.cancel()
        if self._leases.pop(lease.receipt, None) is not None:
            self._owners[lease.owner] -= 1
            if not self._owners[lease.owner]:
                del self._owners[lease.owner]

    def end_waits(self) -> None:
        """Let no client wait any more."""
        self._waits = False
        for line in self._lines.values():
            line.hasty.update(line.waiters)
            line.wake()

    async def close(self) -> None:
        """Release all messages; no attempt is counted. Afterwards no call finds a lease."""
        self._is_closed = True
        for line in list(self._lines.values()):
            line.close()
        for lease in list(self._leases.values()):
            self._forget(lease)
        with suppress(NotOpen):
            await self.claims.close()


@dataclass(eq=False)
class _Line:
    """The clients that wait for one queue, served in their order by one task.

    The task claims for several clients together, and then waits until messages arrive.

    wanted: the arguments of ``take`` that all these clients have given: a message's id, or a correlation id.
    token: the token of the first of these clients.
    on_end: called when nobody has waited for a while.
    """

    space: spool.aio.Space
    claims: spool.aio.Claims
    queue: str
    wanted: dict[str, Any]
    token: str
    on_end: Callable[[], object]
    waiters: OrderedDict[_Waiter, None] = field(default_factory=OrderedDict)
    hasty: set[_Waiter] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self._arrivals, self._is_open = self.space.sync.arrivals([self.queue]), True
        self._loop.add_reader(self._arrivals.fileno(), self._woken.set)
        self._task = self._loop.create_task(self._serve())

    def enter(self, waiter: _Waiter) -> None:
        self.waiters[waiter] = None
        if not waiter.waits:
            self.hasty.add(waiter)
        self.wake()

    def wake(self) -> None:
        self._woken.set()

    def leave(self, waiter: _Waiter) -> None:
        self.waiters.pop(waiter, None)
        self.hasty.discard(waiter)

    def close(self) -> None:
        self._task.cancel()
        self._end()

    def _end(self) -> None:
        self.on_end()
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._arrivals.fileno())
            self._arrivals.close()

    async def _serve(self) -> None:
        try:
            while await self._is_woken():
                self._woken.clear()
                self._arrivals.ready()
                while self.waiters and await self._serve_once():
                    pass
        except (SpoolError, OSError) as error:
            for waiter in self.waiters:
                if not waiter.found.done():
                    waiter.found.set_exception(error)
        finally:
            self._end()

    async def _is_woken(self) -> bool:
        """Wait for messages or for a client; return False if nobody has waited for a while."""
        while not self._woken.is_set():
            try:
                async with asyncio.timeout(1.0 if self.wanted else _IDLE_SECONDS):
                    await self._woken.wait()
            except TimeoutError:
                if not self.waiters:
                    return False
        return True

    async def _serve_once(self) -> bool:
        """Claim messages for the clients that wait; return whether there may be more."""
        hasty, wanted = [*self.hasty], 0
        for waiter in self.waiters:
            wanted = min(MOST_AT_ONCE, wanted + waiter.most)
            if wanted == MOST_AT_ONCE:
                break
        take = partial(_taken, self.claims.sync, self.queue, wanted, self.wanted)
        found = deque(await self._loop.run_in_executor(None, take))
        if not found:
            for waiter in hasty:
                self.leave(waiter)
                if not waiter.found.done():
                    waiter.found.set_result([])
            return False
        while found and self.waiters:
            waiter = next(iter(self.waiters))
            self.leave(waiter)
            if not waiter.found.done():
                waiter.found.set_result([found.popleft() for _ in range(min(waiter.most, len(found)))])
        if found:
            await self.claims.release(found)
        return True  # (even if fewer were found than wanted: a removal at the same moment hides later messages)


def _taken(claims: spool.Claims, queue: str, most: int, wanted: dict[str, Any]) -> list[Message]:
    """Claim messages until their bodies have many bytes, and record that their attempts begin."""
    found = claims.take(queue, min(most, _FIRST), **wanted)
    with suppress(SpoolError, OSError):  # (the messages that were found before an error are delivered)
        more = len(found) == _FIRST
        while more and len(found) < most and (size := sum(len(message.body) for message in found)) < _MOST_BYTES:
            asked = max(1, min((_MOST_BYTES - size) * len(found) // max(1, size), most - len(found)))
            some = claims.take(queue, asked, **wanted)
            found, more = found + some, len(some) == asked
    for message in found:
        claims.begin(message)
    return found


def _logged(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("messages that no client got could not be released at once: %s", error)
