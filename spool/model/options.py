"""The options of puts, queues, spaces and filters: names and types, for signatures, type checkers and editors.

This is the one place that tells what each option means, in which unit, and what it is if it is left out. What a value
may be is checked by ``message`` (puts), ``settings`` (queues and spaces) and ``browse`` (filters).
"""

import enum
from collections.abc import Mapping
from datetime import datetime
from typing import Final, Literal, TypeAlias, TypedDict


class Default(enum.Enum):
    """What an argument is if it is left out, where None means something else."""

    JOIN = "JOIN"
    KEEP = "KEEP"

    def __repr__(self) -> str:
        return self.value


JOIN: Final = Default.JOIN  # the caller's transaction, if it is in one
KEEP: Final = Default.KEEP  # the value that a message has
Join: TypeAlias = Literal[Default.JOIN]
Keep: TypeAlias = Literal[Default.KEEP]


class PutOptions(TypedDict, total=False):
    """Options of ``put``, ``put_many`` and ``submit``.

    priority: 1 to 100, the higher first in a queue that orders by priority; 50 if left out.
    not_before: the message may be taken from then on: seconds since the epoch, or a datetime with a time zone; at once
        if left out.
    delay: the same in seconds from the commit of the put; excludes ``not_before``. The queue's ``first_delay`` holds if
        neither is given.
    expires_at: the message is not delivered any more from then on: seconds since the epoch, or a datetime with a time
        zone; never if left out.
    time_to_live: the same in seconds from the commit of the put; excludes ``expires_at``.
    correlation_id: a text of 1 to 255 characters that ties answers to requests; ``get`` can ask for it.
    reply_queue: the queue for the answer of a service; the queue's own ``reply_queue`` if left out.
    failure_queue: the queue for the reply of a service that rejects the message; the queue's own if left out.
    user_code: a whole number of 64 bits with a sign, for the application's use; 0 if left out.
    client_id: a text of 1 to 255 characters that names the sender.
    application_key: a text of 1 to 255 characters, for the application's use.
    headers: names and texts, by default at most 64, 8,192 bytes together (``SpaceOptions``).
    content_type: the media type of the body, e.g. "application/json", which makes a body that is not bytes or str JSON;
        by the body's Python type if left out.
    top: True puts the message before all others; the queue must allow it (``out_of_order``).
    before: the id of a message of the queue to stand before; excludes ``top``; the queue must allow it.
    group: a text of 1 to 255 characters; messages of one group are handled one after the other, in their order.
    deduplication_key: a text of 1 to 255 characters; a put with the key of an earlier one puts nothing and returns the
        id of that, during the queue's ``deduplication_window``. The id is then a ``spool.MessageId``, which tells.
    """

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

    What is left out is the space's default for queues, or else the default that is given here. For ``change_queue`` it
    stays as it is, and None sets it back to that default.

    order: the criteria, most significant first: "priority" (the higher first) and "time" (the earlier first), each at
        most once, then "fifo" or "lifo"; ("fifo",) by default.
    out_of_order: what a put may ask for: "top", "before", both or none; () by default.
    retries: how often a message may come back after a rollback, before it moves to ``error_queue``, or is dropped with
        a warning if there is none; None, the default: for ever.
    retry_delay: seconds before the next attempt; 1 for a queue that is made now, 0 for one that stands in
        ``space.toml`` without it.
    retry_delay_max: seconds; the delay doubles with each attempt up to this; None: it does not grow. For a queue that
        is made now 300, or ``retry_delay`` if that is more; None for one that stands in ``space.toml`` without it.
    first_delay: seconds before the first attempt, unless the put says when; 0 by default.
    error_queue: the name of the queue for messages whose attempts are used up, that were rejected, or are past their
        time; None by default.
    reply_queue: the name of the queue for answers, for messages that name none; None by default.
    failure_queue: the name of the queue for replies of services that reject, for messages that name none; None by
        default.
    on_expiry: a message past its time moves to the error queue ("error", the default), if there is one, or is dropped
        ("drop").
    ordered: while a transaction holds a message of the queue, no other transaction can take the next one; False by
        default.
    max_messages: how many messages the queue holds at most; None, the default: no limit.
    max_bytes: how many bytes of bodies the queue holds at most; None, the default: no limit.
    deduplication_window: seconds for which a put with the ``deduplication_key`` of an earlier put adds no message;
        300 by default.
    capacity_high: a mark: "80%" of the queue's limit, "5000 messages" or "1 GiB"; None, the default: none.
    capacity_low: the mark to which the queue must fall before ``capacity_high`` counts again; None, the default:
        below the high one.
    capacity_command: what the shell is given to run when the queue reaches ``capacity_high``; None by default.
    capacity_timeout: seconds after which that command is ended; 60 by default.
    durability: "flush", the default: what was put, taken or moved is on the disk when the call returns. "none": it is
        there seconds later; until then a power cut may lose it, the death of a process does not.
    drop_types: what files of these suffixes in ``drop/`` become, by a content type or "bytes", e.g.
        ``{".csv": "text/csv", ".json": "bytes"}``; {} by default: ".json" a JSON value, ".txt" a text, others bytes.
    """

    order: "str | list[str] | tuple[str, ...] | None"
    out_of_order: "str | list[str] | tuple[str, ...] | None"
    retries: int | None
    retry_delay: float | None
    retry_delay_max: float | None
    first_delay: float | None
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


class SpaceOptions(TypedDict, total=False):
    """Options of ``create``, and the attributes of a ``SpaceConfig``.

    defaults: options of queues (``QueueOptions``), for those that do not set their own; none by default.
    max_messages: how many messages all queues hold together at most; None, the default: no limit.
    max_bytes: how many bytes of bodies all queues hold together at most; None, the default: no limit.
    max_body_bytes: the largest body in bytes, up to 4 GiB - 1; 268,435,456 (256 MiB) by default.
    max_headers: the most headers of a message; 64 by default.
    max_headers_bytes: the most bytes of all names and values of a message's headers together; 8,192 by default.
    drop_settle: seconds; a file in ``drop/`` that was written in place is taken once it has not changed for so long,
        where the intake may not ask the kernel whether a program still writes it; 60 by default.
    sync_method: how a commit becomes durable: "ordered" relies on one ``fsync`` of the commit's file; "strict" flushes
        the directory as well; "auto", the default, chooses by the file system.
    network_file_system: the kind of network file system, by name, e.g. "nfs", where the space lies on one; None, the
        default, refuses them.
    mirror: the absolute path of a directory, best on another disk, in which every commit is durable, too; None, the
        default: no mirror.
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


class MessageFilters(TypedDict, total=False):
    """Filters of ``browse``, ``purge`` and ``redrive``: a message is meant if all of these hold; any if none is given.

    message_id: its id is this one.
    correlation_id: its correlation id is this one.
    headers: it has at least these headers.
    older_than: its put was committed more than this many seconds ago.
    """

    message_id: str | None
    correlation_id: str | None
    headers: Mapping[str, str] | None
    older_than: float | None
