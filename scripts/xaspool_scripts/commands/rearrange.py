"""``spool-admin message delete|move|change|redrive``: delete, move and change messages in queues."""

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from spool.model.message import PUT_OPTIONS
from spool.model.objects import message_object
from spool.watch.units import span
from xaspool_console.reasons import count_failed, named
from xaspool_scripts.terminal.bodies import JSON_BYTES
from xaspool_scripts.terminal.exit_codes import WRONG_USAGE
from xaspool_scripts.terminal.output import answering, moment, write_answer, write_json
from xaspool_scripts.terminal.program import Failure, SpaceCommand, complete_queue, json_option, note, opened
from xaspool_scripts.terminal.shared_options import (
    attempt_each,
    confirm,
    dry_run_option,
    fail,
    filter_options,
    given,
    options_of,
    progress,
    yes_option,
)
from xaspool_scripts.terminal.shared_options import message_id as message_id_type
from xaspool_scripts.terminal.wording import plural

if TYPE_CHECKING:
    from spool import Space
    from spool.model.message import Message

_CHANGEABLE = {
    "priority": PUT_OPTIONS["priority"]._replace(default=None),
    "delay": PUT_OPTIONS["delay"]._replace(help="How long from now the message is hidden."),
    "not_before": PUT_OPTIONS["not_before"]._replace(
        help="The time before which the message is not delivered; none delivers it at once."
    ),
    "expires_at": PUT_OPTIONS["expires_at"]._replace(
        help="The time from which the message is not delivered any more; none removes it."
    ),
}


@click.command(cls=SpaceCommand)
@click.argument("message_ids", metavar="ID...", nargs=-1, required=True, type=message_id_type)
@yes_option
def delete(message_ids: tuple[str, ...], yes: bool) -> None:
    """Delete messages that no program holds. On a terminal, the command asks before it deletes more than one message.

    \b
    Example:
      spool-admin message delete 5f0c7a1e9b3d48c2a6e1d07f00000000
    """
    wanted = list(dict.fromkeys(message_ids))
    if len(wanted) > 1:
        confirm(f"delete {plural(len(wanted), 'message')}?", yes)
    with opened() as space:
        failed = attempt_each(wanted, space.delete)
    if len(wanted) > len(failed):
        note(f"deleted {plural(len(wanted) - len(failed), 'message')}")
    fail(failed)


@click.command(cls=SpaceCommand)
@click.argument("message_id", metavar="ID", type=message_id_type)
@click.argument("queue", metavar="QUEUE", shell_complete=complete_queue)
@json_option
def move(message_id: str, queue: str, as_json: bool) -> None:
    """Move a message to another queue, where its age and priority decide its place. No program may hold the message.

    \b
    Example:
      spool-admin message move 5f0c7a1e9b3d48c2a6e1d07f00000000 orders
    """
    with opened() as space:
        _print_result(space.move(message_id, queue), f"moved to queue {queue}", as_json)


@click.command(cls=SpaceCommand)
@click.argument("message_id", metavar="ID", type=message_id_type)
@options_of(_CHANGEABLE, removable=("not_before", "expires_at"))
@json_option
def change(message_id: str, delay: float | None, as_json: bool, **options: Any) -> None:
    """Change the priority or a time of a message that no program holds.

    \b
    Examples:
      spool-admin message change 5f0c7a1e9b3d48c2a6e1d07f00000000 --priority 90
      spool-admin message change 5f0c7a1e9b3d48c2a6e1d07f00000000 --delay 2h
      spool-admin message change 5f0c7a1e9b3d48c2a6e1d07f00000000 --not-before none
    """
    chosen = given(options)
    if delay is not None:
        if "not_before" in chosen:
            raise Failure("--delay and --not-before exclude each other: give one of them", WRONG_USAGE)
        chosen["not_before"] = time.time() + delay
    if not chosen:
        raise click.UsageError("name an option to change: --priority, --delay, --not-before or --expires-at")
    with opened() as space:
        _print_result(space.change(message_id, **chosen), "changed", as_json)


def _print_result(message: "Message", what: str, as_json: bool) -> None:
    if not as_json:
        note(f"message {message.id}: {what}")
        return
    with answering(f"message {message.id}: {what}"):
        write_json(message_object(message, most=JSON_BYTES))


