"""``spool-admin queue``: make queues, and see how they stand."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from xaspool_scripts.common import complete_queue, json_option, note, opened, space_option
from xaspool_scripts.output import pairs, show, table, write_json

if TYPE_CHECKING:
    from spool import QueueConfig, QueueStats


@click.group()
@space_option
def queue() -> None:
    """Make queues, and see how they stand."""


@queue.command()
@click.argument("queue", metavar="QUEUE")
@click.option("--order", metavar="CRITERIA", help="fifo, or priority,fifo: higher priorities first.")
@click.option("--retries", type=int, metavar="N", help="Tries after the first; else it is tried for ever.")
@click.option("--retry-delay", type=float, metavar="SECONDS", help="Wait so long after a failed try.")
@click.option("--error-queue", metavar="QUEUE", shell_complete=complete_queue, help="Where it goes after all tries.")
@click.option("--reply-queue", metavar="QUEUE", shell_complete=complete_queue, help="For messages that name none.")
@click.option("--failure-queue", metavar="QUEUE", shell_complete=complete_queue, help="For messages that name none.")
@space_option
def create(queue: str, order: str | None, **options: Any) -> None:
    """Make a new queue.

    \b
    Example:
      spool-admin queue create orders --order priority,fifo --retries 5 --retry-delay 60 --error-queue errors
    """
    chosen = {name: value for name, value in options.items() if value is not None}
    if order is not None:
        chosen["order"] = tuple(word.strip() for word in order.split(","))
    with opened() as space:
        space.create_queue(queue, **chosen)
        note(f"made queue {queue}")


@queue.command("list")
@json_option
@space_option
def list_(as_json: bool) -> None:
    """List the queues, and how many messages are in each.

    \b
    Example:
      spool-admin queue list
    """
    with opened() as space:
        configs, stats = space.queues(), space.stats()
    found = [_object(configs[name], stats[name]) for name in sorted(configs) if name in stats]
    if as_json:
        for each in found:
            write_json(each)
        return
    if not found:
        note("the space has no queues yet: make one with spool-admin queue create NAME")
        return
    columns = ("name", "ready", "delayed", "claimed", "in_doubt", "bytes", "oldest_age")
    table([column.replace("_", " ") for column in columns], ([each[column] for column in columns] for each in found))


@queue.command("show")
@click.argument("queue", metavar="QUEUE", shell_complete=complete_queue)
@json_option
@space_option
def show_(queue: str, as_json: bool) -> None:
    """Show a queue's options, its messages by state, and its counts since the space was made.

    \b
    Example:
      spool-admin queue show orders
    """
    with opened() as space:
        stats = space.stats(queue)
        found = _object(space.queues()[queue], stats)
    if as_json:
        write_json(found)
        return
    pairs({name.replace("_", " "): _in_words(name, value) for name, value in found.items()})


def _object(config: "QueueConfig", stats: "QueueStats") -> dict[str, Any]:
    return {**asdict(config), **asdict(stats)}


def _in_words(name: str, value: object) -> str:
    if name == "retries" and value is None:
        return "for ever"
    return f"{show(value)} s" if isinstance(value, float) else show(value)
