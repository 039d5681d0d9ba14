"""What a forwarder can do, from a few measured costs: a formula, and a simulation of its rounds step by step.

``python -m bench capacity`` measures the costs, and holds both against another run (``bench/capacity_run.py``). Times
are in seconds. The formula is for planning; the simulation also knows how long a message takes, what a queue that is
filled faster than it is emptied does, and calls that do not all take the same time. Both count a round's claim and
commit as if no calls were made meanwhile, as it is until rounds have grown: what follows is on the safe side. Bodies
have 1 KiB: larger ones make more branches.
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
    """What the forwarder itself takes on one machine.

    round: of a round, whatever is in it: a claim, a job of Spark's, the commit of what its tasks have voted for.
    message: of the driver, for each message.
    task: of a task's core, for each message, beside what the service takes.
    branch: of writing and flushing what a task votes for: twice a round, or more often if the round is large.
    """

    round: float
    message: float
    task: float
    branch: float


@dataclass(frozen=True)
class Calls:
    """Calls of a service.

    seconds: that one takes, without the task's core.
    at_once: how many a task has under way at a time.
    core: what one takes of the task's core.
    """

    seconds: float
    at_once: int = 1
    core: float = 0.0


def seconds_a_message(costs: Costs, calls: Calls) -> float:
    """Return how long a task takes for each of many messages: its core is the limit, or its calls are."""
    core = costs.task + calls.core
    return max(core, (core + calls.seconds) / calls.at_once)


def round_seconds(costs: Costs, calls: Calls, messages: int, tasks: int) -> float:
    """Return how long a round of so many messages takes."""
    share = math.ceil(messages / tasks)
    chunks = _chunk_count(messages, tasks)
    # The disk makes one flush at a time: the tasks, which come to theirs together, wait for each other once.
    branches = min(tasks, chunks) - 1 + math.ceil(chunks / tasks)
    return costs.round + costs.message * messages + branches * costs.branch + share * seconds_a_message(costs, calls)


def _chunk_count(messages: int, tasks: int) -> int:
    return math.ceil(messages / chunk_messages(messages, tasks))


def steady_round(costs: Costs, calls: Calls, tasks: int) -> int:
    """Return how many messages a round has, once rounds have grown, if there are always more."""
    limit = FIRST_ROUND_MESSAGES
    for _ in range(64):
        limit = next_limit(limit, limit, round_seconds(costs, calls, limit, tasks), tasks)
    return limit


def rate(costs: Costs, calls: Calls, tasks: int) -> float:
    """Return the messages a second of a forwarder with so many tasks, a core each, that always has more to do."""
    messages = steady_round(costs, calls, tasks)
    return messages / round_seconds(costs, calls, messages, tasks)


# -- planning ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Need:
    """What a load takes. ``calls``: under way at a time; ``flushes`` and ``megabytes``: a second, of all spaces."""

    messages: float
    calls: float
    tasks: int
    spaces: int
    flushes: float
    megabytes: float


def need(
    costs: Costs, calls: Calls, a_day: float, *, peak: float = 3.0, cores: int = 16, body_bytes: int = 1024
) -> Need:
    """Return what it takes to forward so many messages a day.

    Args:
        peak: how many times the mean of the day the busiest hour has.
        cores: for the tasks of one space: of its machine, or of the cluster.
    """
    messages = a_day / DAY * peak
    tasks = spaces = 1
    if rate(costs, calls, cores) < messages:
        spaces = math.ceil(messages / rate(costs, calls, cores))
    while rate(costs, calls, tasks) < messages / spaces:
        tasks += 1
    in_round = steady_round(costs, calls, tasks)
    rounds = messages / in_round
    # A body is written when it is put, once more when its file is compacted, and read by a task.
    return Need(
        messages, messages * calls.seconds, tasks * spaces, spaces, rounds * (1 + _chunk_count(in_round, tasks)),
        messages * body_bytes * 3 / 1e6,
    )  # fmt: skip


# -- fitting ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """One round that was measured: its messages, how long it took, and the processor's time of the driver."""

    messages: int
    seconds: float
    processor: float


def fitted(samples: Sequence[Sample], branch: float) -> Costs:
    """Return the costs that explain rounds of one task and a service that takes no time: a line through the samples."""
    counts = [sample.messages for sample in samples]
    whole = statistics.linear_regression(counts, [sample.seconds for sample in samples])
    driver = statistics.linear_regression(counts, [sample.processor for sample in samples])
    message = max(0.0, min(driver.slope, whole.slope))
    return Costs(max(0.0, whole.intercept - 2 * branch), message, max(0.0, whole.slope - message), branch)


# -- the simulation ---------------------------------------------------------------------------------------------------


@dataclass
class Simulated:
    """What a simulation came to. ``latencies``: from a message's arrival to the commit of its outcome, sorted."""

    messages: int = 0
    seconds: float = 0.0
    rounds: int = 0
    latencies: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.messages / self.seconds if self.seconds else 0.0

    def latency(self, share: float) -> float:
        """Return the time within which such a share of the messages was done: 0.5 for the median."""
        return self.latencies[min(len(self.latencies) - 1, int(share * len(self.latencies)))]


def simulate(
    costs: Costs, calls: Calls, tasks: int, arrivals: Iterable[float], took: Callable[[], float] | None = None
) -> Simulated:
    """Forward messages that arrive at these times, in order, until the last is done.

    Args:
        took: called for each call, for the seconds that it takes; without it, each takes ``calls.seconds``.
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
    """Return how long a round takes: the tasks beside each other, with one disk, which makes one flush at a time."""
    begun = costs.round + costs.message * messages
    ends = [begun] * tasks
    chunks = list(_chunks(messages, tasks))
    # (when its calls have ended, its task, its place): what ends first is flushed first.
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
    """Yield the messages of each chunk, as ``forwarder.round.split`` makes them."""
    most = chunk_messages(messages, tasks)
    yield from (min(most, messages - begin) for begin in range(0, messages, most))


def _called(costs: Costs, calls: Calls, begun: float, messages: int, took: Callable[[], float]) -> float:
    """Return when a task has made the calls of a chunk: its core does one thing at a time, calls run beside it."""
    core, ends = begun, [begun] * calls.at_once
    for _ in range(messages):
        core = (
            max(core, heapq.heappop(ends)) + costs.task + calls.core
        )  # (a call begins when one of those under way has ended)
        heapq.heappush(ends, core + took())
    return max(ends)
