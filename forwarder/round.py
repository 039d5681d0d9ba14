"""One round of forwarding: claim messages, let tasks call the service and prepare branches, and commit the branches.

The round is a coordinator. The round's id is the gtrid of every task's branch, and the round holds a lock on this id.
If the process dies, the claimed messages are free at once. The next process that finds prepared branches rolls them
back.

A task that dies with its worker does not report which message was the cause. The round then halves the work until a
chunk has only the message that kills its worker, and counts an attempt for this message.
"""

import logging
from collections.abc import Callable, Set
from dataclasses import dataclass, replace

from forwarder.result import RoundResult
from forwarder.services import QueueService, Service
from forwarder.task import Chunk, TaskResult, count_of
from forwarder.time_limits import GRACE_SECONDS
from spool import Space
from spool.engine import Engine
from spool.engine.remote import Coordinator, StoredRun
from spool.errors import Full, SystemFailure, TransactionTimeout
from spool.model.position import Position
from spool.model.settings import QueueConfig
from spool.workers.conclusion import Conclusion, kept, without_room
from spool.workers.effects import OnFailure, OutcomePolicy, effect_of_failure
from spool.workers.outcome import took_too_long
from spool.workers.pauses import PAUSE_AFTER
from spool.workers.states import Event

log = logging.getLogger("spool.forwarder")

_CHUNK_MESSAGES = 8192
_CHUNK_BYTES = 8 << 20
_COUNT_SECONDS = 2.0

CALLING_SECONDS = 5.0
"""After this time a round begins no further call, and commits its results. The next round handles other messages."""

Job = Callable[[list[Chunk]], list[TaskResult]]
"""Runs each chunk in a task and returns the blocks in any order. Raises TaskDied if a task died with its worker."""


class TaskDied(Exception):
    """A task ended without a result. Another worker would not help."""


@dataclass(frozen=True)
class Route:
    """A queue, and the service to which its messages go.

    into: the queues into which the service puts messages, besides queues for replies. The route pauses while one of
        these queues is full.
    step: in a run with ``once``, the routes of lower steps are drained before the routes of this step.
    pause_after: as for ``Space.work``. In a task of Spark, the task's own messages count.
    """

    queue: str
    service: Service
    on_failure: OnFailure = "reject"
    into: tuple[str, ...] = ()
    step: int = 0
    pause_after: int = PAUSE_AFTER

    @property
    def service_name(self) -> str:
        """The name of the service in the space's meters and in the log, without passwords.

        If a user's own service has no such name, this is the name of the service's class.
        """
        return getattr(self.service, "shown_name", type(self.service).__name__)


@dataclass(frozen=True)
class RoundSize:
    """The size of a round.

    limit: the largest number of messages that the round could claim.
    messages: the number of messages that the round has claimed.
    in_order: whether the queue is ``ordered``. No other round can then claim a message before this round has ended.
    is_bounded: whether a queue for answers has so little room that it limits the number of messages to claim.
    """

    limit: int
    messages: int
    in_order: bool = False
    is_bounded: bool = False


