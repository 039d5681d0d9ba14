"""``spool-admin message``: put, take, list, show and change messages."""

import time
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Literal

import click

from spool.model.objects import message_object
from spool.watch.units import age, runtime
from xaspool_console.reasons import count_failed
from xaspool_scripts.commands import get, put, rearrange
from xaspool_scripts.terminal import bodies
from xaspool_scripts.terminal.exit_codes import DAMAGE_LEFT
from xaspool_scripts.terminal.output import NOTHING, aligned, moment, pairs, short, show, write_bytes, write_json
from xaspool_scripts.terminal.program import Commands, Failure, complete_queue, json_option, note, opened
from xaspool_scripts.terminal.shared_options import filter_options, given, message_id
from xaspool_scripts.terminal.wording import on_terminal, plural, printable

if TYPE_CHECKING:
    from spool import Holder, QueueEntry
    from spool.model.message import Message

# The columns of a list: (name, width, width from which on a line shows the column). The last column gets the rest of
# the line. It has the body, or in an error queue the reason.
_Columns = tuple[tuple[str, int, int], ...]
_COLUMNS: _Columns = (
    ("id", 32, 0), ("state", 8, 0), ("age", 6, 0), ("attempts", 8, 90), ("bytes", 10, 105), ("waits for", 25, 140),
    ("priority", 8, 160), ("correlation id", 14, 180),
)  # fmt: skip
_MOST_PIECE = 120  # the most characters of a body in a list
_COLUMNS_FAILED: _Columns = (("id", 32, 0), ("failed", 10, 95), ("from", 12, 140), ("reason", 40, 115))
_COLUMNS_TASKS: _Columns = (
    ("id", 32, 0), ("state", 8, 0), ("age", 6, 0), ("task", 24, 0), ("runtime", 7, 100), ("worker", 25, 140),
    ("attempts", 8, 160), ("correlation id", 36, 200),
)  # fmt: skip
_COLUMNS_FAILED_TASKS: _Columns = (
    ("id", 32, 0),
    ("failed", 10, 95),
    ("task", 24, 0),
    ("from", 12, 140),
    ("reason", 40, 140),
)
_RIGHT = ("priority", "attempts", "bytes", "runtime")
_LOOKED_AT = 100  # the first messages of a list decide whether it has the columns of tasks
_WIDTH = 120  # the width of a line that is not written to a terminal
_DRAWN_AT_ONCE = 500
_LEAST_WIDTH = 8  # the least width of the last column
_GAP, _BORDERS = 2, 3  # the width between two columns: outside of a terminal, and on a terminal

_COMMANDS = (get.get, put.put, rearrange.change, rearrange.delete, rearrange.move, rearrange.redrive)


_whole_option = click.option(
    "--whole", is_flag=True,
    help=f"With --json, print whole bodies; otherwise a body is cut after {bodies.JSON_BYTES:,} bytes.",
)  # fmt: skip


@click.group(cls=Commands, commands=_COMMANDS)
def message() -> None:
    """Put, take, list, show and change messages."""


@message.command("list")
@click.argument("queue", metavar="QUEUE", shell_complete=complete_queue)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="The number of messages to list at most.")
@filter_options
@_whole_option
@json_option
def list_(queue: str, limit: int | None, whole: bool, as_json: bool, **options: Any) -> None:
    """List a queue's messages with their states, in the order of delivery, and take none. Delayed messages come last.
    An error queue's messages are listed with the reasons of their failures, and standard error counts the reasons.

    A message is ready, delayed, claimed by a program, or in doubt, which means held by a prepared transaction. A task
    of Celery, Django or Dramatiq is listed with its name, its state (e.g. reserved or running) and its arguments, and a
    wide line also with its runtime and its worker. A line fits the terminal, or 120 columns, and the list reads only
    the beginning of a large body. If a message is damaged, standard error names it, and the exit code is 4.

    \b
    Examples:
      spool-admin message list orders --limit 20
      spool-admin message list orders --header tenant=acme --older-than 2h
      spool-admin message list errors --reason "HTTP 503" --since 2h
    """
    chosen = given(options)
    damaged: list[str] = []
    shown = cut = 0
    most = _most_in_json(whole, as_json)
    from spool.watch.body_text import LIST_PREVIEW

    with opened() as space:
        entries = space.entries(queue, preview=most if as_json else LIST_PREVIEW, **chosen)
        readable = islice(_readable(entries, damaged), limit)
        if as_json:
            for entry in readable:
                write_json(_object(entry, most))
                shown, cut = shown + 1, cut + entry.body_cut
        else:
            failed = "reason" in chosen or any(each.error_queue == queue for each in space.queues().values())
            shown = _write_table(readable, failed=failed)
            if failed and (counted := count_failed(space, queue, **chosen).by_reason):
                note(f"by reason: {counted}")
    _note_cut(cut)
    if damaged:
        click.get_current_context().exit(DAMAGE_LEFT)
    if not shown:
        note(f"queue {queue} has no such messages" if chosen else f"queue {queue} is empty")


