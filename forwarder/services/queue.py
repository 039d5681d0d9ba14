"""Another queue as a service: the message moves there in the round's own commit, so exactly once."""

from dataclasses import dataclass

from forwarder.services.service import Request, ServiceError
from spool.workers.outcome import Passed


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
