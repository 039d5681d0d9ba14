"""What every kind of service has in common: what it is given, what it answers, and how it is opened."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from spool.model.outcome import Outcome
from spool.work.functions import ServiceError as ServiceError

MAX_REPLY = 256 * 1024 * 1024
"""Bytes; the largest body that a queue takes by default."""


class MissingQueue(ServiceError):
    """A queue of a route that is not there: it may be created later, so the route itself is no wrong value."""


class Message(Protocol):
    """The part of `spool.Message` that the services here read. A Python service gets the whole message."""

    @property
    def id(self) -> str: ...
    @property
    def queue(self) -> str: ...
    @property
    def content_type(self) -> str: ...
    @property
    def correlation_id(self) -> str | None: ...
    @property
    def attempts(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...


@dataclass(frozen=True, slots=True)
class Request:
    """One message on its way to a service: with its decoded body in `message`, and the bytes as stored in `raw`.

    `unreadable` tells, if it is not empty, why the body could not be decoded here; it is the bytes as stored then.
    """

    message: Message
    raw: bytes
    unreadable: str = ""


class Caller(Protocol):
    """An opened service, for one worker; it never raises but for KeyboardInterrupt."""

    def __call__(self, request: Request) -> Outcome:
        """Deliver one message and tell what came of it."""

    def close(self) -> None:
        """Give back what the worker will not need again."""


class Service(Protocol):
    """A service by name: small, and picklable, so that it can be sent to the workers."""

    @property
    def watched(self) -> float | None:
        """Seconds that a call may take, if it may hang its process; None if the service itself sees to its time."""

    def check(self) -> None:
        """Raise `ServiceError` if no call can succeed as the service is named. The driver asks before any work."""

    def open(self) -> Caller:
        """Make it ready in this process; `ServiceError` if it is not to be had here."""
