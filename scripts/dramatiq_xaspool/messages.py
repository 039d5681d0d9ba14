"""The messages of Dramatiq in the bodies of a space's messages.

Dramatiq's worker trusts the fields of a message: a thread of the worker would end at a wrong one. So each body is
checked here before a worker gets it.
"""

import math
from typing import Any

import dramatiq
from dramatiq.errors import DecodeError

import spool
from dramatiq_xaspool.names import one_line

_LATEST_SECONDS = 1e9  # from now: a later time is not kept, because a space does not allow every number
_TYPES: dict[str, Any] = {
    "actor_name": str,
    "kwargs": dict,
    "options": dict,
    "message_id": str,
    "message_timestamp": (int, float),
}


class Foreign(Exception):
    """A body that is no message of Dramatiq. The text is the reason."""


def decode(claimed: spool.Message, queue: str) -> dramatiq.Message[Any]:
    """Return the message in a body. ``queue``: Dramatiq's name of its queue. Raises Foreign.

    If the message names another queue, an administrator has moved it: its actor runs with this queue.
    """
    body = claimed.body
    try:
        message: dramatiq.Message[Any] = dramatiq.Message.decode(body.encode() if isinstance(body, str) else body)
    except DecodeError as error:
        raise Foreign(one_line(error.error)) from error
    except UnicodeEncodeError as error:
        raise Foreign(one_line(error)) from error
    for field, types in _TYPES.items():
        value = getattr(message, field)
        if not isinstance(value, types) or isinstance(value, bool):
            raise Foreign(f"its {field} is {type(value).__name__} {str(value)[:100]!r}")
    if not _are_exceptions(throws := message.options.get("throws")):
        raise Foreign(f"its option throws is {str(throws)[:100]!r}, which is no class of exceptions")
    return message if message.queue_name == queue else message.copy(queue_name=queue)


def pop_eta(message: dramatiq.Message[Any], now: float) -> float | None:
    """Remove the option ``eta``, with which another broker delays a message. Return the time in seconds since the
    epoch, if it is later than ``now``."""
    eta = message.options.pop("eta", None)
    if not isinstance(eta, int | float) or not math.isfinite(eta) or eta / 1000 <= now:
        return None
    return min(eta / 1000, now + _LATEST_SECONDS)


def _are_exceptions(throws: Any) -> bool:
    """Return whether a value can be the option ``throws``. (An encoder such as pickle can carry classes.)"""
    found = throws if isinstance(throws, tuple) else (throws,) if throws else ()
    return all(isinstance(each, type) and issubclass(each, BaseException) for each in found)
