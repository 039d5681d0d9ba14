"""The columns of a row with a message, for DataFrames of Spark and for Parquet files."""

import enum
from collections.abc import Mapping


class Kind(enum.Enum):
    """The kind of a column's values."""

    TEXT = enum.auto()
    BYTES = enum.auto()
    INT = enum.auto()
    LONG = enum.auto()
    TIME = enum.auto()
    HEADERS = enum.auto()


BODY = "body"
COLUMN_KINDS: Mapping[str, tuple[Kind, bool]] = {
    "id": (Kind.TEXT, False),
    "queue": (Kind.TEXT, False),
    "number": (Kind.LONG, False),
    "ordinal": (Kind.INT, False),
    BODY: (Kind.BYTES, False),
    "body_bytes": (Kind.LONG, False),
    "codec": (Kind.TEXT, True),
    "content_type": (Kind.TEXT, False),
    "priority": (Kind.INT, False),
    "enqueued_at": (Kind.TIME, False),
    "not_before": (Kind.TIME, True),
    "expires_at": (Kind.TIME, True),
    "correlation_id": (Kind.TEXT, True),
    "reply_queue": (Kind.TEXT, True),
    "failure_queue": (Kind.TEXT, True),
    "user_code": (Kind.LONG, False),
    "client_id": (Kind.TEXT, True),
    "application_key": (Kind.TEXT, True),
    "headers": (Kind.HEADERS, False),
    "group": (Kind.TEXT, True),
    "attempts": (Kind.INT, False),
    "deaths": (Kind.INT, False),
    "origin_queue": (Kind.TEXT, True),
    "origin_attempts": (Kind.INT, False),
    "failure_reason": (Kind.TEXT, True),
    "failed_at": (Kind.TIME, True),
}
"""The kind of each column, and whether the column may be null.

Except for five columns, the names and meanings are the same as in ``spool.Message``. ``number`` and ``ordinal`` are the
position of the message. ``body`` is the stored body, and ``body_bytes`` is its size. ``codec`` names the encoding of
the body; null means bytes.
"""
