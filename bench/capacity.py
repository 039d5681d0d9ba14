"""Compute the capacity of a forwarder from a few measured costs, by a formula and by a simulation of its rounds.

``python -m bench capacity`` measures the costs, and compares both results with another run (``bench/capacity_run.py``).
Times are in seconds. The formula is for planning. The simulation also covers latencies, queues that grow, and calls of
different durations. The formula and the simulation assume that no calls are made during a round's claim and commit.
After rounds have grown, calls are made then, so the real capacity is higher than the results. Bodies have 1 KiB; larger
bodies need more branches.
"""

import heapq
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from forwarder.round import chunk_messages
from forwarder.routes.pace import FIRST_ROUND_MESSAGES, next_limit

DAY = 86_400


@dataclass(frozen=True)
class Costs:
    """The forwarder's own costs on one machine, in seconds.

    round: the fixed cost of a round: a claim, a Spark job, and the commit of the tasks' branches.
    message: the driver's time for each message.
    task: the time of a task's core for each message, without the time of the service.
    branch: the time to write and flush a task's branch: twice per round, or more often in a large round.
    """

    round: float
    message: float
    task: float
    branch: float


@dataclass(frozen=True)
class Calls:
    """Calls of a service.

    seconds: the time of one call, without the time of the task's core.
    at_once: the number of concurrent calls of a task.
    core: the time that one call takes of the task's core.
    """

    seconds: float
    at_once: int = 1
    core: float = 0.0


def seconds_a_message(costs: Costs, calls: Calls) -> float:
    """Return a task's time per message for many messages. Either the task's core or the calls are the limit."""
    core = costs.task + calls.core
    return max(core, (core + calls.seconds) / calls.at_once)


def round_seconds(costs: Costs, calls: Calls, messages: int, tasks: int) -> float:
    """Return the duration of a round with this number of messages."""
    share = math.ceil(messages / tasks)
    chunks = _chunk_count(messages, tasks)
    # The disk makes one flush at a time. The tasks reach their flushes at the same time, so they wait for each other
    # once.
    branches = min(tasks, chunks) - 1 + math.ceil(chunks / tasks)
    return costs.round + costs.message * messages + branches * costs.branch + share * seconds_a_message(costs, calls)


def _chunk_count(messages: int, tasks: int) -> int:
    return math.ceil(messages / chunk_messages(messages, tasks))


def steady_round(costs: Costs, calls: Calls, tasks: int) -> int:
    """Return the size of a round after rounds have grown, if the queue always has messages."""
    limit = FIRST_ROUND_MESSAGES
    for _ in range(64):
        limit = next_limit(limit, limit, round_seconds(costs, calls, limit, tasks), tasks)
    return limit


def rate(costs: Costs, calls: Calls, tasks: int) -> float:
    """Return the messages per second of a forwarder with one core per task, if the queue always has messages."""
    messages = steady_round(costs, calls, tasks)
    return messages / round_seconds(costs, calls, messages, tasks)


# -- planning ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Need:
    """The needs of a load. ``calls``: the concurrent calls. ``flushes``, ``megabytes``: per second, for all spaces."""

    messages: float
    calls: float
    tasks: int
    spaces: int
    flushes: float
    megabytes: float


def need(
    costs: Costs, calls: Calls, a_day: float, *, peak: float = 3.0, cores: int = 16, body_bytes: int = 1024
) -> Need:
    """Return the resources that ``a_day`` messages per day need.

    Args:
        peak: the load of the busiest hour, as a multiple of the day's mean.
        cores: the number of cores for the tasks of one space, on its machine or in the cluster.
    """
    messages = a_day / DAY * peak
    tasks = spaces = 1
    if rate(costs, calls, cores) < messages:
        spaces = math.ceil(messages / rate(costs, calls, cores))
    while rate(costs, calls, tasks) < messages / spaces:
        tasks += 1
    in_round = steady_round(costs, calls, tasks)
    rounds = messages / in_round
    # A body is written by the put, written again by the compaction of its file, and read by a task.
    return Need(
        messages, messages * calls.seconds, tasks * spaces, spaces, rounds * (1 + _chunk_count(in_round, tasks)),
        messages * body_bytes * 3 / 1e6,
    )  # fmt: skip


