"""Queues of this space and of other spaces as services. A message that is forwarded twice still arrives only once.

A queue of this space gets the message in the commit of the round. A queue of another space gets a put whose
deduplication key is the message's id. If the forwarder dies between the commits of the two spaces, the next forwarder
puts the message again with the same key. The queue then gets no second message. A key lasts for the queue's
``deduplication_window``. This window has to be longer than any downtime of the forwarder.
"""

import logging
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from forwarder.services.service import Caller, MissingQueue, Request, Service, ServiceError
from spool import Space
from spool import open as open_space
from spool.errors import Full, InvalidArgument, MessageInUse, QueueNotFound, SpoolError
from spool.model.codecs import Encoded
from spool.model.message import Message
from spool.model.options import PutOptions
from spool.model.text import one_line
from spool.workers.outcome import Outcome, Passed, Rejected, Replied, Retried, describe

log = logging.getLogger("spool.forwarder")

THREADS = 32
"""The number of puts that one task makes at a time. Concurrent puts share a commit."""

_SHORT_WINDOW_SECONDS = 3600.0
_TRAVELLING = ("priority", "expires_at", "user_code", "client_id", "application_key", "group")


@dataclass(frozen=True)
class QueueService(Caller, Service):
    """`queue:name`, service and caller in one. The forwarder opens the space, and checks that the queue exists."""

    queue: str

    @property
    def shown_name(self) -> str:
        return f"queue:{self.queue}"

    def check(self) -> None:
        if not self.queue:
            raise ServiceError("'queue:' names no queue: write queue:name")

    def open(self) -> "QueueService":
        return self

    def __call__(self, request: Request) -> Passed:
        return Passed(self.queue)


@dataclass(frozen=True)
class OtherSpaceService(Service):
    """`queue:name@/path/of/the/space`. ``threads``: the number of puts that one task makes at a time."""

    queue: str
    path: str
    threads: int = THREADS

    @property
    def shown_name(self) -> str:
        return f"queue:{self.queue}@{self.path}"

    def check(self) -> None:
        try:
            with open_space(self.path) as space:
                queue = space.queues().get(self.queue)
        except (SpoolError, OSError) as error:
            raise ServiceError(f"the space of 'queue:{self.queue}@{self.path}' cannot be opened: {error}") from None
        if queue is None:
            raise MissingQueue(f"there is no queue {self.queue!r} in {self.path}: create it, or correct the route")
        if queue.deduplication_window < _SHORT_WINDOW_SECONDS:
            log.warning(
                "queue %s of %s remembers the key of a put for only %g s: if a killed forwarder is down for longer, "
                "the queue may get a message twice; set its deduplication_window",
                self.queue, self.path, queue.deduplication_window,
            )  # fmt: skip

    def open(self) -> "OtherSpaceCaller":
        return OtherSpaceCaller(self.queue, self.path)


class OtherSpaceCaller:
    """Puts each message into the other space."""

    def __init__(self, queue: str, path: str) -> None:
        self._queue, self._path = queue, path
        self._mutex = threading.Lock()
        self._space: Space | None = None

    def __call__(self, request: Request) -> Outcome:
        if request.unreadable:
            return Retried(one_line(request.unreadable))
        space: Space | None = None
        try:
            space, message = self._opened(), request.message
            body = message.body if message.codec is None else Encoded(request.raw, message.codec)
            return Replied(space.put(self._queue, body, transaction=None, **fields(message)).encode())
        except InvalidArgument as error:  # the limits of the other space are stricter
            return Rejected(one_line(error))
        except (Full, MessageInUse, QueueNotFound) as error:
            return Retried(describe(error), counted=False)
        except (SpoolError, OSError) as error:
            # After CommitUnknown, the next attempt has the same deduplication key, so the queue gets no second message.
            self._let_go(space)
            return Retried(describe(error), counted=False)

    def _opened(self) -> Space:
        with self._mutex:
            if self._space is None:
                self._space = open_space(self._path)
            return self._space

    def _let_go(self, failed: Space | None) -> None:
        """Close a space that failed, so that the next call opens it again."""
        with self._mutex:
            if failed is not None and self._space is failed:
                self._space = None
        if failed is not None:
            with suppress(SpoolError, OSError):
                failed.close()

    def close(self) -> None:
        self._let_go(self._space)


def fields(message: Message) -> PutOptions:
    """Return the options of the put, without the reply queue and the failure queue.

    These two queues are omitted because they are in this space.
    """
    options: dict[str, Any] = {
        "correlation_id": message.correlation_id or message.id,
        "content_type": message.content_type,
        "deduplication_key": f"forwarded {message.id}",
        "headers": dict(message.headers),
    }
    options |= {name: getattr(message, name) for name in _TRAVELLING if getattr(message, name) is not None}
    return options  # type: ignore[return-value]
