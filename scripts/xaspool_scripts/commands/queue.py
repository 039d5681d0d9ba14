"""``spool-admin queue``: create, change, empty, delete and list queues."""

import time
from collections.abc import Container, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from spool.model.settings import QUEUE_OPTIONS, STATE, roles
from spool.watch.units import age, span
from xaspool_scripts.terminal.output import pairs, show, write_all, write_answer, write_json
from xaspool_scripts.terminal.program import Commands, complete_queue, json_option, note, opened
from xaspool_scripts.terminal.shared_options import (
    confirm,
    dry_run_option,
    filter_options,
    given,
    group,
    options_of,
    or_none,
    short_duration,
    yes_option,
)
from xaspool_scripts.terminal.wording import on_terminal, plural

if TYPE_CHECKING:
    from spool import QueueConfig, QueueStats, Space
    from spool.watch.consumers import Consumer

_CREATE_MISSING = click.option(
    "--create-missing", is_flag=True,
    help="Make the error, reply and failure queues that these options name and that do not exist yet.",
)  # fmt: skip
_REMOVABLE = QUEUE_OPTIONS.keys() - {"durability"}  # (for durability, ``none`` is an ordinary value)
_QUEUE = click.argument("queue", metavar="QUEUE", shell_complete=complete_queue)


@click.group(cls=Commands)
def queue() -> None:
    """Make, change, empty, delete and list queues."""


@queue.command()
@click.argument("queues", metavar="QUEUE...", nargs=-1, required=True)
@options_of(QUEUE_OPTIONS, removable=_REMOVABLE)
@_CREATE_MISSING
@click.option(
    "--if-missing", "exist_ok", is_flag=True,
    help="Make the queue only if it does not exist; if it exists with other options than these, that is an error.",
)  # fmt: skip
def create(queues: tuple[str, ...], create_missing: bool, exist_ok: bool, **options: Any) -> None:
    """Make new queues with the same options, all or none.

    \b
    Examples:
      spool-admin queue create orders
      spool-admin queue create orders invoices reminders --retries 5
      spool-admin queue create orders --order priority,fifo --retries 5 --error-queue errors --create-missing
      spool-admin queue create orders --if-missing
    """
    with opened() as space:
        there = space.queues()
        space.create_queues(queues, create_missing=create_missing, exist_ok=exist_ok, **given(options))
        _note_missing(space, there, queues)
        for queue in queues:
            note(f"queue {queue} exists" if queue in there else f"made queue {queue}")


def _note_missing(space: "Space", there: Container[str], queues: Container[str]) -> None:
    """Print each queue that was created because an option names it. ``there``: the queues that existed before."""
    for name in sorted(space.queues()):
        if name not in there and name not in queues:
            note(f"made queue {name}")


@queue.command()
@_QUEUE
@options_of(QUEUE_OPTIONS, removable=_REMOVABLE)
@_CREATE_MISSING
@click.option(
    "--drop-group", type=or_none(group), metavar="GROUP",
    help="The group whose users may drop files for the queue; none removes that permission.",
)  # fmt: skip
def change(queue: str, create_missing: bool, **options: Any) -> None:
    """Change options of a queue; other options do not change. The value none removes an option, except of --durability.

    Programs that have the space open use the new options at once.

    \b
    Examples:
      spool-admin queue change orders --retries 3 --error-queue errors
      spool-admin queue change orders --retries none --drop-group operators
    """
    chosen = given(options)
    if not chosen:
        raise click.UsageError("name an option to change, e.g. --retries 3")
    with opened() as space:
        there = space.queues()
        space.change_queue(queue, create_missing=create_missing, **chosen)
        _note_missing(space, there, [queue])
        note(f"changed queue {queue}")


@queue.command()
@_QUEUE
@filter_options
@dry_run_option
@yes_option
@json_option
def purge(queue: str, **options: Any) -> None:
    """Delete the queue's messages, or those that match all filters, and print how many.

    The command deletes no message that a program holds. On a terminal, it asks first. It works on a full disk, and
    gives the room of the messages back before it ends.

    \b
    Examples:
      spool-admin queue purge orders --older-than 7d --dry-run
      spool-admin queue purge orders --header tenant=acme --yes
      spool-admin queue purge errors --reason "no such article" --yes
    """
    from xaspool_scripts.commands import rearrange  # only commands on messages need this import

    with opened() as space:
        rearrange.purge(space, queue, **options)


