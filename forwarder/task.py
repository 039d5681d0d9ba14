"""The part of a round that runs in executors: read bodies, call the service, write outcomes, prepare the branch.

This code runs in Spark's Python workers. On the space's machine, a worker reads the bodies from the space's files. A
worker that does not see the space gets the bodies from the driver's process by HTTP. In both cases, the task
returns only a small `TaskResult` through Spark, which names the prepared branch.
"""

import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from operator import itemgetter
from queue import SimpleQueue
from socket import gethostname
from typing import TYPE_CHECKING, Generic, TypeVar

import spool
from forwarder.result import RoundResult
from forwarder.services import MAX_REPLY, Caller, Request, Service, ServiceError
from forwarder.time_limits import Watchdog
from spool.client.problems import Unreachable
from spool.engine.remote import CallMarks, DamagedMessage, EndedCall, ReadMessage, RemoteBranch, StoredRun, Vote, cut
from spool.errors import SpoolError
from spool.model.position import Position
from spool.model.text import one_line
from spool.model.xid import FORMAT_ROUND, Xid
from spool.tracing import instrument
from spool.workers.conclusion import kept
from spool.workers.effects import Effect, OutcomePolicy, effective_outcome
from spool.workers.outcome import Outcome, Retried, checked, describe, of_error
from spool.workers.pauses import Streak
from spool.workers.states import Event, State, end_of_call, next_state

if TYPE_CHECKING:
    from forwarder.network.offers import Offer, OfferedBranch

    TaskBranch = RemoteBranch | OfferedBranch

Key = TypeVar("Key")

_opened: "dict[tuple[int, Service], ServiceThreads]" = {}


@dataclass(frozen=True)
class Chunk:
    """The work of one task: messages of one queue that a round has claimed.

    until: the time after which the task begins no further call, in seconds since the epoch. Messages without a call
        remain in the queue.
    must_call: whether the task makes its first call even after ``until``.
    in_order: whether a message that remains in the queue holds up later messages.
    marks: the marks by which the task records calls in progress; None if the task cannot record calls.
    offer: the forwarder's offer of the messages to a worker that does not see the space; None without an endpoint.
    pause_after: after how many failures one after another the task begins no further call; 0: any number.
    """

    path: str
    round_id: bytes
    service: Service
    policy: OutcomePolicy
    runs: list[StoredRun]
    until: float = math.inf
    must_call: bool = True
    in_order: bool = False
    marks: CallMarks | None = None
    offer: "Offer | None" = None
    pause_after: int = 0

    def parts(self, messages: int, most_bytes: int = sys.maxsize) -> Iterator["Chunk"]:
        """Yield chunks of at most `messages` messages and `most_bytes` bytes; the messages keep their order."""
        marks = self.marks
        for runs in cut(self.runs, messages, most_bytes):
            yield replace(self, runs=runs, marks=marks)
            if marks is not None:
                marks = marks.after(count_of(runs))

    def __len__(self) -> int:
        return count_of(self.runs)


def count_of(runs: Iterable[StoredRun]) -> int:
    """Return the number of messages in runs."""
    return sum(run.length for run in runs)


@dataclass
class TaskResult(RoundResult):
    """The result of a task.

    vote: the prepared branch; None if nothing was written.
    damaged: the messages whose bodies cannot be read, with the reason; the driver moves them to quarantine.
    error: why the task could not read or write the space. The text names the machine. The messages are not the cause.
    """

    vote: Vote | None = None
    damaged: list[tuple[Position, str]] = field(default_factory=list)
    error: str = ""


