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

from forwarder.events import Claimed, Done, Paused
from forwarder.result import RoundResult
from forwarder.round import Job, Round
from forwarder.routes.base import Loop
from forwarder.routes.pace import Pace, is_through
from forwarder.task import Block, Chunk
from spool.engine import READ_SECONDS, duration_keys
from spool.errors import SpoolError, TransactionTimeout
from spool.workers.handler import FORWARDER
from spool.workers.pauses import WaitingMessages

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
        if self.once:  # no message fails twice in such a run, so a pause would save no attempt
            self.route = replace(self.route, pause_after=0)
        self.pace.streak.most = self.route.pause_after
        self._calling: Round | None = None
        self._seconds: Future[float]  # the duration of the calls
        self._next: Round | None = None
        self._waiting = WaitingMessages()
        self._resumptions = self.space.engine.resumptions(self.route.queue)
        self._is_working = self._is_paused = False

    @property
    def is_working(self) -> bool:
        return self._is_working

    @property
    def is_busy(self) -> bool:
        return self._is_working or self._is_paused

    def count_calls(self) -> None:
        if (calling := self._calling) is not None:
            calling.count_calls()

    def run(self) -> None:
        self.pace.down = ""
        with ThreadPoolExecutor(1, f"calls of {self.route.queue}") as self._caller:
            try:
                while not self._is_over() and self._begin():
                    while self._calling is not None:
                        if not self.stopped.is_set() and self.pace.claims_ahead(self._calling.size):
                            self._next = self._claim(0.0, ahead=True)
                        self._end(self._calling)
                    self._is_working = False
                    self._pause()
            except BaseException:
                self._give_up()
                raise

    def _pause(self) -> None:
        seconds = self.pace.pause
        if seconds and not (self.once or self.stopped.is_set()):
            self._is_paused = True
            self.tell(Paused(self.route.queue, self.pace.down, seconds))
            clock = self.space.engine.clock
            until = clock.monotonic() + seconds
            while (left := until - clock.monotonic()) > 0 and not self.stopped.wait(min(left, READ_SECONDS)):
                if self._resumptions.is_requested():
                    log.warning("%s: an administrator ended the pause; next attempt now", self.route.queue)
                    self.pace.find_up()
                    break
            self._is_paused = False

    def _is_over(self) -> bool:
        if self.stopped.is_set():
            return True
        return self.once and (self.pace.down != "" or len(self.attempted) > _MOST_ATTEMPTED)

    def _begin(self) -> bool:
        """Begin a round if a message can be claimed within half a second. Return whether the loop goes on."""
        self._next = self._claim(0.0 if self.once else _WAIT_SECONDS, ahead=False)
        if self._next is not None:
            self._is_working = True
            self._call(self._next)
            return True
        self._add(RoundResult())
        return not self.once

    def _claim(self, wait: float, *, ahead: bool) -> Round | None:
        round_ = Round(self.space, self.route)
        try:
            waiting = self._waiting.positions(self.space.engine.clock.monotonic())
            passed = self.attempted.union(waiting) if waiting else self.attempted
            if round_.claim(self.pace.most, timeout=wait, passed=passed):
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
            begun = self.space.engine.clock.monotonic()
            round_.call(self._run, tasks=tasks)
            return self.space.engine.clock.monotonic() - begun

        self._calling, self._next, self._seconds = round_, None, self._caller.submit(call)

    def _run(self, chunks: list[Chunk]) -> list[Block]:
        if self.stopped.is_set():  # after a stop, no task gets messages, even if another task has died
            return []
        return self.job(chunks)

    def _end(self, ended: Round) -> None:
        """Wait for the calls of a round, begin the calls of the next round, and commit the ended round."""
        seconds = self._seconds.result()
        self._calling = None
        with ended:
            if self._next is not None:
                if not self.stopped.is_set() and is_through(ended.size.messages, ended.result):
                    self._call(self._next)
                else:
                    self._give_back(self._next)
            self._commit(ended, seconds)

    def _give_back(self, claimed: Round) -> None:
        self._next = None
        claimed.close()

    def _commit(self, ended: Round, seconds: float) -> None:
        result = ended.commit()
        for position in result.waiting:
            if self._waiting.is_full:
                result.full = "many messages wait for room in queues that they alone name"
            self._waiting.add(position, self.space.engine.clock.monotonic())
        self.pace.note(ended.size, result, seconds)
        lasted = self.space.engine.clock.monotonic() - ended.claimed_at
        self.tell(Done(self.route.queue, ended.id.hex(), dict(result.effects), lasted, result.over_network))
        self._count_round(result, seconds)
        self._add(result)
        if self.pace.down:
            self._note_down(self.pace.down)
        elif result.messages and not result.down:
            self._note_up()

    def _count_round(self, result: RoundResult, seconds: float) -> None:
        """Count a round in the space's meters. ``seconds``: the duration of its calls."""
        queue = self.route.queue
        counts = [(("outcomes", FORWARDER, queue, effect), number) for effect, number in result.effects.items()]
        keys = duration_keys("service_seconds", queue)
        self.space.engine.meters.record([(("rounds", queue), 1), *counts], [(keys, seconds)])

    def _give_up(self) -> None:
        """Release the claimed messages after an error, and try to commit the calls in progress."""
        if self._next is not None:
            with suppress(SpoolError, OSError):
                self._give_back(self._next)
        if self._calling is not None:
            with self._calling as round_, suppress(Exception):  # the caller raises the first error
                self._seconds.result()
                self._add(round_.commit())
