"""``spool-forward``: messages go to services, through Spark."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from xaspool_scripts.common import (
    FAILED,
    Failure,
    SingleProgram,
    json_option,
    note,
    note_at_once,
    opened,
    space_option,
    space_path,
    version_option,
)  # fmt: skip
from xaspool_scripts.output import write_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from forwarder import Forwarder, RoundResult, Summary


def _routes(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    routes: dict[str, str] = {}
    for route in given:
        queue, equals, service = route.partition("=")
        if not (queue and equals and service):
            raise click.BadParameter(f"{route!r} is not QUEUE=SERVICE, e.g. orders=http://localhost:8000/orders")
        if queue in routes:
            raise click.BadParameter(f"the queue {queue} has two routes: give it one")
        routes[queue] = service
    return routes


@click.command("spool-forward", cls=SingleProgram)
@click.option(
    "--route", "routes", multiple=True, required=True, callback=_routes, metavar="QUEUE=SERVICE",
    help="Where a queue's messages go: python:module:function, http(s)://…, queue:NAME. May be repeated.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="Forward what can be forwarded now, then exit.")
@click.option("--master", default="local[*]", show_default=True, help="The Spark master.")
@click.option(
    "--on-failure", type=click.Choice(["reject", "retry"]), default="reject", show_default=True,
    help="What a final failure of a service means: the end of it, or one try more.",
)  # fmt: skip
@click.option("--timeout", type=click.FloatRange(min=0.1), default=30.0, show_default=True, help="Seconds for a call.")
@json_option
@space_option
@version_option
@click.pass_context
def main(
    context: click.Context,
    routes: dict[str, str],
    once: bool,
    master: str,
    on_failure: str,
    timeout: float,
    as_json: bool,
) -> None:
    """Call a service for each message; its answer goes to the message's reply queue, in the same commit.

    A service that cannot be reached, or answers that find no room, cost the messages no try: the route pauses, for
    longer each time. SIGTERM and Ctrl-C finish the round, then exit with 0. Exit code 1: a route failed, or, with
    --once, stands still.

    \b
    Examples:
      spool-forward -s /var/spool/shop --route orders=http://localhost:8000/orders
      spool-forward --route orders=python:shop.handlers:book --once
    """
    from forwarder import Forwarder, ServiceError, SparkUnavailable

    with _progress_bar(sum(_ready(routes).values()) if sys.stderr.isatty() else None) as progress:
        try:
            forwarder = Forwarder(
                space_path(), routes, master=master, on_failure=on_failure, timeout=timeout, progress=progress, say=note
            )
            _stop_on_signals(forwarder)
            summary = forwarder.run(once)
        except (ServiceError, SparkUnavailable) as error:
            raise Failure(str(error)) from None
    _tell(summary, as_json)
    if summary.errors or (once and summary.down):
        context.exit(FAILED)


def _ready(routes: dict[str, str]) -> dict[str, int]:
    """How many messages wait, for the progress bar."""
    with opened() as space:
        stats = space.stats()
        return {queue: stats[queue].ready for queue in routes if queue in stats}


def _stop_on_signals(forwarder: "Forwarder") -> None:
    def stop(number: int, frame: Any) -> None:
        forwarder.stop()
        note_at_once("finishing the round")

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)


@contextmanager
def _progress_bar(total: int | None) -> "Iterator[Callable[[str, RoundResult], None] | None]":
    """A bar on a terminal; elsewhere nothing, because a log of ten thousand lines helps nobody."""
    if total is None:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("forwarding", total=total)

        def advance(queue: str, result: "RoundResult") -> None:
            done = bar.tasks[0].completed + result.messages
            bar.update(task, advance=result.messages, total=max(total, done))

        yield advance


def _tell(summary: "Summary", as_json: bool) -> None:
    from forwarder import Effect

    if as_json:
        write_json({"effects": summary.effects, "down": summary.down, "errors": summary.errors})
        return
    for queue, effects in sorted(summary.effects.items()):
        told = [f"{count:,} {Effect(name).words}" for name, count in sorted(effects.items()) if name != Effect.KEPT]
        if told:
            click.echo(f"{queue}: {', '.join(told)}")
    if not summary.handled:
        click.echo("nothing was forwarded")
    for queue, reason in sorted(summary.down.items()):
        note(f"{queue}: {reason}; its messages wait in the queue")
    for error in summary.errors:
        note(error)


if __name__ == "__main__":
    main()
