"""``spool-admin message``: put, take, list, show and change messages."""

import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from xaspool_scripts import admin_get, admin_put, admin_rearrange, bodies
from xaspool_scripts.bodies import message_object
from xaspool_scripts.codes import DAMAGE_LEFT
from xaspool_scripts.common import Commands, Failure, complete_queue, json_option, note, opened
from xaspool_scripts.options import filter_options, given, message_id
from xaspool_scripts.output import NOTHING, aligned, moment, pairs, show, write_bytes, write_json
from xaspool_scripts.wording import age, on_terminal, plural, printable

if TYPE_CHECKING:
    from spool import Holder, QueueEntry
    from spool.model.message import Message

# The columns of plain text: (name, width, whether the column is right-aligned).
_WRITTEN = (
    ("id", 32, False), ("state", 8, False), ("priority", 8, True), ("attempts", 8, True), ("bytes", 10, True),
    ("enqueued", 25, False), ("waits for", 25, False), ("correlation id", 14, False), ("body", 0, False),
)  # fmt: skip
# Those of an error queue.
_WRITTEN_FAILED = (
    ("id", 32, False), ("state", 8, False), ("from", 12, False), ("bytes", 10, True), ("failed", 25, False),
    ("reason", 40, False), ("waits for", 25, False), ("body", 0, False),
)  # fmt: skip
# The columns on a terminal: (name, width, the least width of a terminal that shows the column). The body gets the rest
# of the line.
_DRAWN = (
    ("id", 32, 0), ("state", 8, 0), ("age", 6, 0), ("attempts", 8, 100), ("bytes", 9, 120), ("waits for", 22, 100),
)  # fmt: skip
_DRAWN_FAILED = (("id", 32, 0), ("failed", 8, 100), ("from", 12, 120), ("reason", 40, 0))
_DRAWN_AT_ONCE = 500
_BORDERS = 3


_COMMANDS = (
    admin_get.get, admin_put.put, admin_rearrange.change, admin_rearrange.delete, admin_rearrange.move,
    admin_rearrange.redrive,
)  # fmt: skip


@click.group(cls=Commands, commands=_COMMANDS)
def message() -> None:
    """Put, take, list, show and change messages."""


@message.command("list")
@click.argument("queue", metavar="QUEUE", shell_complete=complete_queue)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="The number of messages to list at most.")
@filter_options
@json_option
def list_(queue: str, limit: int | None, as_json: bool, **options: Any) -> None:
    """List a queue's messages with their states, in the order of delivery, and take none. Delayed messages come last.
    An error queue's messages are listed with the reasons of their failures.

    A message is ready, delayed, claimed by a program, or in doubt, which means held by a prepared transaction. If a
    message is damaged, standard error names it, and the exit code is 4.

    \b
    Examples:
      spool-admin message list orders --limit 20
      spool-admin message list orders --header tenant=acme --older-than 2h
      spool-admin message list errors --reason "HTTP 503" --since 2h
    """
    chosen = given(options)
    damaged: list[str] = []
    shown = 0
    with opened() as space:
        readable = islice(_readable(space.entries(queue, **chosen), damaged), limit)
        if as_json:
            for entry in readable:
                write_json(_object(entry))
                shown += 1
        else:
            failed = "reason" in chosen or any(each.error_queue == queue for each in space.queues().values())
            shown = _write_table(readable, failed=failed)
    if damaged:
        click.get_current_context().exit(DAMAGE_LEFT)
    if not shown:
        note(f"queue {queue} has no such messages" if chosen else f"queue {queue} is empty")


def _readable(entries: "Iterator[QueueEntry]", damaged: list[str]) -> "Iterator[QueueEntry]":
    """Yield the entries that can be read. Print the damage of each other entry, and append it to `damaged`."""
    for entry in entries:
        if entry.damage is None:
            yield entry
        else:
            damaged.append(entry.damage)
            note(entry.damage)


def _object(entry: "QueueEntry") -> dict[str, Any]:
    assert entry.message is not None
    return {**message_object(entry.message), "state": entry.state, "holder": entry.holder}


def _write_table(entries: "Iterator[QueueEntry]", *, failed: bool) -> int:
    """Print all entries, and return their number. The caller leaves out damaged entries.

    failed: whether they are failed messages, whose reasons are of interest.
    """
    if on_terminal():
        return _draw(entries, _DRAWN_FAILED if failed else _DRAWN)
    names, widths, right = zip(*(_WRITTEN_FAILED if failed else _WRITTEN), strict=True)
    count = 0
    for entry in entries:
        if not count:
            click.echo(aligned(names, widths, right))
        cells = _cells(entry, drawn=False)
        click.echo(aligned([cells[name] for name in names], widths, right))
        count += 1
    return count


def _holder_name(holder: "Holder") -> str:
    """Describe a holder in a few words."""
    if holder.state == "in doubt":
        return f"transaction {holder.xid}"
    if holder.pid is None:
        return "a program"
    return f"process {holder.pid} ({printable(holder.program or '')})"


def _draw(entries: "Iterator[QueueEntry]", possible: Sequence[tuple[str, int, int]]) -> int:
    """Print a table for every few hundred entries, so that a long queue needs little memory."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    columns = [(name, width) for name, width, least in possible if console.width >= least]
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
        waits = show(_holder_name(entry.holder))
    elif drawn:
        waits = f"due in {age(due - now)}" if due is not None and due > now else ""
    else:
        waits = show(moment(due))
    failed = show(moment(message.failed_at))
    if drawn and message.failed_at is not None:
        failed = f"{age(max(0.0, now - message.failed_at))} ago"
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
        "from": show(message.origin_queue),
        "failed": failed,
        "reason": show(message.failure_reason),
        "body": bodies.piece(message),
    }


@message.command("show")
@click.argument("message_id", metavar="ID", type=message_id)
@click.option("--raw", is_flag=True, help="Write the body alone, byte for byte.")
@json_option
def show_(message_id: str, raw: bool, as_json: bool) -> None:
    """Show a message of any queue without taking it: its fields, its holder, and its body decoded.

    If the message is damaged, standard error names the damage, and the exit code is 4.

    \b
    Examples:
      spool-admin message show 5f0c7a1e9b3d48c2a6e1d07f00000000
      spool-admin message show 5f0c7a1e9b3d48c2a6e1d07f00000000 --raw > order.xml
    """
    if raw and as_json:
        raise click.UsageError("--raw and --json exclude each other: give one of them")
    with opened() as space:
        entry = space.entry(message_id)
    shown = entry.message
    if shown is None:
        raise Failure(str(entry.damage), DAMAGE_LEFT)
    if raw:
        write_bytes(shown.body)
    elif as_json:
        write_json(_object(entry))
    else:
        _show(shown, entry)


def _show(message: "Message", entry: "QueueEntry") -> None:
    fields = message.as_dict()
    del fields["body"]
    for name in ("enqueued_at", "not_before", "expires_at"):
        fields[name] = moment(fields[name])
    fields["state"] = entry.state
    if entry.holder is not None:
        fields["claimed by"] = _holder_name(entry.holder)
        fields["transaction"] = entry.holder.xid
        fields["claimed since"] = moment(entry.holder.since)
    fields["body"] = plural(len(message.body), "byte")
    pairs({name.replace("_", " "): value for name, value in fields.items() if show(value) != NOTHING})
    click.echo()
    part = bodies.write(message)
    if part:
        note(f"{part} is shown; --raw writes all of it")
