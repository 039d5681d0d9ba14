"""The rounds of one route: claimed, called, committed, as its pace says; two of them may be under way.

While a round calls the service, in tasks elsewhere, this side commits the round before it and claims the next one, so
that the tasks do not wait for that. Rounds call one after the other, and are committed in the order of their claims.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from forwarder.events import Claimed, Done, Down, Event, Paused, Up
from forwarder.round import Job, Round, RoundResult, Route
from forwarder.routes.pace import Pace, RoundSize, is_through
from spool.errors import SpoolError
from spool.model.position import Position
from spool.space import Space

_WAIT_SECONDS = 0.5
# The number of failed messages that a run with ``once`` remembers for each queue: with more, it leaves the rest.
_MAX_TRIED = 1_000_000


@dataclass(frozen=True)
class _Claimed:
    """A round that has claimed messages. ``at``: when, in seconds of the monotonic clock."""

    round: Round
    size: RoundSize
    at: float


@dataclass(frozen=True)
class _Calling:
    """A round that calls the service. ``seconds``: how long its calls took, when they have ended."""

    claimed: _Claimed
    seconds: "Future[float]"


class RouteLoop:
    """Runs the rounds of a route until it is stopped or, with `once`, nothing is left that was not tried.

    Args:
        job: runs chunks in tasks.
        tasks: returns how many tasks a round may have at a time; asked in a round's calls, as they begin.
        stop: no round begins when it is set.
        tried: with `once`, the messages that failed in this run and are still in a queue; rounds add to it.
        count: called with what each round came to, when it is committed, and an empty result if there was no message.
        tell: called with what happens.

    is_busy: it has messages claimed, or pauses because it is down.
    """

    def __init__(
        self,
        space: Space,
        route: Route,
        job: Job,
        *,
        tasks: Callable[[], int],
        once: bool,
        stop: threading.Event,
        tried: set[Position],
        count: Callable[[str, RoundResult], object],
        tell: Callable[[Event], object],
    ) -> None:
        self._space, self._route, self._job = space, route, job
        self._tasks, self._once, self._stop = tasks, once, stop
        self._tried, self._count, self._tell = tried, count, tell
        self._pace = Pace(1)  # until the first round asks
        self._clock = space.engine.store.clock
        self._down_since: float | None = None
        self._calling: _Calling | None = None
        self._next: _Claimed | None = None
        self._is_paused = False

    @property
    def is_busy(self) -> bool:
        return self._is_paused or self._calling is not None

    def run(self) -> None:
        """Run rounds, one after the other. What was claimed is committed or given back, whatever is raised."""
        with ThreadPoolExecutor(1, f"calls of {self._route.queue}") as self._caller:
            try:
                while not self._is_over() and self._begin():
                    while self._calling is not None:
                        self._claim_ahead(self._calling)
                        self._end(self._calling)
                    self._pause()
            except BaseException:
                self._give_up()
                raise

    def _is_over(self) -> bool:
        if self._stop.is_set():
            return True
        return self._once and (self._pace.down != "" or len(self._tried) > _MAX_TRIED)

    def _begin(self) -> bool:
        """Begin a round, if there is a message within half a second; return whether to look again."""
        self._next = self._claim(0.0 if self._once else _WAIT_SECONDS, ahead=False)
        if self._next is not None:
            self._call(self._next)
            return True
        self._count(self._route.queue, RoundResult())
        return not self._once

    def _claim(self, wait: float, *, ahead: bool) -> _Claimed | None:
        limit, round_ = self._pace.limit, Round(self._space, self._route)
        try:
            if round_.claim(limit, timeout=wait, passed=self._tried):
                size = RoundSize(limit, round_.messages, in_order=round_.in_order, is_bounded=round_.is_bounded)
                self._tell(Claimed(self._route.queue, round_.id.hex(), round_.messages, ahead))
                return _Claimed(round_, size, self._clock.monotonic())
        except BaseException:
            round_.close()
            raise
        round_.close()
        return None

    def _claim_ahead(self, calling: _Calling) -> None:
        if not self._stop.is_set() and self._pace.claims_ahead(calling.claimed.size):
            self._next = self._claim(0.0, ahead=True)

    def _call(self, claimed: _Claimed) -> None:
        def call() -> float:
            tasks = self._pace.tasks = self._tasks()
            begun = self._clock.monotonic()
            claimed.round.call(self._job, tasks=tasks)
            return self._clock.monotonic() - begun

        self._calling, self._next = _Calling(claimed, self._caller.submit(call)), None

    def _end(self, calling: _Calling) -> None:
        """Wait for the calls of a round, begin those of the next one, and commit the round."""
        seconds = calling.seconds.result()
        ended, self._calling = calling.claimed, None
        with ended.round:
            if self._next is not None:
                if not self._stop.is_set() and is_through(ended.size.messages, ended.round.result):
                    self._call(self._next)
                else:
                    self._give_back(self._next)
            self._commit(ended, seconds)

    def _give_back(self, claimed: _Claimed) -> None:
        self._next = None
        claimed.round.close()

    def _commit(self, ended: _Claimed, seconds: float) -> None:
        queue, result = self._route.queue, ended.round.commit()
        now = self._clock.monotonic()
        self._pace.note(ended.size, result, seconds)
        self._tell(Done(queue, ended.round.id.hex(), dict(result.effects), now - ended.at))
        if self._once:
            self._tried.update(result.tried)
        self._count(queue, result)
        if self._pace.down and self._down_since is None:
            self._down_since = now
            self._tell(Down(queue, self._pace.down))
        elif self._down_since is not None and not result.down and result.messages:
            self._tell(Up(queue, now - self._down_since))
            self._down_since = None

    def _pause(self) -> None:
        """Wait, if the last round found the route to be down, before the next one."""
        seconds = self._pace.take_pause()
        if seconds and not self._is_over():
            self._is_paused = True
            self._tell(Paused(self._route.queue, self._pace.down, seconds))
            self._stop.wait(seconds)
            self._is_paused = False

    def _give_up(self) -> None:
        """Behind an error: give back what is claimed, and commit what calls in progress come to, if that can be."""
        if self._next is not None:
            with suppress(SpoolError, OSError):
                self._give_back(self._next)
        if self._calling is not None:
            with self._calling.claimed.round as round_, suppress(Exception):  # the first error is the one that counts
                self._calling.seconds.result()
                self._count(self._route.queue, round_.commit())
