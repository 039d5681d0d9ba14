"""One forwarding round: claim, let tasks call the service and prepare, commit what they voted.

The round is a coordinator: its id is the gtrid of every task's branch, and it holds a lock on it while it lives. If it
dies, its claims are free at once, and its prepared branches are rolled back by whoever meets them.

A task that dies with its worker names no message. The round then halves what it gave out, until the one message that
kills its worker stands alone; that one is counted as tried.
"""

import logging
import os
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from forwarder.failures import Failures
from forwarder.services import QueueService, Service
from forwarder.task import STILL_THERE, Block, Chunk
from forwarder.time_limits import GRACE_SECONDS, took_too_long
from spool.coordination.locks import coordinator_byte
from spool.errors import Full, NotOpen, ProtocolError, SpoolError, SystemFailure
from spool.log.quota import room_in
from spool.log.visibility import catch_up, list_prepared
from spool.model.message import Position
from spool.policies.retries import count_failures, with_error_queue
from spool.space import Space
from spool.store.store import Store
from spool.transactions.coordinated import CoordinatedTransaction
from spool.transactions.delivery import HeldMessage, set_aside
from spool.transactions.two_phase import resolve_orphans
from spool.work.effects import Effect, Rules

log = logging.getLogger("spool.forwarder")

_ROUND_ID_BYTES = 16
_CHUNK_MESSAGES = 256
_CHUNK_BYTES = 8 << 20
_COUNTING_SECONDS = 2.0

CALLING_SECONDS = 5.0
"""After which a round begins no further call: what it came to is committed, the rest is the next round's."""

Job = Callable[[list[Chunk]], list[Block]]
"""Runs each chunk in a task and returns the blocks, in any order; raises TaskDied if one died with its worker."""


class TaskDied(Exception):
    """A task ended without an answer, and so would it anywhere else."""


@dataclass(frozen=True)
class Route:
    """Messages of this queue go to this service."""

    queue: str
    service: Service
    on_failure: str = "reject"


@dataclass
class RoundResult:
    """What a round came to. ``effects``: how many messages by ``Effect``; ``tried``: messages that failed, and
    are still there; ``full``: that there was no room for answers."""

    effects: dict[str, int] = field(default_factory=dict)
    failures: Failures = field(default_factory=Failures)
    tried: list[Position] = field(default_factory=list)
    retry_after: float | None = None
    full: str = ""

    @property
    def messages(self) -> int:
        return sum(self.effects.values())

    @property
    def down(self) -> str:
        """Why nothing can be forwarded now; "" if it can."""
        if self.full:
            return f"there is no room for answers ({self.full})"
        if Effect.KEPT not in self.effects:
            return ""
        return f"the service was not reached ({self.failures.last(Effect.KEPT)})"

    def add(self, block: Block) -> None:
        for effect, count in block.effects.items():
            self.effects[effect] = self.effects.get(effect, 0) + count
        self.failures.merge(block.failures)
        self.tried += block.tried
        self.retry_after = self.retry_after if block.retry_after is None else block.retry_after


def run_round(
    space: Space,
    route: Route,
    job: Job,
    *,
    limit: int,
    tasks: int,
    timeout: float,
    calling: float = CALLING_SECONDS,
    passed: Set[Position] = frozenset(),
) -> RoundResult:
    """Forward up to ``limit`` messages of the route, but not those in ``passed``; an empty result if none came within
    ``timeout`` seconds.

    ``tasks``: how many run side by side; they begin calls for ``calling`` seconds. Either all that the result counts
    is committed, or this raises.
    """
    store = space.engine.store
    round_id = os.urandom(_ROUND_ID_BYTES)
    transaction = CoordinatedTransaction(space.engine, timeout=None, noted=False)
    with _coordinating(store, round_id, transaction):
        with store.gate:
            room, full = _room(store, route)
        held = transaction.hold(
            route.queue, max(1, limit if room is None else min(limit, room)), timeout=timeout, passed=passed
        )
        if not held:
            return RoundResult()
        if full:
            return RoundResult({Effect.KEPT: len(held)}, full=full)
        config = space.queues()
        rules = Rules(with_error_queue(store.config, route.queue), dict(config), route.on_failure)
        blocks = _deliver(space, job, Chunk(space.path, round_id, route.service, rules, held), tasks, calling)
        with store.gate:
            try:
                result = _commit(store, transaction, blocks)
            except Full as error:
                result = RoundResult({Effect.KEPT: len(held)}, full=str(error))
    with store.gate:
        resolve_orphans(store, store.deadline())  # branches of tasks that lost, or whose job died
    if result.full and len(held) == 1:
        _count_try(space, held[0], f"its answer found no room: {result.full}")
    return result


