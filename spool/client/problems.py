"""Errors in HTTP: the server describes an error as ``application/problem+json``, and the client raises it again.

Source: RFC 9457. ``error`` is the name of the error's class, and ``diagnostic`` is Tuxedo's name for the condition.
"""

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from spool import errors
from spool.errors import ArgumentError, InvalidArgument, ProtocolError, SpoolError, SystemFailure
from spool.model.objects import CODEC, message_object, message_of

PROBLEM: Final = "application/problem+json"
RETRY_SECONDS: Final = 5
"""The seconds after which a client may repeat a call that a full queue or a busy server has refused."""
_LONGEST_TEXT, _LONGEST_NOTE, _MOST_NOTES = 2 << 10, 512, 4


class Unreachable(SystemFailure):
    """The server cannot be reached, or ended during the call. ``is_sent``: whether the call may have taken effect."""

    def __init__(self, text: str, *, is_sent: bool = False) -> None:
        super().__init__(text)
        self.is_sent = is_sent


class TooLarge(InvalidArgument):
    """A request is larger than its limit."""


class TooMany(SystemFailure):
    """The server has no room for a further call of this kind, or of this client."""


class NotByHTTP(ProtocolError, AttributeError):
    """A space by HTTP does not have this call."""


_KINDS = {
    name: kind for name, kind in {**vars(errors), **globals()}.items()
    if isinstance(kind, type) and issubclass(kind, SpoolError)
}  # fmt: skip
_STATUSES: dict[type, int] = {
    errors.AccessDenied: 403, errors.QueueNotFound: 404, TooLarge: 413, errors.BadMessageId: 410,
    errors.UnknownCodec: 415, InvalidArgument: 400, errors.Full: 507, TooMany: 429, errors.Empty: 504,
    errors.RequestFailed: 502, errors.MessageInUse: 409, errors.TransactionRolledBack: 409, ProtocolError: 409,
    errors.CommitUnknown: 503, errors.DiskFailure: 503, errors.NotOpen: 503, SystemFailure: 503, SpoolError: 409,
    OSError: 503,
}  # fmt: skip


def status_of(error: Exception) -> int:
    """Return the status of an error's answer; 500 for an error that no call may raise."""
    return next((_STATUSES[kind] for kind in type(error).__mro__ if kind in _STATUSES), 500)


def problem_of(error: Exception, status: int, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the members of an error's answer. ``names``: the client's names for arguments, for the text."""
    kinds = [kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _KINDS]
    text = error.told(names) if isinstance(error, ArgumentError) else str(error)
    found: dict[str, Any] = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": (text or type(error).__name__)[:_LONGEST_TEXT],
        "error": kinds[0] if kinds else type(error).__name__,
    }
    if isinstance(error, SpoolError):
        found["diagnostic"] = error.diagnostic
    for name in ("queue", "message_id", "correlation_id", "ids"):
        if value := getattr(error, name, None):
            found[name] = value
    if (reply := getattr(error, "reply", None)) is not None:
        found["reply"] = {CODEC: reply.codec, **message_object(reply, value=False, compact=True)}
    if notes := [note[:_LONGEST_NOTE] for note in getattr(error, "__notes__", ())][:_MOST_NOTES]:
        found["notes"] = notes
    return found


def error_of(status: int, body: bytes) -> SpoolError:
    """Return the error that an answer describes; for an answer that describes none, a SystemFailure."""
    try:
        told = json.loads(body)
        text, name = str(told["detail"]), str(told["error"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return SystemFailure(f"the server answered {status}, not as a server of spaces does: is the address right?")
    kind = _KINDS.get(name, SystemFailure)
    found: SpoolError = kind(text)
    for member in ("queue", "message_id", "correlation_id", "ids"):
        if member in told:
            setattr(found, member, told[member])
    if isinstance(found, errors.RequestFailed) and "reply" in told:
        found.reply = message_of(told["reply"], undecoded=True)
    for note in told.get("notes", ()):
        found.add_note(str(note))
    return found
