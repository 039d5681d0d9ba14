"""The options of puts, gets, queues, spaces and filters: names and types, for signatures, type checkers and editors.

``message.PUT_OPTIONS`` and ``settings`` list the meaning, the default and the check of each option. The docstrings of
the classes below are generated from these lists.
"""

import enum
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Final, Literal, TypeAlias, TypedDict

from spool.model.checks import Option
from spool.model.message import PUT_OPTIONS
from spool.model.settings import QUEUE_OPTIONS, SPACE_OPTIONS

_UNITS = {"TIME": "seconds", "SIZE": "bytes", "MOMENT": "seconds since the epoch, or a datetime with a time zone"}


class Default(enum.Enum):
    """The default of an argument for which the value None has a separate meaning."""

    JOIN = "JOIN"
    KEEP = "KEEP"

    def __repr__(self) -> str:
        return self.value


JOIN: Final = Default.JOIN  # use the caller's current transaction, if it exists
KEEP: Final = Default.KEEP  # keep the message's present value
Join: TypeAlias = Literal[Default.JOIN]
Keep: TypeAlias = Literal[Default.KEEP]


class PutOptions(TypedDict, total=False):
    """Options of ``put``, ``put_many`` and ``submit``."""

    priority: int
    not_before: float | datetime | None
    delay: float | None
    expires_at: float | datetime | None
    time_to_live: float | None
    correlation_id: str | None
    reply_queue: str | None
    failure_queue: str | None
    user_code: int
    client_id: str | None
    application_key: str | None
    headers: Mapping[str, str] | None
    content_type: str | None
    top: bool
    before: str | None
    group: str | None
    deduplication_key: str | None


class GetOptions(TypedDict, total=False):
    """Options of ``get`` and ``get_many``.

    timeout: seconds to wait for a message; 0, the default, does not wait, and None waits for ever.
    message_id: take the message with this id, out of order.
    correlation_id: take the first message with this correlation id, out of order; excludes ``message_id``.
    """

    timeout: float | None
    message_id: str | None
    correlation_id: str | None


class QueueOptions(TypedDict, total=False):
    """Options of ``create_queue`` and ``change_queue``, and the attributes of a ``QueueConfig``.

    If ``create_queue`` does not get an option, the option has the space's default for queues; if the space has no
    default, the default below. ``change_queue`` changes only the options that it gets. The value None sets an option
    back to the default.
    """

    role: Literal["work", "error", "state"] | None
    order: "str | list[str] | tuple[str, ...] | None"
    out_of_order: "str | list[str] | tuple[str, ...] | None"
    retries: int | None
    deaths: int | None
    retry_delay: float | None
    retry_delay_max: float | None
    first_delay: float | None
    time_to_live: float | None
    error_queue: str | None
    reply_queue: str | None
    failure_queue: str | None
    on_expiry: Literal["error", "drop"] | None
    ordered: bool | None
    max_messages: int | None
    max_bytes: int | None
    deduplication_window: float | None
    capacity_high: str | None
    capacity_low: str | None
    capacity_command: str | None
    capacity_timeout: float | None
    durability: Literal["flush", "none"] | None
    drop_types: Mapping[str, str] | None
    drop_ignore: "str | list[str] | tuple[str, ...] | None"
    drop_settle: float | None
    drop_marker: str | None


class SpaceOptions(TypedDict, total=False):
    """Options of ``create``, and the attributes of a ``SpaceConfig``.

    ``defaults`` are options of queues (``QueueOptions``). A default applies to all queues that do not set the option.
    """

    defaults: QueueOptions
    max_messages: int | None
    max_bytes: int | None
    max_body_bytes: int
    max_headers: int
    max_headers_bytes: int
    drop_settle: float
    sync_method: Literal["auto", "ordered", "strict"]
    network_file_system: str | None
    mirror: str | None
    monitor_group: str | None


class MessageFilters(TypedDict, total=False):
    """Filters of ``browse``, ``entries``, ``purge`` and ``redrive``: a message matches if it passes all given filters.

    message_id: the id of the message, or a collection of ids that includes the id of the message.
    correlation_id: the correlation id of the message.
    headers: headers that the message has; the message may have further headers.
    reason: a part of the message's ``failure_reason``; upper and lower case differ.
    since: the message's time is this time or later. The time of a message is its ``failed_at``, or its ``enqueued_at``
        if no attempt has failed. Give seconds since the epoch, or a datetime with a time zone.
    until: the message's time is earlier than this time.
    older_than: a number of seconds; the message's time is longer ago than this number.
    """

    message_id: str | Collection[str] | None
    correlation_id: str | None
    headers: Mapping[str, str] | None
    reason: str | None
    since: float | datetime | None
    until: float | datetime | None
    older_than: float | None


def _with_options(doc: str | None, options: Mapping[str, Option]) -> str:
    """Return the documentation of a class of options with a paragraph for each option."""
    lines = []
    for name, (check, meaning, default) in options.items():
        unit = f"{_UNITS[check.metavar]}; " if check.metavar in _UNITS else ""
        meaning = meaning.rstrip(".").replace("{", "").replace("}", "")
        lines.append(f"    {name}: {meaning} ({unit}default {default!r}).")
    return "\n".join([(doc or "").rstrip(), "", *lines, ""])


PutOptions.__doc__ = _with_options(PutOptions.__doc__, PUT_OPTIONS)
QueueOptions.__doc__ = _with_options(QueueOptions.__doc__, QUEUE_OPTIONS)
SpaceOptions.__doc__ = _with_options(SpaceOptions.__doc__, SPACE_OPTIONS)
