"""Bodies as text, for a DataFrame. Values that are neither text nor bytes become JSON."""

import base64
import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql.functions import udf

from spool.model import codecs

if TYPE_CHECKING:
    from pyspark.sql import Column


def decode(body: "Column | str" = "body", codec: "Column | str" = "codec") -> "Column":
    """Return a column with the bodies as text. Text is unchanged, other values become JSON, and bytes become null.

    Spark's own functions read the JSON, e.g. get_json_object. In the JSON, a time is text in ISO 8601, bytes are
    base64, and the keys of a map are text.

    Args:
        body, codec: the columns of a read by ``format("spool")``, or their names.

    The query fails with ``UnknownCodec`` if a body has a custom codec that is not registered in Spark's Python workers.
    """
    return udf(text_of, "string", useArrow=True)(body, codec)


def text_of(raw: bytes, name: str | None) -> str | None:
    """Return one body as text. ``name``: the name of the body's codec; None for bytes."""
    if name is None:
        return None
    if name == "json":
        return bytes(raw).decode()
    value = codecs.decode(bytes(raw), name)
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, default=_as_text, ensure_ascii=False)
    except TypeError:  # a map has keys that JSON refuses
        return json.dumps(_with_text_keys(value), default=_as_text, ensure_ascii=False)


def _as_text(value: object) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _with_text_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key if isinstance(key, str) else _as_text(key): _with_text_keys(inner) for key, inner in value.items()}
    return [_with_text_keys(inner) for inner in value] if isinstance(value, list | tuple) else value
