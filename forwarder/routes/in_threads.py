"""Forward queues to services in threads of this process: the same routes as a ``Forwarder``, without Spark and rounds.

Each message has a transaction of its own, so that a call that hangs can be given up alone, and a call that ends the
process counts as an attempt of its own message alone. A round could tell neither in one process.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Unpack

from forwarder.calls import threads_of
from forwarder.events import Done, Event
from forwarder.round import RoundResult, Route, is_named_by_it_alone, room_of
from forwarder.routes.base import BaseForwarder, Loop, RunOptions
from forwarder.routes.given import as_routes, check_routes
from forwarder.routes.pace import Pauses
from forwarder.services import Caller, Request, Service
from forwarder.summary import Summary
from forwarder.task import IN_A_QUEUE, Block
from spool.errors import Full
from spool.model.message import Message
from spool.model.position import Position
from spool.opening import open as open_space
from spool.space import Space
from spool.transactions.delivery import stored_body
from spool.workers.effects import Effect
from spool.workers.outcome import Outcome, Retried
from spool.workers.worker import Handled, Worker


class ThreadForwarder(BaseForwarder):
    """Take messages from queues and call a service for each, in threads. Arguments as of ``Forwarder``.

    A queue has as many threads as its service allows calls at a time; services that are watched have one.

    Raises:
        ServiceError: a route cannot work.
    """

    def __init__(
        self,
        path: str,
        routes: Mapping[str, str | Service] | Sequence[Route],
        *,
        idle: float | None = None,
        on_event: Callable[[Event], object] | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(path, as_routes(routes), idle=idle, on_event=on_event, say=say)

    def run(self, once: bool = False) -> Summary:
        """Forward until ``stop`` is called, and return what was done. An error that ends one route ends all.

        Args:
            once: end when each message that can be forwarded now was tried in this run.
        """
        with open_space(self.path) as space:
            check_routes(space, self.routes, sent=False)
            self._forward(space, once, lambda route, options: ThreadLoop(space, route, **options))
        return self.summary


class ThreadLoop(Loop):
    """Calls the service of one route in threads: workers follow each other, with a pause when it is not reached."""

    def __init__(self, space: Space, route: Route, **options: Unpack[RunOptions]) -> None:
        super().__init__(space, route, **options)
        self._pauses = Pauses()
        self._worker: Worker
        self._under_way: set[Position] = set()
        self._kept = RoundResult()  # the messages that this worker could not forward, which are no attempts

    def run(self) -> None:
        """Call the service, and pause when it is not reached."""
        with closing(self._route.service.open()) as caller:
            while not self._stop.is_set():
                self._work(caller)
                if self._once:
                    return
                self._pause(self._pauses)

    @property
    def is_working(self) -> bool:
        """Whether a call is in progress, or the commit of what it came to."""
        return bool(self._under_way)

    def count_calls(self) -> None:
        """Give up the calls in progress, each as an attempt of its message."""
        if self.is_working:
            self._worker.end()

    def _work(self, caller: Caller) -> None:
        """Call the service with one message after the other until it is not reached."""
        self._kept, self._under_way = RoundResult(), set()
        call, service = partial(self._call, caller), self._route.service
        self._worker = Worker(
            self._space, self._route.queue, call, threads=threads_of(service), once=self._once,
            passed=self._tried, timeout=service.watched, stop=self._stop, on_handled=self._note, on_unreadable=call,
            on_failure=self._route.on_failure, on_full=self._is_no_try,
        )  # fmt: skip
        try:
            self._worker.run()
        finally:
            if self._kept.messages:
                self._add(self._kept)
        if self._kept.down:
            self._pauses.find_down(self._kept)
            self._note_down(self._kept.down)

    def _call(self, caller: Caller, message: Message, unreadable: str = "") -> Outcome:
        self._under_way.add(message.position)
        store = self._space.engine.store
        with store.guard:
            _, full = room_of(store, self._route)
            raw = stored_body(store, message)
        outcome = Retried("", counted=False) if full else caller(Request(message, raw, unreadable))
        if isinstance(outcome, Retried) and not outcome.counted and message.position in self._under_way:
            self._kept.full, self._kept.retry_after = full or self._kept.full, outcome.delay
            self._worker.stop()  # before the message is free again, or another thread would call with it
        return outcome

    def _is_no_try(self, message: Message, full: Full) -> bool:
        """End the calls, because there is no room for what a message causes; unless that is a matter of it alone."""
        config = self._space.queues().get(self._route.queue)
        if is_named_by_it_alone(full.queue, {message.reply_queue, message.failure_queue}, self._route, config):
            return False
        self._kept.full = str(full)
        self._worker.stop()
        return True

    def _note(self, handled: Handled) -> None:
        """Note what became of a message. The worker calls it in one thread at a time."""
        effect = handled.effect
        block = Block(tried=[handled.position] if effect in IN_A_QUEUE else [])
        block.count(effect, "" if effect is Effect.KEPT and self._kept.full else handled.reason)
        self._tell(Done(self._route.queue, "", block.effects, handled.seconds))
        if effect is Effect.KEPT:
            self._kept.add(block)
        else:
            result = RoundResult()
            result.add(block)
            self._add(result)
            self._pauses.find_up()
            self._note_up()
        self._under_way.discard(handled.position)
