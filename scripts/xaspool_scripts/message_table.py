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
    from spool import Holder, QueueEntry

# In text: (column, width, whether it is right-aligned).
_WRITTEN = (
    ("id", 32, False), ("state", 8, False), ("priority", 8, True), ("attempts", 8, True), ("bytes", 10, True),
    ("enqueued", 25, False), ("waits for", 25, False), ("correlation id", 14, False), ("body", 0, False),
)  # fmt: skip
# On a terminal: (column, width, least width of the terminal for it); the body gets the rest.
_DRAWN = (
    ("id", 32, 0), ("state", 8, 0), ("age", 6, 0), ("attempts", 8, 100), ("bytes", 9, 120), ("waits for", 22, 100),
)  # fmt: skip
_DRAWN_AT_ONCE = 500
_BORDERS = 3


def write(entries: "Iterator[QueueEntry]") -> int:
    """Print all entries, each of which has a message; return their number."""
    if on_terminal():
        return _draw(entries)
    names, widths, right = zip(*_WRITTEN, strict=True)
    count = 0
    for entry in entries:
        if not count:
            click.echo(aligned(names, widths, right))
        cells = _cells(entry, drawn=False)
        click.echo(aligned([cells[name] for name in names], widths, right))
        count += 1
    return count


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
            cells = _cells(entry, drawn=True)
            if cells["waits for"] and "waits for" not in dict(columns):
                cells["body"] = f"({cells['waits for']}) {cells['body']}"
            drawn.add_row(*(Text(cells[name]) for name, _ in columns), Text(cells["body"]))
        console.print(drawn)
        count += len(batch)
    return count


def _cells(entry: "QueueEntry", *, drawn: bool) -> dict[str, str]:
    message = entry.message
    assert message is not None
    now, due = time.time(), message.not_before
    if entry.holder is not None:
        waits = show(holder_name(entry.holder))
    elif drawn:
        waits = f"due in {age(due - now)}" if due is not None and due > now else ""
    else:
        waits = show(moment(due))
    return {
        "id": message.id,
        "state": entry.state,
        "priority": show(message.priority),
        "age": age(max(0.0, now - message.enqueued_at)),
        "attempts": show(message.attempts),
        "bytes": f"{len(message.body):,}" if drawn else show(len(message.body)),
        "enqueued": show(moment(message.enqueued_at)),
        "waits for": waits,
        "correlation id": show(message.correlation_id),
        "body": bodies.piece(message),
    }