@queue.command()
@_QUEUE
@json_option
def resume(queue: str, as_json: bool) -> None:
    """Let a queue's failed messages be attempted now, e.g. after a service was repaired, and print how many.

    Messages that have failed, and wait for their next attempt, become ready. Workers and routes of the queue end their
    pauses within a second. Failed messages in an error queue return with message redrive.

    \b
    Example:
      spool-admin queue resume orders
    """
    with opened() as space:
        ready = space.resume(queue)
        states = space.engine.meters.read().states
    paused = states.get(("workers_paused", queue), 0)
    down = sum(number for key, number in states.items() if key[:2] == ("route_down", queue))
    done = f"{plural(ready, 'failed message is', 'failed messages are')} ready in queue {queue}"
    ended = f"the pauses of {plural(paused, 'worker')} and {plural(down, 'route')} end"
    write_answer(ready, f"{done}; {ended}", as_json)


@queue.command()
@_QUEUE
@yes_option
def delete(queue: str, yes: bool) -> None:
    """Delete an empty queue.

    \b
    Example:
      spool-admin queue delete orders
    """
    with opened() as space:
        confirm(f"Delete the queue {queue} with its settings?", yes)
        space.delete_queue(queue)
        note(f"deleted queue {queue}")


@queue.command("list")
@click.option(
    "--watch", type=short_duration, is_flag=False, flag_value="2", metavar="[TIME]",
    help="List the queues again each time this time has passed, in seconds or e.g. 1m, until Ctrl-C; 2s if not given.",
)  # fmt: skip
@json_option
def list_(watch: float | None, as_json: bool) -> None:
    """List the queues, each with the number of its messages, and of its consumers: the processes that serve it. State
    queues are last. Standard error names the files in quarantine, if any.

    \b
    Examples:
      spool-admin queue list
      spool-admin queue list --watch 5
    """
    with opened() as space:
        _list(space, as_json)
        while watch is not None:
            time.sleep(watch)
            if on_terminal() and not as_json:
                click.clear()
            _list(space, as_json)


def _list(space: "Space", as_json: bool) -> None:
    configs, stats, serving = space.queues(), space.stats(), space.engine.consumers()
    role = roles(configs)
    names = sorted(configs.keys() & stats.keys(), key=lambda name: (role[name] == STATE, name))
    queues = [_object(configs[name], stats[name], role[name], serving) for name in names]
    columns = ("name", "role", "ready", "delayed", "claimed", "in doubt", "bytes", "consumers")
    fields = [column.replace(" ", "_") for column in columns[:-1]]
    rows = ([*(one[field] for field in fields), len(one["consumers"]), _oldest(one["oldest_age"])] for one in queues)
    nothing = "the space has no queues yet: make one with spool-admin queue create NAME"
    write_all(queues, as_json, (*columns, "oldest" if on_terminal() else "oldest (s)"), rows, nothing)
    if kept := space.quarantined():
        damaged = sum(finding.kind == "damaged" for finding in kept)
        parts = [
            f"{plural(damaged, 'file')} in which messages lay" if damaged else "",
            f"{plural(len(kept) - damaged, 'other file')}" if len(kept) > damaged else "",
        ]
        note(f"quarantine/ holds {' and '.join(filter(None, parts))}: see spool-admin quarantine list")


def _oldest(seconds: float | None) -> object:
    return age(seconds) if on_terminal() and seconds is not None else seconds


@queue.command("show")
@click.argument("queue", metavar="QUEUE", shell_complete=complete_queue)
@json_option
def show_(queue: str, as_json: bool) -> None:
    """Show a queue's options, its messages by state, its counts since the space was created, and its consumers: the
    processes that serve the queue.

    \b
    Example:
      spool-admin queue show orders
    """
    with opened() as space:
        stats = space.stats(queue)
        configs = space.queues()
        fields = _object(configs[queue], stats, roles(configs)[queue], space.engine.consumers())
    if as_json:
        write_json(fields)
        return
    fields["consumers"] = "; ".join(map(in_words, fields["consumers"])) or "none"
    pairs({name.replace("_", " "): _in_words(name, value) for name, value in fields.items()})


def _object(
    config: "QueueConfig", stats: "QueueStats", role: str, serving: "Mapping[str, list[Consumer]]"
) -> dict[str, Any]:
    return {**asdict(config), "role": role, **asdict(stats), "consumers": serving.get(config.name, [])}


def in_words(consumer: "Consumer") -> str:
    """Describe a consumer, e.g. ``process 17 (celery) for 3 h, busy with 2 messages``."""
    held = f"busy with {plural(consumer.held, 'message')}" if consumer.is_busy else "idle"
    return f"process {consumer.pid} ({consumer.program}) for {age(time.time() - consumer.since)}, {held}"


def _in_words(name: str, value: object) -> str:
    if name == "retries" and value is None:
        return "for ever"
    if isinstance(value, float):
        return span(value) if on_terminal() else f"{show(value)} s"
    return show(value)
