"""``spool-admin message get --exec``: a worker that runs a command with each message, and ends after some messages."""

import math
import os
import select
import time
from typing import TYPE_CHECKING, Any

from forwarder.services import Request, ServiceError, parse
from spool.errors import Empty
from spool.model.message import Message
from spool.model.text import no_queue
from spool.workers.effects import TRAVELLING, Effect
from spool.workers.handler import Handler
from spool.workers.outcome import NewMessage, Outcome, Replied, Translated
from xaspool_scripts.start import ended_by
from xaspool_scripts.terminal.exit_codes import WRONG_USAGE, code_of_effects
from xaspool_scripts.terminal.program import Failure, note
from xaspool_scripts.worker import WorkerGroup, print_summary

if TYPE_CHECKING:
    from spool import Space, Worker


class _Command(Handler):
    """Runs a command for at most ``left`` messages. Its output goes to ``reply_to``, or else to the reply queue."""

    worker: "Worker"

    def __init__(self, space: "Space", command: str, reply_to: str | None, left: float) -> None:
        self._space, self._reply_to, self._left = space, reply_to, left
        self.into, self.replies = () if reply_to is None else (reply_to,), reply_to is None
        try:
            self._call = parse(f"exec:{command}", timeout=math.inf).open()
        except ServiceError as error:
            raise Failure(str(error), WRONG_USAGE) from None

    def handle(self, message: Message, unreadable: str) -> Outcome:
        outcome = self._call(Request(message, self._space.engine.stored_body(message), unreadable))
        if self._reply_to is None or not isinstance(outcome, Replied):
            return outcome
        travelling: Any = {name: getattr(message, name) for name in TRAVELLING}
        return Translated([NewMessage(self._reply_to, outcome.body, **travelling)])

    def ended(self, *_: object) -> None:
        self._left -= 1
        if self._left <= 0:
            self.worker.stop()


def execute(
    space: "Space", queue: str, command: str, reply_to: str | None, timeout: float | None, most: float, as_json: bool
) -> int:
    """Run the command with up to ``most`` messages, and return the exit code. Wait ``timeout`` seconds for the first
    message; None waits for ever."""
    if reply_to is not None and reply_to not in space.queues():
        raise no_queue(reply_to, space.queues())
    handler, until = _Command(space, command, reply_to, most), time.monotonic() + (timeout or 0.0)
    with space.arrivals([queue]) as arrivals:
        while True:
            arrivals.ready()
            group = WorkerGroup(space, {queue: handler}, lambda *_: None, once=True, timeout=None)
            handler.worker = group.workers[queue]
            group.run()
            summary, error = handler.worker.summary, group.errors.get(queue)
            effects = [effect for effect in Effect if getattr(summary, effect)]
            if effects or group.signals or error is not None:
                break
            if not select.select([arrivals], [], [], timeout and max(0.0, until - time.monotonic()))[0]:
                raise Empty(f"queue {queue} has no message that can be taken now")
    if as_json:
        print_summary(queue, summary, error, as_json)
    for text in summary.reasons.values():
        note(f"queue {queue}: {text}")
    if group.ended:  # the command may go on
        os._exit(ended_by(group.ended))
    if error is not None:
        raise error
    return code_of_effects(effects, failed=False, left=summary.retried or summary.kept or group.signals)
