"""Bodies on the terminal. ``spool.watch.body_text`` converts bodies to text."""

from typing import TYPE_CHECKING

import click

from xaspool_scripts.terminal.wording import on_terminal, printable

if TYPE_CHECKING:
    from spool.model.message import Message

JSON_BYTES = 1 << 16  # the most bytes of a body in JSON, unless the user wants the whole body


def write(message: "Message", body_bytes: int) -> str:
    """Print the body, in colours on a terminal. Return a description of the printed part, or "" if the whole body was
    printed. ``body_bytes``: the size of the whole body."""
    from spool.watch.body_text import body_view

    view = body_view(message, body_bytes)
    text = printable(view.text, keep="\n\t") + (" …" if view.note else "")
    if view.kind in ("JSON", "msgpack") and on_terminal():
        from rich.console import Console
        from rich.highlighter import JSONHighlighter

        Console().print(JSONHighlighter()(text), soft_wrap=True)
    else:
        click.echo(text)
    return view.note