def run(version: str, partition: Iterable[list[Chunk]]) -> Iterator[TaskResult]:
    """Run the chunks of a partition, one after the other. Spark calls this function by ``mapPartitions``.

    Args:
        version: the version of the driver's xaspool. A worker with another version does not read the partition, because
            the worker's classes may differ.
    """
    if version != spool.__version__:
        why = f"xaspool is {spool.__version__} there, and {version} here: install the same"
        yield TaskResult(error=f"on {gethostname()}: {why}")
        return
    attempt = _attempt()
    for place, chunk in enumerate(chain.from_iterable(partition)):
        try:
            yield deliver(chunk, place, attempt)
        except (SpoolError, OSError) as error:
            yield TaskResult(error=f"on {gethostname()}: {error}")


def _attempt() -> int:
    """Return the number of this attempt at a task. The number is unique in the Spark session."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return os.getpid() if context is None else context.taskAttemptId()


def deliver(chunk: Chunk, place: int, attempt: int) -> TaskResult:
    """Call the service for each message, write the outcomes into a branch, and prepare the branch.

    Args:
        place: the place of the chunk in its task.
        attempt: the number of the attempt at the task.
    """
    try:
        with closing(_branch(chunk, place, attempt)) as branch:
            if chunk.marks is not None:
                branch.record_calls(chunk.marks)
            return _call_service(chunk, branch)
    except Unreachable as error:  # nothing is wrong with the messages, so they remain in the queue
        block = TaskResult()
        block.conclude(kept(Event.UNREACHED, one_line(f"on {gethostname()}: {error}")), messages=len(chunk))
        return block


def _branch(chunk: Chunk, place: int, attempt: int) -> "TaskBranch":
    if chunk.offer is not None and not chunk.offer.place.is_seen():
        from forwarder.network.offers import OfferedBranch  # (a forwarder without Spark needs no Arrow)

        return OfferedBranch(chunk.offer, place, attempt)
    return RemoteBranch(chunk.path, Xid(FORMAT_ROUND, chunk.round_id, f"{place}.{attempt}".encode()))


def _call_service(chunk: Chunk, branch: "TaskBranch") -> TaskResult:
    """Call the service until the time is over, and write the outcomes in the order of the messages."""
    block, ended, is_over = TaskResult(streak=Streak(chunk.pause_after)), list[EndedCall](), False
    try:
        threads = _threads(chunk.service)
    except Exception as error:  # a user's service may raise any error; no call can succeed now
        why = str(error) if isinstance(error, ServiceError) else describe(error)
        block.conclude(kept(Event.UNREACHED, one_line(f"on {gethostname()}: {why}")))
        return block

    def end_call(key: tuple[int, ReadMessage]) -> None:
        branch.end_call(key[0])

    with Watchdog(chunk.service.watched) as watchdog, ChunkCalls(threads, chunk, end_call) as calls:

        def wait() -> None:
            nonlocal is_over
            (place, found), outcome = calls.wait()
            ended.append(EndedCall(place, found, outcome, branch.now()))
            block.note(outcome, found.message)
            if chunk.in_order or isinstance(outcome, Retried):  # (no other outcome ends the calls of a task)
                is_over = is_over or block.streak.is_storm or _is_last(chunk, found, outcome)

        for place, found in enumerate(branch.messages(chunk.runs)):
            if is_over or (branch.now() >= chunk.until and (place > 0 or not chunk.must_call)):
                break
            if isinstance(found, DamagedMessage):
                block.damaged.append(found)
                block.count(Effect.QUARANTINED, found.reason)
                continue
            watchdog.begin_call()
            branch.begin_call(place)
            calls.begin((place, found), partial(threads.call, Request(*found)))
            while calls.is_full:
                wait()
        while calls.under_way:
            wait()
    _conclude(branch, chunk.policy, sorted(ended, key=itemgetter(0)), block)
    if not isinstance(branch, RemoteBranch):
        block.over_network = block.messages
    return block


def _is_last(chunk: Chunk, found: ReadMessage, outcome: Outcome) -> bool:
    """Return whether the task begins no further call after this outcome.

    The task stops if the service was not reached, or if a message remains in an ordered queue.
    """
    if next_state(State.CALLING, end_of_call(outcome)) is State.ABANDONED:
        return True
    if not chunk.in_order:
        return False
    effective = effective_outcome(chunk.policy, found.message, found.raw, outcome)
    return chunk.policy.goes_back(found.message, effective)


def _conclude(branch: "TaskBranch", policy: OutcomePolicy, ended: list[EndedCall], block: TaskResult) -> None:
    """Write and count the effects of calls, and vote. An abandoned attempt writes no effects."""
    calls = []
    for call in ended:
        if isinstance(call.outcome, Retried) and end_of_call(call.outcome) is Event.UNREACHED:
            block.conclude(kept(Event.UNREACHED, call.outcome.reason, call.outcome.delay))
        else:
            calls.append(call)
    if calls:
        block.vote, effects = branch.conclude(policy, calls)
        block.count_all(zip(effects, (call.found.message for call in calls), strict=True))


def _threads(service: Service) -> "ServiceThreads":
    """Return an opened service and its threads. Each worker process opens a service once."""
    key = (os.getpid(), service)
    if key not in _opened:
        _opened[key] = ServiceThreads(service.open(), threads_of(service))
        instrument()  # (the module of the service may have imported OpenTelemetry)
    return _opened[key]


# -- the calls of a service ------------------------------------------------------------------------------------------


def threads_of(service: Service) -> int:
    """Return the largest number of concurrent calls of a service in one process."""
    return service.threads if service.watched is None else 1


class ServiceThreads:
    """The threads in which a worker process calls one service, for all its tasks.

    Args:
        caller: the opened service.
        threads: the largest number of concurrent calls. If the number is 1, the thread that begins a call also makes
            the call.
    """

    def __init__(self, caller: Caller, threads: int) -> None:
        self.caller = caller
        self.threads = threads
        self.pool = ThreadPoolExecutor(threads, "spool-call") if threads > 1 else None

    def call(self, request: Request) -> Outcome:
        """Make a call in this thread; return the outcome of the call."""
        try:
            return checked(self.caller(request))
        except BaseException as error:  # also SystemExit and KeyboardInterrupt: a service cannot end the task
            return self.failed(error)

    def failed(self, error: BaseException) -> Outcome:
        """Return the outcome of a call that has raised an exception."""
        return of_error(error, MAX_REPLY)


class ChunkCalls(Generic[Key]):
    """The calls of one task, a chunk. ``wait`` returns the calls in the order in which the calls end.

    The exit of the context manager waits for all calls, because Python cannot end a thread.

    Args:
        on_end: called with the key of a call as soon as the call has ended, in the thread of the call.

    under_way: the number of calls that `wait` has not yet returned.
    """

    def __init__(self, threads: ServiceThreads, chunk: Chunk, on_end: Callable[[Key], object]) -> None:
        self.chunk = chunk
        self._threads = threads
        self._most = 1 if chunk.in_order else threads.threads
        self._on_end = on_end
        self._ended: SimpleQueue[tuple[Key, Outcome]] = SimpleQueue()
        self.under_way = 0

    @property
    def is_full(self) -> bool:
        """Return whether a call has to end before another call may begin."""
        return self.under_way >= self._most

    def begin(self, key: Key, service: Callable[[], Outcome]) -> None:
        """Begin a call of the service; ``wait`` later returns the key and the outcome of the call."""

        def call() -> None:
            ended = service()
            try:
                self._on_end(key)
            finally:  # otherwise `wait` would never return
                self._ended.put((key, ended))

        self.under_way += 1
        if self._threads.pool is None:
            call()
        else:
            self._threads.pool.submit(call)

    def wait(self) -> tuple[Key, Outcome]:
        """Wait until a call ends; return the call's key and outcome."""
        ended = self._ended.get()
        self.under_way -= 1
        return ended

    def __enter__(self) -> "ChunkCalls[Key]":
        return self

    def __exit__(self, *_: object) -> None:
        while self.under_way:
            self._ended.get()
            self.under_way -= 1
