"""``spool-forward``: call services with messages, through Spark."""

import itertools
import os
import sys
import time
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from spool.errors import InvalidArgument
from xaspool_scripts.start import ended_by, write_at_once
from xaspool_scripts.terminal.exit_codes import WRONG_USAGE, code_of_effects
from xaspool_scripts.terminal.listening import address, tls_options
from xaspool_scripts.terminal.output import delayed_in, prints_to_stderr, write_json
from xaspool_scripts.terminal.program import Failure, SingleProgram, json_option, note, note_at_once, opened, space_path
from xaspool_scripts.terminal.shared_options import by_queue, pause_after_option, short_duration
from xaspool_scripts.terminal.signals import handle_ending, name_of
from xaspool_scripts.terminal.wording import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from forwarder import Endpoint, Forwarder, Pipeline, Route, Summary, ThreadForwarder
    from forwarder.events import Event
    from spool.workers.effects import OnFailure

_SHOW_CURSOR = "\x1b[?25h"


class EventLines:
    """Writes events to standard output. After a failed write, it calls ``stop`` and writes no more events."""

    def __init__(self) -> None:
        self.stop: Callable[[], object] = lambda: None
        self._is_broken = False

    def show(self, event: "Event") -> None:
        """Write an event."""
        from forwarder.events import as_json

        if self._is_broken:
            return
        try:
            write_json(as_json(event, time.time()))
        except OSError:  # the summary cannot be written either, so it reports the error
            self._is_broken = True
            self.stop()


