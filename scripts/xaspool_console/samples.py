"""The metrics of the space and their changes. A sample is computed on request, and at most once a second.

A running console also takes a sample every ten seconds, so that the charts have the last hour when a browser opens. If
the metrics of a large space take long, the samples are rarer: they use less than a hundredth of a processor.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from spool.watch.consumers import Consumer, consumers
from spool.watch.health import Cause, Rates, Trouble, queue_causes, rates_between, troubles

if TYPE_CHECKING:
    from spool import QueueStats, SpaceMetrics

_LEAST_AGE_SECONDS = 1.0  # metrics that are not older are used again
_STEP_SECONDS, _MOST_RECENT = 2.0, 8  # the least time between two samples for the rates, and their number
_HISTORY_STEP_SECONDS, _MOST_SAMPLES = 10.0, 360  # the same for older samples: an hour
_RATE_SECONDS = 15.0  # rates are averages over at most this time, if the samples allow this
_LEAST_CHART_SECONDS = 60.0
_MOST_SHARE = 0.007  # of a processor, for the samples without a browser


class Figures(NamedTuple):
    """The figures of a queue in one sample. depth: all messages of the queue."""

    depth: int
    enqueued: int
    dequeued: int
    failed: int


class _Sample(NamedTuple):
    at: float
    queues: dict[str, Figures]
    total: int


@dataclass(frozen=True)
class Snapshot:
    """The current metrics, and the samples before them, the oldest first."""

    metrics: "SpaceMetrics"
    samples: tuple[_Sample, ...]

    @cached_property
    def rates(self) -> dict[str, Rates]:
        """The average rates of each queue over the last seconds, or since the previous sample if this is longer."""
        newest = self.samples[-1]
        earlier = [each for each in self.samples[:-1] if each.at < newest.at]
        recent = [each for each in earlier if each.at >= newest.at - _RATE_SECONDS] or earlier[-1:]
        found = {}
        for name, now in newest.queues.items():
            base = next((each for each in recent if name in each.queues), None)
            if base is not None:
                found[name] = rates_between(base.queues[name], now, newest.at - base.at)
        return found

    @cached_property
    def causes(self) -> dict[str, tuple[Cause, ...]]:
        """The causes of each queue in trouble."""
        return queue_causes(self.metrics, self.rates)

    @cached_property
    def consumers(self) -> dict[str, list[Consumer]]:
        """The consumers of each queue."""
        return consumers(self.metrics.states, self.metrics.transactions)

    @property
    def chart_seconds(self) -> float:
        """The time that the charts show: since the first sample, but at least a minute, and at most an hour."""
        most = _HISTORY_STEP_SECONDS * _MOST_SAMPLES
        return min(most, max(_LEAST_CHART_SECONDS, self.samples[-1].at - self.samples[0].at))

    @property
    def troubles(self) -> list[Trouble]:
        """The troubles of the space, with the worst first."""
        return troubles(self.metrics, time.time(), self.rates)

    def depths(self, queue: str) -> list[tuple[float, int]]:
        """Return the depths of a queue, each with its time."""
        return [(each.at, each.queues[queue].depth) for each in self.samples if queue in each.queues]

    def totals(self) -> list[tuple[float, int]]:
        """Return the numbers of all messages, each with its time."""
        return [(each.at, each.total) for each in self.samples]


class Samples:
    """The source of snapshots, which any thread may use."""

    def __init__(self, metrics: "Callable[[], SpaceMetrics]", clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._history: deque[_Sample] = deque(maxlen=_MOST_SAMPLES)
        self._recent: deque[_Sample] = deque()
        self._computed = float("-inf")
        self._snapshot: Snapshot | None = None
        self._mutex = threading.Lock()

    def snapshot(self) -> Snapshot:
        """Return a snapshot that is at most a second old. Raises the errors of ``metrics``."""
        with self._mutex:  # concurrent requests wait here, and share the result
            now = self._clock()
            if self._snapshot is None or now - self._computed >= _LEAST_AGE_SECONDS:
                self._snapshot = self._new_snapshot()
                self._computed = self._clock()
            return self._snapshot

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Take samples in a thread during the block, also without a browser."""
        ended = threading.Event()
        recorder = threading.Thread(target=self._record, args=(ended,), name="console-samples", daemon=True)
        recorder.start()
        try:
            yield
        finally:
            ended.set()  # (a sample under way may hang, so nobody waits for its end)

    def _record(self, ended: threading.Event) -> None:
        pause = 0.0
        while not ended.wait(pause):
            begun = time.thread_time()
            with suppress(Exception):  # (a page shows the error)
                self.snapshot()
            pause = max(_HISTORY_STEP_SECONDS, (time.thread_time() - begun) / _MOST_SHARE)

    def forget(self) -> None:
        """Do not use the current metrics again, because the console has changed the space."""
        with self._mutex:
            self._computed = float("-inf")

    def _new_snapshot(self) -> Snapshot:
        metrics = self._metrics()
        sample = self._sample(metrics)
        if self._recent and sample.at < self._recent[-1].at:
            self._recent.clear()  # the clock was set back
            self._history.clear()
        if not self._recent or sample.at >= self._recent[-1].at + _STEP_SECONDS:
            self._recent.append(sample)
            if len(self._recent) > _MOST_RECENT:
                self._age(self._recent.popleft())
        kept = (*self._history, *self._recent)
        return Snapshot(metrics, kept if kept[-1] is sample else (*kept, sample))

    def _age(self, sample: _Sample) -> None:
        """Move a sample into the history, unless the history has a sample of the same ten seconds."""
        if not self._history or sample.at >= self._history[-1].at + _HISTORY_STEP_SECONDS:
            self._history.append(sample)

    def _sample(self, metrics: "SpaceMetrics") -> _Sample:
        before: Mapping[str, Figures] = self._recent[-1].queues if self._recent else {}
        queues = {}
        for name, stats in metrics.queues.items():
            figures, known = figures_of(stats), before.get(name)
            queues[name] = known if known == figures else figures  # (samples of an idle queue share their memory)
        return _Sample(metrics.at, queues, sum(each.depth for each in queues.values()))


def figures_of(stats: "QueueStats") -> Figures:
    depth = stats.ready + stats.delayed + stats.claimed + stats.in_doubt
    return Figures(depth, stats.enqueued, stats.dequeued, stats.failed)
