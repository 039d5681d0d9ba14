"""A queue of another space as a service: each message is put there once, however often it is forwarded.

The message's id is the deduplication key of the put. When the forwarder dies between the commit there and the commit
here, the message is forwarded again, and the other space knows the key: it adds no message. It knows a key for the
queue's ``deduplication_window``, which therefore has to be longer than the forwarder may be down.
"""

import logging
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from forwarder.services.service import MissingQueue, Request, ServiceError
from spool import Space
from spool import open as open_space
from spool.errors import Full, InvalidArgument, MessageInUse, QueueNotFound, SpoolError
from spool.model.codecs import Encoded
from spool.model.message import Message
from spool.model.options import PutOptions
from spool.workers.outcome import Outcome, Passed, Rejected, Replied, Retried, describe, one_line

log = logging.getLogger("spool.forwarder")

THREADS = 32
"""How many puts a task has under way at a time; those that come together share a commit."""

_SHORT_WINDOW_SECONDS = 3600.0
_TRAVELLING = ("priority", "expires_at", "user_code", "client_id", "application_key", "group")


@dataclass(frozen=True)
class QueueService:
    """`queue:name`. The caller, which has the space open, checks that there is such a queue."""

    queue: str
    watched = None  # nothing is called
    threads = 1

    def check(self) -> None:
        """Raise `ServiceError` if no queue is named."""
        if not self.queue:
            raise ServiceError("'queue:' names no queue: write queue:name")

    def open(self) -> "QueueCaller":
        """Return the caller; nothing has to be prepared."""
        return QueueCaller(self.queue)


@dataclass(frozen=True)
class QueueCaller:
    """Passes every message on."""

    queue: str

    def __call__(self, request: Request) -> Passed:
        return Passed(self.queue)

    def close(self) -> None:
        """Do nothing: the caller holds nothing."""


@dataclass(frozen=True)
class OtherSpaceService:
    """`queue:name@/path/of/the/space`.

    threads: how many puts a task has under way at a time.
    """

    queue: str
    path: str
    threads: int = THREADS
    watched = None  # a put is no function of a user's

    def check(self) -> None:
        """Raise `ServiceError` if there is no such space, or no such queue in it."""
        try:
            with open_space(self.path) as space:
                queue = space.queues().get(self.queue)
        except (SpoolError, OSError) as error:
            raise ServiceError(f"the space of 'queue:{self.queue}@{self.path}' cannot be opened: {error}") from None
        if queue is None:
            raise MissingQueue(f"there is no queue {self.queue!r} in {self.path}: create it, or correct the route")
        if queue.deduplication_window < _SHORT_WINDOW_SECONDS:
            log.warning(
                "queue %s of %s knows what was put for %g s only: if a forwarder that was killed is down for longer, a "
                "message may be there twice; set its deduplication_window",
                self.queue, self.path, queue.deduplication_window,
            )  # fmt: skip

    def open(self) -> "OtherSpaceCaller":
        """Return the caller. It opens the space with its first call, and keeps it open."""
        return OtherSpaceCaller(self.queue, self.path)


class OtherSpaceCaller:
    """Puts the messages."""

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
        except InvalidArgument as error:  # the other space takes less than this one
            return Rejected(one_line(error))
        except (Full, MessageInUse, QueueNotFound) as error:
            return Retried(describe(error), counted=False)
        except (SpoolError, OSError) as error:  # also a commit of which nothing is known: the next attempt finds out
            self._let_go(space)
            return Retried(describe(error), counted=False)

    def _opened(self) -> Space:
        with self._mutex:
            if self._space is None:
                self._space = open_space(self._path)
            return self._space

    def _let_go(self, failed: Space | None) -> None:
        """Close a space that failed, so that the next call opens it anew."""
        with self._mutex:
            if failed is not None and self._space is failed:
                self._space = None
        if failed is not None:
            with suppress(SpoolError, OSError):
                failed.close()

    def close(self) -> None:
        """Close the space."""
        self._let_go(self._space)


def fields(message: Message) -> PutOptions:
    """Return the options of the put. Reply and failure queue stay behind: they are names of this space."""
    options: dict[str, Any] = {
        "correlation_id": message.correlation_id or message.id,
        "content_type": message.content_type,
        "deduplication_key": f"forwarded {message.id}",
        "headers": dict(message.headers),
    }
    options |= {name: getattr(message, name) for name in _TRAVELLING if getattr(message, name) is not None}
    return options  # type: ignore[return-value]
