"""``spool-admin message``: put, take, list, show and change messages."""

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from xaspool_scripts import admin_get, admin_put, admin_rearrange, bodies, message_table
from xaspool_scripts.bodies import message_object
from xaspool_scripts.codes import DAMAGE_LEFT
from xaspool_scripts.common import Commands, Failure, complete_queue, json_option, note, opened
from xaspool_scripts.options import filter_options, given
from xaspool_scripts.options import message_id as message_id_type
from xaspool_scripts.output import NOTHING, pairs, show, write_bytes, write_json
from xaspool_scripts.output import moment as shown_moment
from xaspool_scripts.wording import plural

if TYPE_CHECKING:
    from spool import QueueEntry
    from spool.model.message import Message


@click.group(cls=Commands)
def message() -> None:
    """Put, take, list, show and change messages."""


message.add_command(admin_put.put)
message.add_command(admin_get.get)


@message.command("list")
@click.argument("queue", metavar="QUEUE", shell_complete=complete_queue)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="The number of messages to list at most.")
@filter_options
@json_option
def list_(queue: str, limit: int | None, as_json: bool, **options: Any) -> None:
    """List a queue's messages with their states, in the order of delivery, delayed ones last, and take none.

    A message is ready, delayed, held by a program, or in doubt, which means held by a prepared transaction. If a
    message is damaged, standard error names it, and the exit code is 4.

    \b
    Examples:
      spool-admin message list orders --limit 20
      spool-admin message list orders --header tenant=acme --older-than 2h
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
            shown = message_table.write(readable)
    if damaged:
        click.get_current_context().exit(DAMAGE_LEFT)
    if not shown:
        note(f"queue {queue} has no such messages" if chosen else f"queue {queue} is empty")


def _readable(entries: "Iterator[QueueEntry]", damaged: list[str]) -> "Iterator[QueueEntry]":
    """Yield the entries that can be read; print the damage of the others, and add it to `damaged`."""
    for entry in entries:
        if entry.damage is None:
            yield entry
        else:
            damaged.append(entry.damage)
            note(entry.damage)


def _object(entry: "QueueEntry") -> dict[str, Any]:
    assert entry.message is not None
    return {**message_object(entry.message), "state": entry.state, "holder": entry.holder}


@message.command("show")
@click.argument("message_id", metavar="ID", type=message_id_type)
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
        fields[name] = shown_moment(fields[name])
    fields["state"] = entry.state
    if entry.holder is not None:
        fields["held by"] = message_table.holder_name(entry.holder)
        fields["transaction"] = entry.holder.xid
        fields["held since"] = shown_moment(entry.holder.since)
    fields["body"] = plural(len(message.body), "byte")
    pairs({name.replace("_", " "): value for name, value in fields.items() if show(value) != NOTHING})
    click.echo()
    part = bodies.write(message)
    if part:
        note(f"{part} is shown; --raw writes all of it")


for _command in (admin_rearrange.delete, admin_rearrange.move, admin_rearrange.change, admin_rearrange.redrive):
    message.add_command(_command)
