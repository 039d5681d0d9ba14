"""Another queue as a service: the message moves there within the round's own commit, so exactly once."""

from dataclasses import dataclass

from forwarder.services.service import Request, ServiceError
from spool.model.outcome import Passed


@dataclass(frozen=True)
class QueueService:
    """`queue:name`. Whether the space has such a queue is for the caller to check, who has the space open."""

    queue: str
    watched = None  # nothing is called

    def check(self) -> None:
        """Raise `ServiceError` if no queue is named."""
        if not self.queue:
            raise ServiceError("'queue:' names no queue: write queue:name")

    def open(self) -> "QueueCaller":
        """There is nothing to make ready."""
        return QueueCaller(self.queue)


@dataclass(frozen=True)
class QueueCaller:
    """Passes every message on."""

    queue: str

    def __call__(self, request: Request) -> Passed:
        return Passed(self.queue)

    def close(self) -> None:
        """There is nothing to give back."""