def _most_in_json(whole: bool, as_json: bool) -> int | None:
    """Return the most bytes of a body in JSON; None for whole bodies."""
    if whole and not as_json:
        raise click.UsageError("--whole is for --json")
    return None if whole else bodies.JSON_BYTES


def _note_cut(count: int) -> None:
    if count:
        are_cut = "body is" if count == 1 else "bodies are"
        note(f"{count} {are_cut} cut after {bodies.JSON_BYTES:,} bytes; --whole prints whole bodies")


def _readable(entries: "Iterator[QueueEntry]", damaged: list[str]) -> "Iterator[QueueEntry]":
    """Yield the entries that can be read. Print the damage of each other entry, and append the damage to `damaged`."""
    for entry in entries:
        if entry.damage is None:
            yield entry
        else:
            damaged.append(entry.damage)
            note(entry.damage)


def _object(entry: "QueueEntry", most: int | None) -> dict[str, Any]:
    assert entry.message is not None
    shown = message_object(entry.message, body_bytes=entry.body_bytes, most=most)
    from spool.watch.tasks import task_of

    return {**shown, "state": entry.state, "holder": entry.holder, "task": task_of(entry, time.time())}


def _holder_name(holder: "Holder") -> str:
    """Describe a holder in a few words."""
    from spool.watch.tasks import process_of

    return f"transaction {holder.xid}" if holder.state == "in doubt" else printable(process_of(holder))


def _write_table(entries: "Iterator[QueueEntry]", *, failed: bool) -> int:
    """Print all entries, one per line, and return the number of entries. The caller omits damaged entries.

    failed: whether the messages have failed, so that the last column shows the reasons.
    """
    first = list(islice(entries, _LOOKED_AT))
    entries = chain(first, entries)
    has_tasks = any(_cells(entry)["task"] != NOTHING for entry in first)
    plain, of_tasks = (_COLUMNS_FAILED, _COLUMNS_FAILED_TASKS) if failed else (_COLUMNS, _COLUMNS_TASKS)
    possible = of_tasks if has_tasks else plain
    if on_terminal():
        return _draw(entries, possible)
    names, widths = _fitting(possible, _WIDTH, _GAP)
    right = [name in _RIGHT for name in names]
    count = 0
    for entry in entries:
        if not count:
            click.echo(aligned(names, widths, right))
        click.echo(aligned(list(map(short, _row(entry, names), widths)), widths, right))
        count += 1
    return count


def _fitting(possible: _Columns, width: int, gap: int) -> tuple[list[str], list[int]]:
    """Return the names and widths of the columns that fit into a line. ``gap``: the width between two columns."""
    chosen = {name: wide for name, wide, least in possible if width >= least}
    names = [name for name, _, _ in possible]
    last = "reason" if "reason" in names and "reason" not in chosen else "arguments" if "task" in names else "body"
    chosen[last] = max(_LEAST_WIDTH, width - sum(wide + gap for wide in chosen.values()))
    return [*chosen], [*chosen.values()]