# -- fitting ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """One measured round: the number of messages, the duration, and the driver's processor time."""

    messages: int
    seconds: float
    processor: float


def fitted(samples: Sequence[Sample], branch: float) -> Costs:
    """Fit a line to the samples, and return the costs. The rounds had one task and a service that takes no time."""
    counts = [sample.messages for sample in samples]
    whole = statistics.linear_regression(counts, [sample.seconds for sample in samples])
    driver = statistics.linear_regression(counts, [sample.processor for sample in samples])
    message = max(0.0, min(driver.slope, whole.slope))
    return Costs(max(0.0, whole.intercept - 2 * branch), message, max(0.0, whole.slope - message), branch)


# -- the simulation ---------------------------------------------------------------------------------------------------


@dataclass
class Simulated:
    """The result of a simulation. ``latencies``: the sorted times from a message's arrival to its outcome's commit."""

    messages: int = 0
    seconds: float = 0.0
    rounds: int = 0
    latencies: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.messages / self.seconds if self.seconds else 0.0

    def latency(self, share: float) -> float:
        """Return the time within which this share of the messages was done, e.g. the median for 0.5."""
        return self.latencies[min(len(self.latencies) - 1, int(share * len(self.latencies)))]


def simulate(
    costs: Costs, calls: Calls, tasks: int, arrivals: Iterable[float], took: Callable[[], float] | None = None
) -> Simulated:
    """Simulate forwarding of messages that arrive at these times, in order, until the last message is done.

    Args:
        took: returns the seconds of the next call; without ``took``, each call takes ``calls.seconds``.
    """
    took = took or (lambda: calls.seconds)
    coming = iter(arrivals)
    done, now, limit = Simulated(), 0.0, FIRST_ROUND_MESSAGES
    waiting: list[float] = []
    following = next(coming, None)
    first = following or 0.0
    while following is not None or waiting:
        while following is not None and following <= now:
            waiting.append(following)
            following = next(coming, None)
        if not waiting:
            assert following is not None
            now = following
            continue
        taken, waiting = waiting[:limit], waiting[limit:]
        seconds = _round(costs, calls, tasks, len(taken), took)
        now += seconds
        limit = next_limit(limit, len(taken), seconds, tasks)
        done.rounds += 1
        done.latencies += [now - arrived for arrived in taken]
    done.messages, done.seconds = len(done.latencies), now - first
    done.latencies.sort()
    return done


def _round(costs: Costs, calls: Calls, tasks: int, messages: int, took: Callable[[], float]) -> float:
    """Return the duration of a round. The tasks run concurrently, and share a disk that makes one flush at a time."""
    begun = costs.round + costs.message * messages
    ends = [begun] * tasks
    chunks = list(_chunks(messages, tasks))
    # (the end of a chunk's calls, the task, the chunk's place). The chunk that ends first is flushed first.
    events = [(_called(costs, calls, begun, chunks[task], took), task, task) for task in range(min(tasks, len(chunks)))]
    heapq.heapify(events)
    disk_free = 0.0
    while events:
        at, task, place = heapq.heappop(events)
        ends[task] = disk_free = max(at, disk_free) + costs.branch
        if (following := place + tasks) < len(chunks):
            heapq.heappush(events, (_called(costs, calls, ends[task], chunks[following], took), task, following))
    return max(ends)


def _chunks(messages: int, tasks: int) -> Iterator[int]:
    """Yield the number of messages in each chunk, as in ``forwarder.round.split``."""
    most = chunk_messages(messages, tasks)
    yield from (min(most, messages - begin) for begin in range(0, messages, most))


def _called(costs: Costs, calls: Calls, begun: float, messages: int, took: Callable[[], float]) -> float:
    """Return the end of a task's calls for a chunk. The calls run concurrently, but share the task's core."""
    core, ends = begun, [begun] * calls.at_once
    for _ in range(messages):
        core = (
            max(core, heapq.heappop(ends)) + costs.task + calls.core
        )  # (a call begins when an earlier call has ended)
        heapq.heappush(ends, core + took())
    return max(ends)
