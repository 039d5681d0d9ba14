"""The interface of services: the driver sends a `Service` to the workers, and each worker opens it as a `Caller`.

The classes of a service need not be derived from these two classes. A class that is derived from `Service` gets the
usual properties.
"""

import pickle
from dataclasses import dataclass
from typing import Protocol

from spool.model.message import Message
from spool.model.text import shown
from spool.workers.functions import ServiceError as ServiceError
from spool.workers.outcome import Outcome, describe

MAX_REPLY = 256 * 1024 * 1024
"""The largest reply in bytes; a queue takes a body of this size by default."""


class MissingQueue(ServiceError):
    """A route names a queue that does not exist. The name may be right, because the queue may be created later."""


@dataclass(frozen=True, slots=True)
class Request:
    """A message that a service has to deliver.

    message: the message with the decoded body. raw: the body as stored.
    unreadable: the reason why no codec of this process can decode the body; "" if the body is decoded. An unreadable
        message has the stored bytes as its body.
    """

    message: Message
    raw: bytes
    unreadable: str = ""


class Caller(Protocol):
    """An opened service in one worker process.

    If the service has several `threads`, they use the caller concurrently. An exception in a call counts as a failed
    attempt. The exception `Reject` counts as a final failure.
    """

    def __call__(self, request: Request, /) -> Outcome:
        """Deliver one message and return the outcome.

        `Replied`: the message is done. `Retried`: the attempt failed. `Retried` with `counted=False`: the service was
        not reached, so no attempt is counted and the route pauses. `Rejected`: the message has failed for good.
        """

    def close(self) -> None:
        """Release connections and files, because the worker no longer needs the service."""
        return  # (a caller may hold nothing between two calls)


class Service(Protocol):
    """A description of a service: small, hashable and picklable, e.g. a frozen dataclass.

    Each worker process opens a service once. Services that compare as equal share one opened service.
    """

    @property
    def watched(self) -> float | None:
        """The time limit of a call in seconds, for services whose calls may hang.

        None if the service itself limits the time. The process of a call that hangs ends five seconds after the time
        limit.
        """
        return None

    @property
    def threads(self) -> int:
        """The largest number of concurrent calls in one task. A service that is `watched` has one thread."""
        return 1

    def check(self) -> None:
        """Raise `ServiceError` if no call can succeed. The driver calls this method before any work."""
        self.open().close()

    def open(self) -> Caller:
        """Prepare the service in this process.

        An exception means that the service was not reached. No attempt is counted, and the next round opens the service
        again.
        """


def check_sendable(service: Service) -> None:
    """Raise `ServiceError` unless the driver can send the service to workers.

    The service must also be hashable, and equal to its copy, so that a worker finds an opened copy of the service.
    """
    try:
        is_same = pickle.loads(pickle.dumps(service)) == service
        hash(service)
    except Exception as error:  # a pickled object may raise any exception
        raise ServiceError(
            f"the service {shown(service)} cannot be sent to workers ({describe(error)}): make it a frozen dataclass "
            "of plain values, in a separate module"
        ) from None
    if not is_same:
        raise ServiceError(f"the service {shown(service)} does not equal a copy of itself: make it a frozen dataclass")


# -- fields of a message by name ---------------------------------------------------------------------------------------

_FIELDS = ("id", "queue", "correlation_id", "application_key", "client_id", "user_code", "priority", "group")
_HEADER = "header."

FIELD_NAMES = ", ".join([*_FIELDS, f"{_HEADER}NAME"])
"""The names of all fields, for error texts."""


def is_field(name: str) -> bool:
    """Return whether a message can have a field of this name."""
    return name in _FIELDS or name.startswith(_HEADER)


def field_of(message: Message, name: str) -> str | None:
    """Return a field as text, or None if the message does not have the field."""
    found = message.headers.get(name[len(_HEADER) :]) if name.startswith(_HEADER) else getattr(message, name)
    return None if found is None else str(found)