class Round:
    """One round of a route: ``claim``, ``call``, ``commit``.

    As a context manager, a round releases the messages that it has not committed.

    held: the claimed messages, in the queue's order.
    claimed_at: the time of the claim, in seconds of the monotonic clock.
    result: the effects of the calls, before the commit.
    """

    def __init__(self, space: Space, route: Route) -> None:
        self.route = route
        self.held: list[StoredRun] = []
        self.size = RoundSize(0, 0)
        self.claimed_at = 0.0
        self.result = RoundResult()
        self._engine: Engine = space.engine
        self._blocks: list[TaskResult] = []
        self._coordinator: Coordinator = self._engine.coordinate()

    @property
    def id(self) -> bytes:
        """The gtrid of the branches of all tasks."""
        return self._coordinator.id

    def __enter__(self) -> "Round":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the claimed messages that were not committed. A second call does nothing."""
        self._coordinator.close()

    def claim(self, limit: int, *, timeout: float, passed: Set[Position] = frozenset()) -> bool:
        """Claim messages of the route's queue; return whether the round has claimed a message.

        Args:
            limit: the largest number of messages.
            timeout: the seconds to wait for a message.
            passed: messages to leave in the queue.
        """
        config = self._engine.config().queues.get(self.route.queue)
        room, full = self._engine.room(_queues_of(self.route, config))
        in_order = config is not None and config.ordered
        self.held = self._coordinator.hold(
            self.route.queue, max(1, limit if room is None else min(limit, room)), timeout=timeout, passed=passed,
            in_order=in_order,
        )  # fmt: skip
        self.size = RoundSize(limit, count_of(self.held), in_order, room is not None)
        self.claimed_at = self._engine.clock.monotonic()
        if full:
            self._keep(kept(Event.NO_ROOM, f"queue {full} is full"))
        return bool(self.held)

    def call(self, job: Job, *, tasks: int, calling: float = CALLING_SECONDS) -> None:
        """Call the service with the claimed messages, until the time of the round is over.

        If a queue for answers is full, make no call.

        Args:
            job: runs chunks in tasks.
            tasks: how many tasks run at the same time.
            calling: the seconds after which tasks begin no further call.
        """
        if self.result.full:
            return
        policy = OutcomePolicy.of(self._engine.config(), self.route.queue, self.route.on_failure)
        whole = Chunk(
            self._engine.path, self.id, self.route.service, policy, self.held,
            in_order=self.size.in_order, marks=self._coordinator.record_calls(), pause_after=self.route.pause_after,
        )  # fmt: skip
        self._blocks = self._deliver(job, whole, tasks, calling)
        for block in self._blocks:
            self.result.add(block)

    def _deliver(self, job: Job, whole: Chunk, tasks: int, calling: float) -> list[TaskResult]:
        """Run tasks for all messages. When a task dies, halve the work until a chunk has only one message."""
        clock = self._engine.clock
        begun = clock.monotonic()
        try:
            return job(split(replace(whole, until=clock.now() + calling), tasks))
        except TaskDied as error:
            if whole.marks is not None:
                self._coordinator.clear_marks(whole.marks, len(whole))
            if len(whole) == 1:
                return [_count_killer(self._engine, whole, error, clock.monotonic() - begun)]
            log.info("a task died with its worker; looking for the message in halves: %s", error)
            blocks = []
            for half in whole.parts((len(whole) + 1) // 2):
                blocks += self._deliver(job, half, tasks, calling)
                if whole.in_order:  # messages of the first half may hold up later messages
                    break
            return blocks

    def count_calls(self) -> None:
        """Count an attempt for each message whose call is in progress, because the round is abandoned."""
        self._coordinator.count_calls("the forwarder was ended while the service worked on it", _COUNT_SECONDS)

    def commit(self) -> RoundResult:
        """Commit all outcomes that the result counts. Release the messages without an outcome."""
        if self.result.full:  # (then no call was made)
            self.close()
            return self.result
        found: Full | None = None
        try:
            self._commit()
        except Full as error:
            found = error
        except TransactionTimeout as error:  # another process holds a lock of the space: no attempt is counted
            self.close()
            self._keep(kept(Event.NO_LOCK, str(error)))
            return self.result
        self.close()
        self._engine.resolve_orphans()  # (rolls back branches of tasks that ran twice, and of lost jobs)
        if found is not None:
            self._keep(self._found_full(found))
        return self.result

    def _commit(self) -> None:
        """Commit the branches that the tasks prepared, and quarantine the messages that the tasks could not read."""
        for block in self._blocks:
            if block.error:
                raise SystemFailure(f"a task could not do its work {block.error}")
            for position, reason in block.damaged:
                self._engine.quarantine(position, reason)
        voted = [block.vote.xid for block in self._blocks if block.vote is not None]
        if voted:  # messages that no branch removes remain in their queues
            self._coordinator.commit(voted)

    def _keep(self, conclusion: Conclusion) -> None:
        """Note that all messages of the round are kept. If only one message waits, the route goes on."""
        self.result = RoundResult()
        self.result.conclude(conclusion, self.held[0].position if self.held else None, self.size.messages)

    def _found_full(self, full: Full) -> Conclusion:
        """Return the end of all attempts of a round whose commit found no room in a queue.

        The message waits and the route goes on, if the round has only one message, and no other message has answers for
        the full queue.
        """
        held, route = self.held[0], self.route
        config = OutcomePolicy.of(self._engine.config(), held.queue).queue
        own = ("reply_queue", "failure_queue") if self.size.messages == 1 else ()
        named = {held.attributes.get(name) for name in own}
        conclusion = without_room(full, config, named, queues_into(route), replies=_replies(route))
        if conclusion.waits:
            log.warning("a message of queue %s waits: %s", held.queue, conclusion.reason)
        return conclusion


def _queues_of(route: Route, config: QueueConfig | None) -> list[str]:
    """Return the queues that a route puts into: its queue's default reply queue, and the queues of its service."""
    replies = [config.reply_queue] if config is not None and config.reply_queue is not None and _replies(route) else []
    return [*replies, *queues_into(route)]


def _replies(route: Route) -> bool:
    """Return whether the service of a route may put a reply into the reply queue of a message."""
    return not isinstance(route.service, QueueService)


def queues_into(route: Route) -> list[str]:
    """Return the queues into which the service of a route puts messages, besides queues for replies."""
    return [*([route.service.queue] if isinstance(route.service, QueueService) else []), *route.into]


def _count_killer(engine: Engine, chunk: Chunk, error: TaskDied, seconds: float) -> TaskResult:
    """Count an attempt now for the only message of a chunk, whose task died after `seconds`."""
    held, limit = chunk.runs[0], chunk.service.watched
    event, reason = Event.DIED, f"the worker that handled it died: {error}"
    if limit is not None and seconds >= limit + GRACE_SECONDS:
        event, reason = Event.LATE, f"{took_too_long(limit)}, and did not stop: its worker was ended"
    queue = engine.count_failure(held.position, reason, died=event is Event.DIED)
    block = TaskResult()
    block.conclude(Conclusion(effect_of_failure(held.queue, queue), reason, event=event), held.position)
    return block


def split(whole: Chunk, tasks: int) -> list[Chunk]:
    """Split the work into about two chunks for each task. The messages keep their order.

    The size of a chunk is limited. The messages of an ordered queue become one chunk. Messages that do not fit
    into the chunks wait for the next round.
    """
    if whole.in_order:
        return [next(whole.parts(_CHUNK_MESSAGES, _CHUNK_BYTES))]
    return [
        replace(part, must_call=whole.must_call and place < tasks)
        for place, part in enumerate(whole.parts(chunk_messages(len(whole), tasks), _CHUNK_BYTES))
    ]


def chunk_messages(messages: int, tasks: int) -> int:
    """Return the largest number of messages in a chunk, if the round has `messages` messages.

    Large bodies lower the number.
    """
    return max(1, min(_CHUNK_MESSAGES, -(-messages // (2 * tasks))))
