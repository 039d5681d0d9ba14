"""What a hook or a translation returns: what becomes of its message.

The words are those of integration engines: continue, send, kill, error.
"""

import enum
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, TypeAlias, TypedDict, Unpack

from spool.model.text import shown


class Kept(enum.Enum):
    """Stands for the body that the message has."""

    BODY = "the body that it has"


BODY: Final = Kept.BODY
KeptBody: TypeAlias = Literal[Kept.BODY]


class Changes(TypedDict, total=False):
    """Control fields that a disposition changes, as in ``spool.PutOptions``; None takes one away.

    headers: are added to those that the message has; one whose value is None is taken away.

    The correlation id is not among them: all messages of a chain share it.
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
    """The message goes on, as it is or changed: to the next hook, and then to the next stage."""

    def __init__(self, body: Any = BODY, **changes: Unpack[Changes]) -> None:
        self.body, self.changes = body, changes


class Send:
    """The message goes straight to a destination, past all that lies between: other hooks, translation, routes."""

    def __init__(self, destination: str, body: Any = BODY, **changes: Unpack[Changes]) -> None:
        self.destination, self.body, self.changes = destination, body, changes


class Kill:
    """The message ends here: it is dropped. The summary tells the reason, if there is one."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason


class Error:
    """The message fails for good; of a translation, its route.

    A reply goes to the message's failure queue, if it names one.
    """

    def __init__(self, reason: str, reply: object = None) -> None:
        self.reason, self.reply = reason, reply


Disposition: TypeAlias = Continue | Send | Kill | Error


def dispositions_of(value: object) -> list[Disposition]:
    """Return what a hook returned, as a list: one disposition, several, or None for a message that goes on as it is.

    Raises:
        TypeError: it is something else.
    """
    if value is None:
        return [Continue()]
    if isinstance(value, Disposition):
        return [value]
    several: list[Any] = (
        list(value) if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping) else [value]
    )
    for one in several:
        if not isinstance(one, Disposition):
            raise TypeError(f"it returns Continue, Send, Kill or Error, a list of them, or None, not {shown(one)}")
    return several