@click.command(cls=SpaceCommand)
@click.argument("queue", metavar="QUEUE", shell_complete=complete_queue)
@click.option(
    "--to", metavar="QUEUE", shell_complete=complete_queue,
    help="The queue that all messages move to; without it, each moves to the queue that it came from.",
)  # fmt: skip
@filter_options
@dry_run_option
@json_option
def redrive(queue: str, to: str | None, dry_run: bool, as_json: bool, **options: Any) -> None:
    """Move failed messages from an error queue back to the queues that they came from, and print how many.

    \b
    Examples:
      spool-admin message redrive errors --dry-run
      spool-admin message redrive errors --reason "HTTP 503" --since 2h
      spool-admin message redrive errors --to orders --older-than 1h
    """
    with opened() as space, progress("redriving", space.stats(queue).ready, shown=not dry_run) as set_progress:
        chosen = given(options)
        matching = space.purge(queue, dry_run=True, **chosen)
        failed = count_failed(space, queue, **chosen)
        there = space.queues().keys() - {queue}
        count = space.redrive(queue, to, dry_run=dry_run, progress=set_progress, **chosen)
        held = len(space.holders(queue))
        note_of_reasons = "" if matching else _missing_reason(space, queue, chosen.get("reason"))
    origins = Counter({name: failed.origins[name] for name in failed.origins if name in there})
    done = "would move" if dry_run else "moved"
    target = "" if not count else f" to queue {to}" if to is not None else _origins_in_words(origins, count)
    write_answer(count, f"{done} {plural(count, 'message')} from queue {queue}{target}", as_json)
    if note_of_reasons:
        note(note_of_reasons)
    if matching > count and to is None:
        left = matching - count
        remain, they = ("remains", "it") if left == 1 else ("remain", "they")
        why = f"{they} did not come from another queue that exists; --to QUEUE names one"
        note(f"{plural(left, 'message')} {remain}: {why}")
    note_held(queue, held)


def _origins_in_words(origins: Counter[str], count: int) -> str:
    """Return the queues to which the messages went, and the number for each queue if it is known exactly."""
    if origins.total() != count:
        return " to the queues that they came from"
    return f" to queue {next(iter(origins))}" if len(origins) == 1 else f" to queues {named(origins)}"


def _missing_reason(space: "Space", queue: str, wanted: str | None) -> str:
    """If no message of a queue has the wanted reason, return a text with the existing reasons; otherwise return ""."""
    stats = space.stats(queue)
    total = stats.ready + stats.delayed + stats.claimed + stats.in_doubt
    if wanted is None or not total or space.purge(queue, dry_run=True, reason=wanted):
        return ""
    found = count_failed(space, queue).by_reason
    there = f"there are: {found}" if found else "they have no reasons"
    return f"none of {plural(total, 'message')} has the reason {wanted!r} (upper and lower case differ); {there}"


def note_held(queue: str, held: int) -> None:
    """Print the number of messages that a bulk command did not change because other programs hold them."""
    if held:
        are_held = "is held and remains" if held == 1 else "are held and remain"
        note(f"{plural(held, 'message')} of queue {queue} {are_held}: see message list")


def purge(space: "Space", queue: str, *, dry_run: bool, as_json: bool, yes: bool, **options: Any) -> None:
    """Carry out `queue purge`."""
    chosen = given(options)
    if not dry_run and not yes:
        count = space.purge(queue, dry_run=True, **chosen)
        if count:
            confirm(f"delete {plural(count, 'message')} of queue {queue}{_filters_in_words(chosen)}?", yes)
    with progress("purging", space.stats(queue).ready, shown=not dry_run) as set_progress:
        count = space.purge(queue, dry_run=dry_run, progress=set_progress, **chosen)
        held = len(space.holders(queue))
    done = "would delete" if dry_run else "deleted"
    write_answer(count, f"{done} {plural(count, 'message')} of queue {queue}", as_json)
    note_held(queue, held)


def _filters_in_words(chosen: dict[str, Any]) -> str:
    parts = []
    if "message_id" in chosen:
        ids = chosen["message_id"]
        parts.append(f"with the id {ids[0]}" if len(ids) == 1 else f"with one of {len(ids)} ids")
    if "reason" in chosen:
        parts.append(f"with the reason {chosen['reason']!r}")
    parts += [f"{word} {moment(chosen[word])}" for word in ("since", "until") if word in chosen]
    if "correlation_id" in chosen:
        parts.append(f"with the correlation id {chosen['correlation_id']!r}")
    if "headers" in chosen:
        parts.append("with the header " + " and ".join(f"{name}={text}" for name, text in chosen["headers"].items()))
    if "older_than" in chosen:
        parts.append(f"older than {span(chosen['older_than'])}")
    return f" {', '.join(parts)}" if parts else ""
