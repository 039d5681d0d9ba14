"""What all kinds of services have in common: requests, outcomes, and how a service is opened.

A kind of service is two classes, which need not be derived from these: a `Service`, which is sent to the workers, and
its `Caller`, which lives in one of them.
"""

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from spool.model.message import Message
from spool.model.text import shown
from spool.workers.functions import ServiceError as ServiceError
from spool.workers.outcome import Outcome, describe

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
    """An opened service, for one worker process. What it raises is what it is for a function: an attempt that failed,
    unless it is `Reject`.

    If its service has several `threads`, it is called from as many at the same time.
    """

    def __call__(self, request: Request, /) -> Outcome:
        """Deliver one message and return the outcome.

        `Replied`: it is done. `Retried`: it failed for now; with `counted=False` the service was not reached, so that
        the route pauses and no attempt is lost. `Rejected`: it failed for good.
        """

    def close(self) -> None:
        """Release what the worker does not need any more."""


class Service(Protocol):
    """A service by name: small, hashable and picklable, so that it can be sent to the workers: a frozen dataclass, say.

    It is opened once in each worker process. Equal services are one.
    """

    @property
    def watched(self) -> float | None:
        """The seconds that a call may take, if it may hang its process, which is ended five seconds later; None if the
        service limits its time itself."""

    @property
    def threads(self) -> int:
        """How many calls a task may have under way at a time; a service that is `watched` has 1."""

    def check(self) -> None:
        """Raise `ServiceError` if no call can succeed. The driver calls this before any work."""

    def open(self) -> Caller:
        """Prepare the service in this process. What it raises, `ServiceError` or anything else, is no attempt: the
        service is not reached, and the next round opens it again."""


def check_sendable(service: Service) -> None:
    """Raise `ServiceError` unless the service can be sent to workers, and be found again among those opened there."""
    try:
        is_same = pickle.loads(pickle.dumps(service)) == service
        hash(service)
    except Exception as error:  # of whatever kind: a pickled object may do anything
        raise ServiceError(
            f"the service {shown(service)} cannot be sent to workers ({describe(error)}): make it a frozen dataclass "
            "of plain values, in a module of its own"
        ) from None
    if not is_same:
        raise ServiceError(f"the service {shown(service)} does not equal a copy of itself: make it a frozen dataclass")


# -- fields of a message by name ---------------------------------------------------------------------------------------

_FIELDS: dict[str, Callable[[Message], object]] = {
    "id": lambda message: message.id,
    "queue": lambda message: message.queue,
    "correlation_id": lambda message: message.correlation_id,
    "application_key": lambda message: message.application_key,
    "client_id": lambda message: message.client_id,
    "user_code": lambda message: message.user_code,
    "priority": lambda message: message.priority,
    "group": lambda message: message.group,
}
_HEADER = "header."

FIELD_NAMES = ", ".join([*_FIELDS, f"{_HEADER}NAME"])
"""The fields that there are, for errors."""


def is_field(name: str) -> bool:
    """Return whether a message can have such a field."""
    return name in _FIELDS or name.startswith(_HEADER)


def field_of(message: Message, name: str) -> str | None:
    """Return a field as text; None if the message has none."""
    found = message.headers.get(name[len(_HEADER) :]) if name.startswith(_HEADER) else _FIELDS[name](message)
    return None if found is None else str(found)
