"""What all kinds of services have in common: requests, outcomes, and how a service is opened."""

from dataclasses import dataclass
from typing import Protocol

from spool.model.message import Message
from spool.workers.functions import ServiceError as ServiceError
from spool.workers.outcome import Outcome

MAX_REPLY = 256 * 1024 * 1024
"""Bytes; the largest body that a queue takes by default."""


class MissingQueue(ServiceError):
    """A route names a queue that does not exist. It may be created later, so the route itself is not a wrong value."""


@dataclass(frozen=True, slots=True)
class Request:
    """One message on its way to a service: with its decoded body in `message`, and the bytes as stored in `raw`.

    `unreadable` tells why the body could not be decoded here: then it is the bytes as stored. "" if it was decoded.
    """

    message: Message
    raw: bytes
    unreadable: str = ""


class Caller(Protocol):
    """An opened service, for one worker process; it never raises but for KeyboardInterrupt.

    If its service has several `threads`, it is called from as many at the same time.
    """

    def __call__(self, request: Request) -> Outcome:
        """Deliver one message and return the outcome."""

    def close(self) -> None:
        """Release what the worker does not need any more."""


class Service(Protocol):
    """A service by name: small, and picklable, so that it can be sent to the workers."""

    @property
    def watched(self) -> float | None:
        """The seconds that a call may take, if it may hang its process; None if the service limits its time itself."""

    @property
    def threads(self) -> int:
        """How many calls a task may have under way at a time; a service that is `watched` has 1."""

    def check(self) -> None:
        """Raise `ServiceError` if no call can succeed. The driver calls this before any work."""

    def open(self) -> Caller:
        """Prepare the service in this process; raise `ServiceError` if it cannot be used here."""