def _room(store: Store, route: Route) -> tuple[int | None, str]:
    """How many answers the queue that they go to by default takes (None: any number), and what to say if none."""
    store.refresh_settings()
    catch_up(store, list_prepared(store))
    config = store.config.queues.get(route.queue)
    queue = None if config is None else config.reply_queue
    if isinstance(route.service, QueueService):
        queue = route.service.queue
    if queue is None or (room := room_in(store, queue)) is None:
        return None, ""
    if room == 0 and resolve_orphans(store, store.deadline()):  # which held its room with what they had voted for
        room = room_in(store, queue)
    return room, f"queue {queue} is full" if room == 0 else ""


def _count_try(space: Space, held: HeldMessage, reason: str) -> None:
    """Of the message that a round had alone: whatever fills the queues, others are not to wait behind it for ever."""
    with suppress(SpoolError), space.transaction() as transaction:  # somebody else may have it by now
        transaction.get(held.queue, message_id=held.id)
        transaction.set_rollback_only(reason)


def count_in_hand(space: Space, chunks: list[Chunk]) -> None:
    """Of a round that is being abandoned: each message that a service is working on has had a try."""
    store = space.engine.store
    with suppress(SpoolError, OSError), store.gate:
        positions = []
        for chunk in chunks:
            lock = store.files.disk.some_lock(store.shared.xids.handle, chunk.first_byte, len(chunk.messages))
            if lock is not None:
                positions.append(chunk.messages[lock[0] - chunk.first_byte].position)
        reason = "the forwarder was ended while the service worked on it"
        count_failures(store, positions, reason, store.deadline(_COUNTING_SECONDS))


@contextmanager
def _coordinating(store: Store, round_id: bytes, transaction: CoordinatedTransaction) -> Iterator[None]:
    """Hold the lock on a round's id, and its transaction; a space that was closed meanwhile has let go of both."""
    byte = coordinator_byte(round_id)
    with store.gate:
        if not store.shared.xids.try_lock(byte):
            raise ProtocolError(f"the round {round_id.hex()} exists already")
    try:
        yield
    finally:
        with suppress(NotOpen), store.gate:
            transaction.abandon()
            store.shared.xids.unlock(byte)


def _commit(store: Store, transaction: CoordinatedTransaction, blocks: list[Block]) -> RoundResult:
    """Commit the branches that the tasks name, and set aside what they could not read."""
    result, adopt = RoundResult(), []
    for block in blocks:
        if block.error:
            raise SystemFailure(f"a task could not write its branch: {block.error}")
        result.add(block)
        for position, reason in block.damaged:
            set_aside(store, position, reason, store.deadline())
        if block.vote is not None:
            adopt.append(block.vote.xid)
    if adopt:
        transaction.commit(adopt=adopt)
    return result


def _deliver(space: Space, job: Job, whole: Chunk, tasks: int, calling: float) -> list[Block]:
    """Blocks for all messages, halving the work around a task that dies."""
    clock = space.engine.store.clock
    begun = clock.monotonic()
    try:
        return job(split(replace(whole, until=clock.now() + calling), tasks))
    except TaskDied as error:
        if len(whole.messages) == 1:
            return [_buried(space, whole, error, clock.monotonic() - begun)]
        log.info("a task died with its worker; looking for the message in halves: %s", error)
        middle = len(whole.messages) // 2
        blocks = []
        for part in (whole.messages[:middle], whole.messages[middle:]):
            blocks += _deliver(space, job, replace(whole, messages=part), tasks, calling)
        return blocks


def _buried(space: Space, chunk: Chunk, error: TaskDied, seconds: float) -> Block:
    """The message whose task died after so many seconds: a try, counted at once, while its claim is held."""
    store, held, limit = space.engine.store, chunk.messages[0], chunk.service.watched
    reason = f"the worker that handled it died: {error}"
    if limit is not None and seconds >= limit + GRACE_SECONDS:
        reason = f"{took_too_long(limit)}, and did not stop: its worker was ended"
    with store.gate:
        count_failures(store, [held.position], reason, store.deadline())
        with store.view.mutex:
            run = store.view.index.messages.find(held.position)
    if run is None:
        effect = Effect.DROPPED
    else:
        effect = Effect.RETRIED if run.queue.name == held.queue else Effect.DEAD_LETTERED
    block = Block(effects={effect: 1}, tried=[held.position] if effect in STILL_THERE else [])
    block.failures.add(effect, reason)
    return block


def split(whole: Chunk, tasks: int) -> list[Chunk]:
    """About two chunks a task, none too large; the order of the messages stays."""
    messages = whole.messages
    target = max(1, min(_CHUNK_MESSAGES, -(-len(messages) // (2 * tasks))))
    chunks: list[Sequence[HeldMessage]] = []
    start, size = 0, 0
    for place, message in enumerate(messages):
        if place > start and (place - start >= target or size + message.body.length > _CHUNK_BYTES):
            chunks.append(messages[start:place])
            start, size = place, 0
        size += message.body.length
    chunks.append(messages[start:])
    return [
        replace(whole, messages=list(part), obliged=whole.obliged and place < tasks)
        for place, part in enumerate(chunks)
    ]
