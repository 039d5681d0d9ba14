"""The executor's side of a round: read the bodies, call the service, write the outcomes, prepare.

It runs in Spark's Python workers. Bodies go from the space's files to the service and nowhere else; the driver gets one
small `Block` that names the prepared branch.
"""

import math
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from forwarder.failures import Failures
from forwarder.services import Caller, Request, Service
from forwarder.time_limits import Watchdog
from spool.coordination.locks import call_byte
from spool.errors import CorruptedFile, SpoolError, UnknownCodec
from spool.model import codecs
from spool.model.message import Message
from spool.model.position import Position
from spool.model.xid import BRANCH_ID_BYTES, FORMAT_ROUND, Xid
from spool.transactions.delivery import HeldMessage
from spool.transactions.remote_branch import RemoteBranch, Vote
from spool.workers.effects import Effect, OutcomePolicy, record
from spool.workers.outcome import Retried

IN_A_QUEUE = frozenset({Effect.RETRIED, Effect.DEAD_LETTERED})
"""Effects after which a message is in a queue and can be claimed again."""

_callers: dict[tuple[int, Service], Caller] = {}


@dataclass(frozen=True)
class Chunk:
    """The work of one task: messages of one queue that a round has claimed.

    until: when the task stops to begin calls, in seconds since the epoch. The messages left stay in the queue.
    must_call: the task makes its first call also after that time.
    """

    path: str
    round_id: bytes
    service: Service
    policy: OutcomePolicy
    messages: list[HeldMessage]
    until: float = math.inf
    must_call: bool = True

    @property
    def first_byte(self) -> int:
        """The first of the bytes whose locks tell which message's call is in progress."""
        return call_byte(self.round_id, *self.messages[0].position)


@dataclass
class Block:
    """The result of a task.

    vote: the prepared branch; None if nothing was written.
    effects: the number of messages for each `Effect`.
    tried: the messages that failed and are still in a queue.
    retry_after: the seconds that the service asked the route to wait.
    damaged: the messages whose bodies cannot be read, with the reason; the driver moves them to quarantine.
    error: why the space could not be written: no other task could do it either.
    """

    vote: Vote | None = None
    effects: dict[str, int] = field(default_factory=dict)
    failures: Failures = field(default_factory=Failures)
    tried: list[Position] = field(default_factory=list)
    retry_after: float | None = None
    damaged: list[tuple[Position, str]] = field(default_factory=list)
    error: str = ""


def run(chunks: Iterable[Chunk]) -> Iterator[Block]:
    """Run the chunk of a partition: the function for Spark's ``mapPartitions``."""
    for chunk in chunks:
        try:
            yield deliver(chunk, *_attempt())
        except (SpoolError, OSError) as error:
            yield Block(error=str(error))


def _attempt() -> tuple[int, int]:
    from pyspark import TaskContext

    context = TaskContext.get()
    return (0, os.getpid()) if context is None else (context.partitionId(), context.taskAttemptId())


def deliver(chunk: Chunk, partition: int, attempt: int) -> Block:
    """Call the service for each message, and prepare the branch that has the outcomes."""
    xid = Xid(FORMAT_ROUND, chunk.round_id, f"{partition}.{attempt}".encode())
    branch = RemoteBranch(chunk.path, xid, os.urandom(BRANCH_ID_BYTES))
    try:
        block = _call_service(chunk, branch)
        block.vote = branch.prepare()
        return block
    finally:
        branch.close()


def _call_service(chunk: Chunk, branch: RemoteBranch) -> Block:
    """Call the service for each message until the time is over; write the outcomes into the branch."""
    caller = _caller(chunk.service)
    block, effects = Block(), Counter[str]()
    with Watchdog(chunk.service.watched) as watchdog:
        for byte, held in enumerate(chunk.messages, chunk.first_byte):
            if time.time() >= chunk.until and (effects or not chunk.must_call):
                break
            try:
                message, raw, unreadable = _read(branch, held)
            except CorruptedFile as error:
                block.damaged.append((held.position, str(error)))
                block.failures.add(Effect.SET_ASIDE, str(error))
                effects[Effect.SET_ASIDE] += 1
                continue
            watchdog.begin_call()
            branch.begin_call(byte)
            try:
                outcome = caller(Request(message, raw, unreadable))
            finally:
                branch.end_call(byte)
            effect, reason = record(branch.batch, chunk.policy, held, message, raw, outcome, time.time())
            effects[effect] += 1
            if reason:
                block.failures.add(effect, reason)
            if effect in IN_A_QUEUE:
                block.tried.append(held.position)
            if effect is Effect.KEPT and isinstance(outcome, Retried):
                block.retry_after = outcome.delay
                break  # the service cannot be reached, also not for the other messages
    block.effects = dict(effects)
    return block


def _read(branch: RemoteBranch, held: HeldMessage) -> tuple[Message, bytes, str]:
    """Return the message for a service, its body as stored, and why the body could not be decoded, "" if it was.

    Raises:
        CorruptedFile: the body is damaged.
    """
    raw = branch.read(held)
    body, unreadable = raw, ""
    try:
        body = codecs.decode(raw, held.attributes.get("codec"))
    except UnknownCodec as error:  # a service that takes bytes needs no codec
        unreadable = str(error)
    return Message(held.id, held.queue, body, held.enqueued_at, held.position, held.attributes), raw, unreadable


def _caller(service: Service) -> Caller:
    """Return the opened service; it is opened once in each worker process."""
    key = (os.getpid(), service)
    if key not in _callers:
        _callers[key] = service.open()
    return _callers[key]
