"""Fields of a message by name, for what a route makes of them: names of files, keys of records."""

from collections.abc import Callable

from spool.model.message import Message

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

NAMES = ", ".join([*_FIELDS, f"{_HEADER}NAME"])
"""The fields that there are, for errors."""


def is_field(name: str) -> bool:
    """Return whether a message can have such a field."""
    return name in _FIELDS or name.startswith(_HEADER)


def field_of(message: Message, name: str) -> str | None:
    """Return a field as text; None if the message has none."""
    found = message.headers.get(name[len(_HEADER) :]) if name.startswith(_HEADER) else _FIELDS[name](message)
    return None if found is None else str(found)
