"""The columns of a row with a message, for DataFrames of Spark and for Parquet files."""

import enum
from collections.abc import Mapping


class ColumnKind(enum.Enum):
    """The kind of a column's values."""

    TEXT = enum.auto()
    BYTES = enum.auto()
    INT = enum.auto()
    LONG = enum.auto()
    TIME = enum.auto()
    HEADERS = enum.auto()


BODY = "body"
COLUMN_KINDS: Mapping[str, tuple[ColumnKind, bool]] = {
    "id": (ColumnKind.TEXT, False),
    "queue": (ColumnKind.TEXT, False),
    "number": (ColumnKind.LONG, False),
    "ordinal": (ColumnKind.INT, False),
    BODY: (ColumnKind.BYTES, False),
    "body_bytes": (ColumnKind.LONG, False),
    "codec": (ColumnKind.TEXT, True),
    "content_type": (ColumnKind.TEXT, False),
    "priority": (ColumnKind.INT, False),
    "enqueued_at": (ColumnKind.TIME, False),
    "not_before": (ColumnKind.TIME, True),
    "expires_at": (ColumnKind.TIME, True),
    "correlation_id": (ColumnKind.TEXT, True),
    "reply_queue": (ColumnKind.TEXT, True),
    "failure_queue": (ColumnKind.TEXT, True),
    "user_code": (ColumnKind.LONG, False),
    "client_id": (ColumnKind.TEXT, True),
    "application_key": (ColumnKind.TEXT, True),
    "headers": (ColumnKind.HEADERS, False),
    "group": (ColumnKind.TEXT, True),
    "attempts": (ColumnKind.INT, False),
    "deaths": (ColumnKind.INT, False),
    "origin_queue": (ColumnKind.TEXT, True),
    "origin_attempts": (ColumnKind.INT, False),
    "failure_reason": (ColumnKind.TEXT, True),
    "failed_at": (ColumnKind.TIME, True),
}
"""The kind of each column, and whether the column may be null.

Except for five columns, the names and meanings are the same as in ``spool.Message``. ``number`` and ``ordinal`` are the
position of the message. ``body`` is the stored body, and ``body_bytes`` is its size. ``codec`` names the encoding of
the body; null means bytes.
"""