def _routes(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """Parse the routes. A route without a service gets the service in ``--services`` that has the same name as the
    queue."""
    services: str | None = context.params.get("services")

    def of_queue(queue: str) -> str:
        from forwarder.services import named_as

        return named_as(queue, services or "")

    default = None if services is None else of_queue
    return by_queue(given, "route", "QUEUE=SERVICE", "orders=http://localhost:8000/orders", default)


def _settings(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    settings = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (equals and name.startswith("spark.")):
            raise click.BadParameter(f"{text!r} is no setting of Spark's: write e.g. spark.cores.max=8")
        if name == "spark.master":
            raise click.BadParameter("the master is --master")
        settings[name] = value
    return settings


def _check_combination(context: click.Context) -> None:
    """Refuse an option that has no effect together with the other options."""
    from forwarder.session import is_local

    given = {
        str(option.name): option.opts[0]
        for option in context.command.params
        if context.get_parameter_source(str(option.name)) is ParameterSource.COMMANDLINE
    }

    def refuse(names: Set[str], why: str) -> None:
        if unused := sorted(given.keys() & names):
            raise click.UsageError(f"{why}: leave {', '.join(given[name] for name in unused)} out")

    if "create_queues" in given:
        refuse(
            given.keys() - {"create_queues", "pipelines", "leave", "as_json", "space"},
            "--create-queues makes queues and exits",
        )
    if "once" in given:
        refuse({"idle"}, "--once waits for no messages")
    if "no_spark" in given:
        refuse({"master", "conf", *_LISTENING}, "--no-spark starts no Spark")
    elif "listen" not in given:
        refuse(_LISTENING, "without --listen, workers get no messages over the network")
    elif is_local(context.params["master"]):
        refuse(_LISTENING, "tasks of a local master see the space")
    if "pipelines" not in given:
        refuse({"leave"}, "--leave is about queues that a pipeline had before")
    if "routes" not in given:
        refuse(
            {"services", "on_failure", "timeout", "threads", "pause_after"},
            "options of a pipeline's services are in its FILE",
        )


_LISTENING = frozenset({"listen", "tls_cert", "tls_key", "insecure"})


def _endpoint(host: str, port: int, tls_cert: str | None, tls_key: str | None, insecure: bool) -> "Endpoint":
    from forwarder import Endpoint

    try:
        return Endpoint(host, port, tls_cert, tls_key, insecure)
    except InvalidArgument as error:
        said = error.told({"certificate": "--tls-cert", "key": "--tls-key", "insecure": "--insecure"})
        raise Failure(said, WRONG_USAGE) from None


@click.command("spool-forward", cls=SingleProgram)
@click.option(
    "--route", "routes", multiple=True, callback=_routes, metavar="QUEUE=SERVICE",
    help="The queue to take messages from, and the service to call for each: python:module:function, http(s)://…, "
    "exec:COMMAND, file:DIRECTORY, kafka://BROKERS/TOPIC, queue:NAME or "
    "queue:NAME@SPACE. Give one --route for each queue. All users of the machine see the URL in ps: write one with a "
    "password into the file of a --pipeline, with mode 600.",
)  # fmt: skip
@click.option(
    "--services", metavar="WHERE", is_eager=True,
    help="The place of the services for each --route that names only a queue; the service has the queue's name. With "
    "python:shop.services it is a function of that module; with a URL, exec:DIRECTORY, file:DIRECTORY or "
    "kafka://BROKERS, the name is added to the path.",
)  # fmt: skip
@click.option(
    "--pipeline", "pipelines", multiple=True, metavar="FILE",
    help="The TOML file of a pipeline to run, which has the options of its services; may be given several times, and "
    "beside --route.",
)  # fmt: skip
@click.option(
    "--create-queues", is_flag=True,
    help="Make the queues of the pipelines, or change them to the options in their files, and exit.",
)  # fmt: skip
@click.option(
    "--leave", is_flag=True,
    help="Go on although messages wait in queues that a pipeline had before its file was changed, and has no more. "
    "Nothing forwards these messages.",
)  # fmt: skip
@click.option(
    "--once", is_flag=True,
    help="Exit when each message that can be forwarded now has been attempted once, instead of waiting for more.",
)  # fmt: skip
@click.option(
    "--master", metavar="URL", default="local[*]", show_default=True,
    help="The Spark master that runs the calls; local[4] has four tasks of a route at a time on this machine, local[*] "
    "as many as it has cores. The workers of a cluster, spark://HOST:7077, have to run on the space's machine, or need "
    "--listen.",
)  # fmt: skip
@click.option(
    "--listen", metavar="HOST:PORT", callback=address,
    help="An address of this machine, by which the workers of a cluster reach it. Workers that do not see the space "
    "get their messages from there. Port 0 takes a free port.",
)  # fmt: skip
@tls_options
@click.option(
    "--insecure",
    is_flag=True,
    help="Send messages to the workers without TLS: everybody on the network can read them on their way.",
)
@click.option(
    "--conf", metavar="NAME=VALUE", multiple=True, callback=_settings,
    help="A setting of Spark's, e.g. spark.cores.max=8; may be given several times.",
)  # fmt: skip
@click.option(
    "--on-failure", type=click.Choice(["reject", "delete", "retry"]), default="reject", show_default=True,
    help="The effect on a message that its service refuses for good: reject ends it at once, in the error queue "
    "if there is one; delete does the same, but deletes it if the failure queue has the service's reply; retry counts "
    "the refusal as a failed attempt.",
)  # fmt: skip
@click.option(
    "--timeout", metavar="TIME", type=short_duration, default="30", show_default=True,
    help="How long one call of a service may take, in seconds or e.g. 5m; a longer one is stopped and counts as an "
    "attempt of its message.",
)  # fmt: skip
@click.option(
    "--threads", metavar="N", type=click.IntRange(1, 1000),
    help="How many calls of one service each core has under way at a time; without it, 32 of a web service, 64 "
    "records of Kafka, 32 puts into another space, 8 files, one command. Python functions are called one after the "
    "other.",
)  # fmt: skip
@pause_after_option
@click.option(
    "--idle-exit", "idle", metavar="TIME", type=short_duration,
    help="Exit when there has been no message to forward for this time, in seconds or e.g. 5m.",
)  # fmt: skip
@click.option(
    "--no-spark", is_flag=True,
    help="Call services in threads of this process, without Spark and Java; each message is a separate commit.",
)  # fmt: skip
@json_option
@click.pass_context
def main(
    context: click.Context,
    routes: dict[str, str],
    services: str | None,
    pipelines: tuple[str, ...],
    create_queues: bool,
    leave: bool,
    once: bool,
    master: str,
    listen: tuple[str, int] | None,
    tls_cert: str | None,
    tls_key: str | None,
    insecure: bool,
    conf: dict[str, str],
    on_failure: "OnFailure",
    timeout: float,
    threads: int | None,
    pause_after: int,
    idle: float | None,
    no_spark: bool,
    as_json: bool,
) -> None:
    """Call a service for each message, and put its reply into the message's reply queue, in the same commit.

    While a service cannot be reached, or a queue for its replies is full, the route pauses, for longer each time, and
    counts no attempts. After the first Ctrl-C, SIGTERM or other ending signal (SIGHUP, SIGUSR1, SIGUSR2, SIGALRM), the
    program ends when the calls in progress have ended and are committed. The second signal ends the program at once:
    the calls in progress count as attempts, and all messages of the round remain in the queue.

    \b
    Exit codes:
      0    all messages were forwarded; without --once: a signal or --idle-exit ended the program
      1    a route failed, or messages wait in queues that a pipeline has no more; with --once also: a service was not
           reached, or its replies found no room
      2    wrong usage, or a service that cannot be used as it is named
      4    with --once: a message is damaged and was moved to quarantine
      5    with --once: messages are left for later, because they failed or another program holds them
      6    with --once: messages failed for good; they are in the error queue, or deleted
      130  the second signal ended the program: Ctrl-C (143: SIGTERM)

    \b
    Examples:
      spool-forward -s /var/spool/shop --route orders=http://localhost:8000/orders
      spool-forward --route orders=python:shop.handlers:book --once
      spool-forward --route orders --route bills --services python:shop.services --idle-exit 10m
      spool-forward --pipeline adt.toml --create-queues
      spool-forward --pipeline adt.toml --no-spark
    """
    from forwarder import (
        Forwarder,
        MessagesLeft,
        MissingQueue,
        Pipeline,
        ServiceError,
        SparkUnavailable,
        ThreadForwarder,
        as_routes,
    )

    if create_queues and not pipelines:
        raise click.UsageError("--create-queues makes the queues of pipelines: give --pipeline FILE")
    if not (routes or pipelines):
        raise click.UsageError("there is nothing to forward: give --route QUEUE=SERVICE, or --pipeline FILE")
    _check_combination(context)
    if as_json:
        context.with_resource(prints_to_stderr())
    try:
        declared = [Pipeline.load(file) for file in pipelines]
        to_services = (
            as_routes(routes, on_failure=on_failure, timeout=timeout, threads=threads, pause_after=pause_after)
            if routes
            else []
        )
        if declared and not leave and (left := _left_queues(declared, to_services)):
            raise MessagesLeft(left)
        if create_queues:
            _create_queues(declared, as_json)
            return
        all_routes = [*to_services, *(route for one in declared for route in one.routes())]
        lines = EventLines() if as_json else None
        queues = [route.queue for route in all_routes]
        with _shown(queues, lines) as (on_event, say):
            endpoint = None if listen is None else _endpoint(*listen, tls_cert, tls_key, insecure)
            begin = ThreadForwarder if no_spark else partial(Forwarder, master=master, endpoint=endpoint, conf=conf)
            forwarder = begin(space_path(), all_routes, idle=idle, on_event=on_event, say=say)
            if lines is not None:
                lines.stop = forwarder.stop
            _stop_on_signals(forwarder)
            summary = forwarder.run(once)
        if once and leave:
            summary.left |= _left_queues(declared, to_services)
        delayed = {}
        if once and not as_json:
            with opened() as space:
                delayed = {queue: words for queue in queues if (words := delayed_in(space, queue))}
    except (MessagesLeft, MissingQueue, SparkUnavailable) as error:
        raise Failure(str(error)) from None
    except ServiceError as error:
        *others, last = str(error).splitlines()
        for mistake in others:  # (a pipeline file may have several mistakes)
            note(mistake)
        raise Failure(last, WRONG_USAGE) from None
    print_summary(summary, as_json, delayed)
    code = _exit_code(summary, once)
    if isinstance(forwarder, Forwarder) and forwarder.is_held:
        sys.stdout.flush()
        os._exit(code)
    context.exit(code)


def _exit_code(summary: "Summary", once: bool) -> int:
    """Return the exit code of a run. Without ``once``, only an error changes the code."""
    if not once:
        return code_of_effects((), failed=summary.errors, left=False)
    effects = {effect for counts in summary.effects.values() for effect, count in counts.items() if count}
    return code_of_effects(effects, failed=summary.errors or summary.down, left=summary.left)


def _left_queues(pipelines: "list[Pipeline]", routes: "list[Route]") -> dict[str, int]:
    """Return the number of messages in each former queue of the pipelines that no route serves."""
    from forwarder.pipelines.pipeline import left_queues

    with opened() as space:
        return left_queues(space, [one.description for one in pipelines], [route.queue for route in routes])


def _create_queues(pipelines: "list[Pipeline]", as_json: bool) -> None:
    with opened() as space:
        for pipeline in pipelines:
            for queue, done in pipeline.create_queues(space, leave=True).items():
                if as_json:
                    write_json({"queue": queue, "done": done})
                else:
                    click.echo(f"{queue}: {done}")


def _stop_on_signals(forwarder: "Forwarder | ThreadForwarder") -> None:
    """Stop the forwarder at the first signal, abandon its calls at the second, and end the process at the third."""
    counted = itertools.count(1)

    def handle(number: int, frame: Any) -> None:
        count = next(counted)  # one instruction, which a second signal cannot interrupt
        code = ended_by(number)
        if count == 1:
            note_at_once(f"{name_of(number)}: finishing the calls in progress; a second signal ends it at once")
            forwarder.stop()
        elif count == 2:
            note_at_once("ending at once; calls in progress are not committed")
            forwarder.abandon(lambda: _leave(code))
        else:
            os._exit(code)

    handle_ending(handle)


def _leave(code: int) -> None:
    if sys.stderr is not None and sys.stderr.isatty():
        write_at_once(_SHOW_CURSOR)  # the progress bar has hidden the cursor
    os._exit(code)


@contextmanager
def _shown(
    queues: list[str], lines: EventLines | None
) -> "Iterator[tuple[Callable[[Event], None], Callable[[str], None]]]":
    """Show the events as a progress bar on a terminal; otherwise print only the steps. Also pass each event to
    `lines`."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lines.show if lines is not None else lambda event: None, note
        return
    from xaspool_scripts.forward_bar import ForwardBar

    with opened() as space:
        stats = space.stats()
    with ForwardBar(sum(stats[queue].ready for queue in queues if queue in stats)) as bar:

        def show(event: "Event") -> None:
            bar.show(event)
            if lines is not None:
                lines.show(event)

        yield show, bar.say


def print_summary(summary: "Summary", as_json: bool, delayed: Mapping[str, str]) -> None:
    """Print the summary of a run. ``delayed``: a description of the delayed messages of each queue."""
    from forwarder import Effect

    if as_json:
        failures = [{"queue": queue, **one._asdict()} for queue, kinds in summary.failures.items() for one in kinds]
        figures = {"effects": summary.effects, "failures": failures, "left": summary.left, "down": summary.down}
        write_json({"event": "stopped", "time": round(time.time(), 6), **figures, "errors": summary.errors})
        return
    shown = {effect.value: effect.words for effect in Effect if effect is not Effect.KEPT}
    for queue in sorted({*summary.effects, *summary.left, *delayed}):
        effects = summary.effects.get(queue, {})
        parts = [f"{effects[name]:,} {words}" for name, words in shown.items() if name in effects]
        parts += [f"{summary.left[queue]:,} left for later"] if queue in summary.left else []
        parts += [delayed[queue]] if queue in delayed else []
        if parts:
            click.echo(f"{queue}: {', '.join(parts)}")
        for name, words in shown.items():
            for effect, reason, count in summary.failures.get(queue, ()):
                if effect == name:
                    click.echo(f"  {count:,} {words}: {printable(reason)}")
    if not (summary.handled or summary.left):
        click.echo("nothing was forwarded")
    for queue, reason in sorted(summary.down.items()):
        note(f"{queue}: {reason}; its messages wait in the queue")
    for error in summary.errors:
        note(error)


if __name__ == "__main__":
    main()
