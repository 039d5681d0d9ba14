"""Dispositions: the results with which a hook or a translation decides about its message.

The names are common in integration engines: continue, send, kill, error.
"""

import enum
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias, TypedDict, Unpack

from spool.model.text import shown


class Kept(enum.Enum):
    """The mark for a body that does not change."""

    BODY = "the body that it has"


BODY: Final = Kept.BODY


class Changes(TypedDict, total=False):
    """The control fields that a disposition changes. A value of None removes a field.

    The fields have the same names as in ``spool.PutOptions``.

    headers: headers to merge into the message's headers. A value of None removes a header.

    No disposition changes the correlation id, because all messages of a chain share it.
    """

    priority: int | None
    not_before: float | None
    delay: float | None
    expires_at: float | None
    time_to_live: float | None
    reply_queue: str | None
    failure_queue: str | None
    user_code: int | None
    client_id: str | None
    application_key: str | None
    headers: Mapping[str, str | None] | None
    content_type: str | None
    group: str | None


class Continue:
    """The message goes on to the next hook, and after the last hook to the next stage. The message may be changed."""

    def __init__(self, body: Any = BODY, **changes: Unpack[Changes]) -> None:
        self.body, self.changes = body, changes


class Send:
    """The message goes straight to a destination, without further hooks, translations and routes."""

    def __init__(self, destination: str, body: Any = BODY, **changes: Unpack[Changes]) -> None:
        self.destination, self.body, self.changes = destination, body, changes


class Kill:
    """The message is dropped. The summary has the reason, if the hook gives one."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason


class Error:
    """The message fails for good; in a translation, the route fails.

    If the message names a failure queue, a reply is put into this queue.
    """

    def __init__(self, reason: str, reply: object = None) -> None:
        self.reason, self.reply = reason, reply


Disposition: TypeAlias = Continue | Send | Kill | Error


def dispositions_of(value: Any) -> list[Disposition]:
    """Return the dispositions of a hook's result: one disposition, several, or None for ``Continue()``.

    Raises:
        TypeError: the result is of another type.
    """
    if value is None:
        return [Continue()]
    if isinstance(value, Disposition):
        return [value]
    is_list = isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
    several = list(value) if is_list else [value]
    for one in several:
        if not isinstance(one, Disposition):
            raise TypeError(f"it returns Continue, Send, Kill or Error, a list of them, or None, not {shown(one)}")
    return several
