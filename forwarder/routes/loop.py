"""The rounds of one route: claim, call, commit. Two rounds may run at the same time.

While the tasks of a round call the service, the driver commits the previous round and claims the next round. So no task
waits for a claim or a commit. Rounds call the service one after the other, and the commits follow in the order of the
claims.
"""

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace

from forwarder.events import Claimed, Done
from forwarder.result import RoundResult
from forwarder.round import Job, Round
from forwarder.routes.base import Loop
from forwarder.routes.pace import Pace, halves, is_through
from forwarder.task import Chunk, TaskResult
from spool.engine import READ_SECONDS, duration_keys
from spool.errors import SpoolError, TransactionTimeout
from spool.workers.conclusion import kept
from spool.workers.handler import FORWARDER
from spool.workers.next_step import DriverStep, next_step
from spool.workers.pauses import Breaker
from spool.workers.states import Event

log = logging.getLogger("spool")

_WAIT_SECONDS = 0.5
# The largest number of failed messages that a run with ``once`` remembers. After more failures, the run ends before its
# queue is empty.
_MOST_ATTEMPTED = 1_000_000


@dataclass(kw_only=True, eq=False)
class RouteLoop(Loop):
    """Runs the rounds of a route. A claim that finds no message counts as an empty result.

    job: runs chunks in tasks.
    tasks: called when the calls of a round begin; returns how many tasks run at the same time.
    """

    job: Job
    tasks: Callable[[], int]
    pace: Pace = field(default_factory=lambda: Pace(1))  # 1 task until the first round sets the number

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.once:  # no message fails twice in such a run, so a pause would save no attempt
            self.route = replace(self.route, pause_after=0)
        self._breaker = self._new_breaker()
        self._calling: Round | None = None
        self._seconds: Future[float]  # the duration of the calls
        self._next: Round | None = None
        # Whether the last claim found no message, and no round has ended since.
        self._is_empty = self._is_working = False

    def _new_breaker(self) -> Breaker:
        queue, most = self.route.queue, self.route.pause_after
        is_resumed = self.engine.resumptions(queue).is_requested
        return Breaker(queue, self.engine.clock.monotonic, is_resumed, once=self.once, pause_after=most)

    @property
    def is_working(self) -> bool:
        return self._is_working

    @property
    def is_busy(self) -> bool:
        return self._is_working or self._breaker.is_paused

    def count_calls(self) -> None:
        if (calling := self._calling) is not None:
            calling.count_calls()

    def run(self) -> None:
        self._breaker, self._is_empty = self._new_breaker(), False
        with ThreadPoolExecutor(1, f"calls of {self.route.queue}") as self._caller:
            try:
                while (step := self._next_step()) is not DriverStep.END:
                    if step is DriverStep.TAKE:
                        self._take()
                    elif step is DriverStep.CALL:
                        self._end_calling()
                    else:
                        self.stopped.wait(min(self._breaker.pause_left(), READ_SECONDS))
                while self._calling is not None:
                    self._end_calling()
            except BaseException:
                self._give_up()
                raise

    def _next_step(self) -> DriverStep:
        calling = self._calling
        is_full = calling is not None and (
            self._next is not None or self._is_empty or not self.pace.claims_ahead(calling.size)
        )
        return next_step(self._breaker, is_stopping=self.stopped.is_set(), is_full=is_full, is_empty=self._is_empty)

    def _take(self) -> None:
        """Claim a round; begin its calls unless an earlier round calls. Wait for half a second if there is none."""
        ahead = self._calling is not None
        self._next = self._claim(0.0 if self.once or ahead else _WAIT_SECONDS, ahead=ahead)
        self._is_empty = self._next is None
        if not ahead and self._next is not None:
            self._is_working = True
            self._call(self._next)
        elif not ahead:
            self._add(RoundResult())

    def _claim(self, wait: float, *, ahead: bool) -> Round | None:
        round_ = Round(self.space, self.route)
        try:
            most = 1 if self._breaker.streak.is_storm else self.pace.limit
            if round_.claim(most, timeout=wait, passed=self.attempted.union(self._breaker.passed())):
                self.tell(Claimed(self.route.queue, round_.id.hex(), round_.size.messages, ahead))
                return round_
        except TransactionTimeout as error:  # another process holds a lock for very long: claim again
            log.warning("claiming from queue %s: %s", self.route.queue, error)
        except BaseException:
            round_.close()
            raise
        round_.close()
        return None

    def _call(self, round_: Round) -> None:
        def call() -> float:
            tasks = self.pace.tasks = self.tasks()
            begun = self.engine.clock.monotonic()
            round_.call(self._run, tasks=tasks)
            return self.engine.clock.monotonic() - begun

        self._calling, self._next, self._seconds = round_, None, self._caller.submit(call)

    def _run(self, chunks: list[Chunk]) -> list[TaskResult]:
        if self.stopped.is_set():  # after a stop, no task gets messages, even if another task has died
            return []
        return self.job(chunks)

    def _end_calling(self) -> None:
        """Wait for the calls of a round, begin the calls of the next round, and commit the ended round."""
        ended, seconds = self._calling, self._seconds.result()
        assert ended is not None
        self._calling, self._is_empty = None, False
        with ended:
            if (following := self._next) is not None:
                if not self.stopped.is_set() and is_through(ended.size.messages, ended.result):
                    self._call(following)
                else:
                    self._next = None
                    following.close()
            self._commit(ended, seconds)
        self._is_working = self._calling is not None

    def _commit(self, ended: Round, seconds: float) -> None:
        result, breaker = ended.commit(), self._breaker
        in_storm = breaker.streak.is_storm
        for position in result.waiting:
            if not breaker.wait(position):
                result.kept = kept(Event.NO_ROOM, "many messages wait for room in queues that they alone name")
        if result.kept is not None and not halves(ended.size, result):
            breaker.hold_back(result.down, result.kept.delay)
        if result.has_answers and not result.streak.is_storm:
            breaker.note("")
        elif result.streak.failed:
            breaker.note(result.streak.reason, *result.streak.failed)
        self.pace.note(ended.size, result, seconds, in_storm=in_storm or breaker.streak.is_storm)
        lasted = self.engine.clock.monotonic() - ended.claimed_at
        self.tell(Done(self.route.queue, ended.id.hex(), dict(result.effects), lasted, result.over_network))
        self._count_round(result, seconds)
        self._add(result)
        breaker.is_over = breaker.is_over or (self.once and len(self.attempted) > _MOST_ATTEMPTED)
        if (pause := breaker.take_untold()) is not None:
            self.paused(self.route.queue, *pause)
        elif result.messages and not (result.down or breaker.down):
            self._note_up()

    def _count_round(self, result: RoundResult, seconds: float) -> None:
        """Count a round in the space's meters. ``seconds``: the duration of its calls."""
        queue = self.route.queue
        counts = [(("outcomes", FORWARDER, queue, effect), number) for effect, number in result.effects.items()]
        keys = duration_keys("service_seconds", queue)
        self.engine.meters.record([(("rounds", queue), 1), *counts], [(keys, seconds)])

    def _give_up(self) -> None:
        """Release the claimed messages after an error, and try to commit the calls in progress."""
        if self._next is not None:
            with suppress(SpoolError, OSError):
                self._next.close()
        if self._calling is not None:
            with self._calling as round_, suppress(Exception):  # the caller raises the first error
                self._seconds.result()
                self._add(round_.commit())