def _draw(entries: "Iterator[QueueEntry]", possible: _Columns) -> int:
    """Print a table for every few hundred entries, so that a long queue needs little memory."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    names, widths = _fitting(possible, console.width - _BORDERS - 1, _BORDERS)
    count = 0
    while batch := list(islice(entries, _DRAWN_AT_ONCE)):
        drawn = Table(header_style="bold")
        for name, width in zip(names, widths, strict=True):
            to_side: Literal["right", "left"] = "right" if name in _RIGHT else "left"
            drawn.add_column(name, width=width, justify=to_side, no_wrap=True, overflow="ellipsis")
        for entry in batch:
            drawn.add_row(*map(Text, _row(entry, names)))
        console.print(drawn)
        count += len(batch)
    return count


def _row(entry: "QueueEntry", names: Sequence[str]) -> list[str]:
    """Return the cells of the columns with these names."""
    cells = _cells(entry)
    is_told = "waits for" in names or (entry.holder is not None and "task" in names)  # (the state says it)
    if cells["waits for"] != NOTHING and not is_told:
        cells[names[-1]] = f"({cells['waits for']}) {cells[names[-1]]}"
    return [cells[name] for name in names]


def _cells(entry: "QueueEntry") -> dict[str, str]:
    from spool.watch.body_text import piece  # (help and completion do not need these imports)
    from spool.watch.tasks import task_of

    message = entry.message
    assert message is not None
    now, due = time.time(), message.not_before
    task = task_of(entry, now)
    body = piece(message, _MOST_PIECE)
    waits = None
    if entry.holder is not None:
        waits = _holder_name(entry.holder)
    elif due is not None and due > now:
        waits = f"due in {age(due - now)}"
    failed = None if message.failed_at is None else f"{age(max(0.0, now - message.failed_at))} ago"
    return {
        "id": message.id,
        "state": printable(task.state) if task else entry.state,
        "priority": show(message.priority),
        "age": age(max(0.0, now - message.enqueued_at)),
        "attempts": show(message.attempts),
        "bytes": show(entry.body_bytes),
        "waits for": show(waits),
        "correlation id": show(message.correlation_id),
        "from": show(message.origin_queue),
        "failed": show(failed),
        "reason": show(message.failure_reason),
        "task": show(task.name if task else None),
        "runtime": show(runtime(task.runtime) if task and task.runtime is not None else None),
        "worker": show(task.worker if task else None),
        "arguments": printable(task.arguments[:_MOST_PIECE]) if task and task.arguments else body,
        "body": body,
    }


@message.command("show")
@click.argument("message_id", metavar="ID", type=message_id)
@click.option("--raw", is_flag=True, help="Write the body alone, byte for byte.")
@_whole_option
@json_option
def show_(message_id: str, raw: bool, whole: bool, as_json: bool) -> None:
    """Show a message of any queue without taking it: its fields, its holder, and its body decoded.

    If the message is damaged, standard error names the damage, and the exit code is 4.

    \b
    Examples:
      spool-admin message show 5f0c7a1e9b3d48c2a6e1d07f00000000
      spool-admin message show 5f0c7a1e9b3d48c2a6e1d07f00000000 --raw > order.xml
    """
    if raw and as_json:
        raise click.UsageError("--raw and --json exclude each other: give one of them")
    most = _most_in_json(whole, as_json)
    from spool.watch.body_text import BODY_PREVIEW

    with opened() as space:
        entry = space.entry(message_id, preview=None if raw else most if as_json else BODY_PREVIEW)
    shown = entry.message
    if shown is None:
        raise Failure(str(entry.damage), DAMAGE_LEFT)
    if raw:
        write_bytes(shown.body)
    elif as_json:
        write_json(_object(entry, most))
        _note_cut(int(entry.body_cut))
    else:
        _show(shown, entry)


def _show(message: "Message", entry: "QueueEntry") -> None:
    from spool.watch.tasks import task_of

    fields = message.as_dict()
    del fields["body"]
    for name in ("enqueued_at", "not_before", "expires_at"):
        fields[name] = moment(fields[name])
    fields["state"] = entry.state
    if (task := task_of(entry, time.time())) is not None:
        fields |= {"task": task.name, "arguments": task.arguments, "state": task.state, "worker": task.worker}
        fields["runtime"] = None if task.runtime is None else runtime(task.runtime)
        fields["cause"] = task.cause if task.cause != message.failure_reason else None
    if entry.holder is not None:
        fields["claimed by"] = _holder_name(entry.holder)
        fields["claimed since"] = moment(entry.holder.since)
    fields["body"] = plural(entry.body_bytes or 0, "byte")
    pairs({name.replace("_", " "): value for name, value in fields.items() if show(value) != NOTHING})
    click.echo()
    part = bodies.write(message, entry.body_bytes or 0)
    if part:
        note(f"this is {part}; --raw writes all of it")
