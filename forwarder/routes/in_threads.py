"""Forward queues to services in threads of this process, without Spark and without rounds.

The routes are the same as for a ``Forwarder``. Each message has a separate transaction, so the loop can give up a
single call that hangs. If a call ends the process, only the message of this call gets an attempt counted. Rounds in one
process could do neither.
"""

from contextlib import closing
from dataclasses import dataclass

from forwarder.events import Done
from forwarder.result import RoundResult, Summary
from forwarder.round import queues_into
from forwarder.routes.arguments import check_routes
from forwarder.routes.base import BaseForwarder, Loop
from forwarder.services import QueueService, Request
from forwarder.task import threads_of
from spool import open as open_space
from spool.model.message import Message
from spool.model.position import Position
from spool.workers.conclusion import Conclusion
from spool.workers.effects import Effect
from spool.workers.handler import FORWARDER, Handler
from spool.workers.outcome import Outcome
from spool.workers.worker import Worker


class ThreadForwarder(BaseForwarder):
    """Take messages from queues, and call a service for each message in a thread.

    ``Forwarder`` describes the arguments.

    A queue has as many threads as its service allows concurrent calls. A watched service has one thread.

    Raises:
        ServiceError: a route cannot work.
    """

    def run(self, once: bool = False) -> Summary:
        """Forward until ``stop`` is called, and return the summary. An error that ends one route ends all routes.

        Args:
            once: end when this run has made an attempt for each message that can be forwarded now.
        """
        with open_space(self.path) as space:
            check_routes(space, self.routes, sent=False)
            self._forward(space, once, ThreadLoop)
        return self.summary


@dataclass(kw_only=True, eq=False)
class ThreadLoop(Loop, Handler):
    """Calls the service of one route in the threads of a worker."""

    program = FORWARDER

    def __post_init__(self) -> None:
        super().__post_init__()
        self.on_failure, self.into, self.passed = self.route.on_failure, queues_into(self.route), self.attempted
        self.replies = not isinstance(self.route.service, QueueService)
        self._worker: Worker | None = None
        self._under_way: set[Position] = set()
        self._down: Conclusion | None = None  # the reason of the kept messages since the route was last up

    def run(self) -> None:
        service = self.route.service
        with closing(service.open()) as self._caller:
            self._under_way.clear()
            self._worker = Worker(
                self.space, self.route.queue, self, threads=threads_of(service), once=self.once,
                timeout=service.watched, stop=self.stopped, pause_after=self.route.pause_after,
            )  # fmt: skip
            self._worker.run()

    @property
    def is_working(self) -> bool:
        return bool(self._under_way)

    @property
    def is_busy(self) -> bool:
        return self.is_working or (self._worker is not None and self._worker.is_paused)

    def count_calls(self) -> None:
        if self.is_working and self._worker is not None:
            self._worker.end()

    def handle(self, message: Message, unreadable: str) -> Outcome:
        """Call the service."""
        self._under_way.add(message.position)
        return self._caller(Request(message, self.engine.stored_body(message), unreadable))

    def ended(self, queue: str, position: Position, conclusion: Conclusion, seconds: float) -> None:
        """Count the effect of an attempt."""
        result = RoundResult()
        result.conclude(conclusion, position)
        self.tell(Done(queue, "", result.effects, seconds))
        if conclusion.effect is Effect.KEPT:
            self._down = result.kept or self._down
        elif not conclusion.pause:
            self._down = None
            self._note_up()
        result.kept = self._down
        self._add(result)
        self._under_way.discard(position)
