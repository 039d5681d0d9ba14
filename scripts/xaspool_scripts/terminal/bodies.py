"""Bodies on the terminal and in JSON. ``spool.watch.bodies`` converts bodies to text."""

import json
from base64 import b64encode
from typing import TYPE_CHECKING, Any

import click

from xaspool_scripts.terminal.wording import on_terminal, printable

if TYPE_CHECKING:
    from spool.model.message import Message

JSON_BYTES = 1 << 16  # the most bytes of a body in JSON, unless the user wants the whole body
_MAX_DECODED = 1 << 20  # bytes; a larger body has no value in JSON


def json_value(message: "Message") -> dict[str, Any]:
    """Return ``{"value": …}`` if the body is JSON or msgpack, and JSON can express its value. Otherwise return {}.

    A consumer in Python gets the same value.
    """
    from spool.errors import SpoolError
    from spool.model import codecs

    raw, name = message.body, message.codec or codecs.codec_of(message.content_type)
    if name not in ("json", "msgpack") or len(raw) > _MAX_DECODED:
        return {}
    try:
        decoded = codecs.decode(raw, name)
        json.dumps(decoded, allow_nan=False)
    except (SpoolError, TypeError, ValueError, RecursionError):
        return {}
    return {"value": decoded}


def message_object(
    message: "Message", *, body: bool = True, body_bytes: int | None = None, most: int | None = None
) -> dict[str, Any]:
    """Return a message as an object for JSON.

    `body_encoding`: whether the body is text or base64. `value`: the decoded body, if JSON has such a value.

    Args:
        body: whether the object has the body.
        body_bytes: the size of the whole body, if the body of `message` is only its beginning.
        most: the most bytes of the body; None means all bytes. `body_cut` is true if the object has only the beginning.
    """
    fields: dict[str, Any] = {}
    for name, field in message.as_dict().items():
        if name != "body":
            fields[name] = field
        elif body:
            raw: bytes = message.body if most is None else message.body[:most]
            size = len(message.body) if body_bytes is None else body_bytes
            is_cut = len(raw) < size
            fields |= as_json_fields("body", raw, cut=is_cut)
            fields |= {"body_bytes": size, "body_cut": is_cut} | ({} if is_cut else json_value(message))
    return fields


def as_json_fields(name: str, raw: bytes, *, cut: bool = False) -> dict[str, str]:
    """Return the bytes as two fields for JSON. The field `name` has the text if the bytes are UTF-8, and base64
    otherwise. The field `name`_encoding is "utf-8" or "base64". `cut`: whether the last character may be incomplete."""
    from spool.watch.bodies import text_of

    text, encoding = text_of(raw, is_cut=cut), "utf-8"
    if text is None:
        text, encoding = b64encode(raw).decode("ascii"), "base64"
    return {name: text, f"{name}_encoding": encoding}


def write(message: "Message", body_bytes: int) -> str:
    """Print the body, in colours on a terminal. Return a description of the printed part, or "" if the whole body was
    printed. ``body_bytes``: the size of the whole body."""
    from spool.watch.bodies import body_view

    view = body_view(message, body_bytes)
    text = printable(view.text, keep="\n\t") + (" …" if view.note else "")
    if view.kind in ("JSON", "msgpack") and on_terminal():
        from rich.console import Console
        from rich.highlighter import JSONHighlighter

        Console().print(JSONHighlighter()(text), soft_wrap=True)
    else:
        click.echo(text)
    return view.note
