"""Print the messages of a queue as a table: fitted to a terminal, or as aligned text."""

import time
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import click

from xaspool_scripts import bodies
from xaspool_scripts.output import aligned, moment, show
from xaspool_scripts.wording import age, on_terminal, printable

if TYPE_CHECKING:
    from spool import Holder, Message, QueueEntry

_COLUMNS = ("id", "state", "priority", "attempts", "bytes", "enqueued", "waits for", "correlation id", "body")
_WIDTHS = (32, 8, 8, 8, 10, 25, 25, 14, 0)
_RIGHT = (False, False, True, True, True, False, False, False, False)
_DRAWN_AT_ONCE = 500

# On a terminal: (column, width, least width of the terminal for it); the body gets the rest.
_DRAWN = (
    ("id", 32, 0), ("state", 8, 0), ("age", 6, 0), ("attempts", 8, 100), ("bytes", 9, 120), ("waits for", 22, 100),
)  # fmt: skip
_BORDERS = 3


def write(entries: "Iterator[QueueEntry]") -> int:
    """Print all entries, each of which has a message; return their number."""
    if on_terminal():
        return _draw(entries)
    count = 0
    for entry in entries:
        message = entry.message
        assert message is not None
        if not count:
            click.echo(aligned(_COLUMNS, _WIDTHS, _RIGHT))
        cells = (
            message.id, entry.state, message.priority, message.attempts, len(message.body), moment(message.enqueued_at),
            _waits_for(entry, message), message.correlation_id,
        )  # fmt: skip
        click.echo(aligned([*map(show, cells), bodies.piece(message)], _WIDTHS, _RIGHT))
        count += 1
    return count


def _waits_for(entry: "QueueEntry", message: "Message") -> str | None:
    """Return the cause of a message's wait: its holder, or the time when it is due."""
    if entry.holder is not None:
        return holder_name(entry.holder)
    return moment(message.not_before)


def holder_name(holder: "Holder") -> str:
    """Describe a holder in a few words."""
    if holder.state == "in doubt":
        return f"transaction {holder.xid}"
    if holder.pid is None:
        return "a program"
    return f"process {holder.pid} ({printable(holder.program or '')})"


def _draw(entries: "Iterator[QueueEntry]") -> int:
    """Print one table for some hundred entries at a time: a long queue then needs little memory."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    columns = [(name, width) for name, width, least in _DRAWN if console.width >= least]
    left = console.width - sum(width + _BORDERS for _, width in columns) - _BORDERS - 1
    count = 0
    while batch := list(islice(entries, _DRAWN_AT_ONCE)):
        drawn = Table(header_style="bold")
        for name, width in columns:
            drawn.add_column(name, width=width, justify="right" if name in ("attempts", "bytes") else "left")
        drawn.add_column("body", width=max(8, left), no_wrap=True, overflow="ellipsis")
        for entry in batch:
            cells = _cells(entry)
            last = cells.pop("body")
            if cells["waits for"] and "waits for" not in dict(columns):
                last = f"({cells['waits for']}) {last}"
            drawn.add_row(*(Text(cells[name]) for name, _ in columns), Text(last))
        console.print(drawn)
        count += len(batch)
    return count


def _cells(entry: "QueueEntry") -> dict[str, str]:
    message = entry.message
    assert message is not None
    now = time.time()
    due = message.not_before
    return {
        "id": message.id,
        "state": entry.state,
        "age": age(max(0.0, now - message.enqueued_at)),
        "attempts": show(message.attempts),
        "bytes": f"{len(message.body):,}",
        "waits for": _waits_in_words(entry, due, now),
        "body": bodies.piece(message),
    }


def _waits_in_words(entry: "QueueEntry", due: float | None, now: float) -> str:
    if entry.holder is not None:
        return holder_name(entry.holder)
    return f"due in {age(due - now)}" if due is not None and due > now else ""
