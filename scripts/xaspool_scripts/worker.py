"""``spool-worker``: call Python functions with messages, without Spark and Java."""

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from xaspool_scripts.start import ended_by
from xaspool_scripts.terminal.exit_codes import WRONG_USAGE, code_of_effects
from xaspool_scripts.terminal.output import delayed_in, prints_to_stderr, write_json
from xaspool_scripts.terminal.program import (
    Failure,
    SingleProgram,
    describe,
    json_option,
    log_to_stderr,
    named_address,
    note,
    note_at_once,
    open_space,
    typed_values,
)
from xaspool_scripts.terminal.shared_options import by_queue, duration_or_forever, pause_after_option
from xaspool_scripts.terminal.signals import ending_signals, name_of

if TYPE_CHECKING:
    from spool import Handler, Worker, WorkSummary

_POLL_SECONDS = 0.2  # the longest time until the main thread acts on a signal


def _targets(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    targets = by_queue(given, "function", "QUEUE=MODULE:FUNCTION", "orders=shop.handlers:book")
    return {queue: target.removeprefix("python:") for queue, target in targets.items()}


@click.command("spool-worker", cls=SingleProgram)
@click.argument("targets", nargs=-1, required=True, callback=_targets, metavar="QUEUE=MODULE:FUNCTION...")
@click.option(
    "--once", is_flag=True,
    help="Exit when each message that can be taken now has been attempted once, instead of waiting for more.",
)  # fmt: skip
@click.option(
    "--threads", metavar="N", type=click.IntRange(1, 1000), default=1, show_default=True,
    help="How many threads call each function at the same time.",
)  # fmt: skip
@click.option(
    "--timeout", type=duration_or_forever, default="30", show_default=True, metavar="TIME",
    help="How long a call may take, e.g. 30 (seconds), 5m or forever; a longer one is given up, and counts as an "
    "attempt of its message.",
)  # fmt: skip
@pause_after_option
@click.option(
    "--token-file", metavar="FILE", type=click.Path(exists=True, dir_okay=False),
    help="The file with the token, if -s is the address of a server; without it, $XASPOOL_TOKEN.",
)  # fmt: skip
@click.option(
    "--tls-certificate", metavar="FILE", type=click.Path(exists=True, dir_okay=False),
    help="The file with the certificate of the server's authority, as PEM; without it, the system's authorities.",
)  # fmt: skip
@click.option("-v", "--verbose", is_flag=True, help="Print tracebacks, and the log's lines of level INFO.")
@json_option
def main(
    targets: dict[str, str],
    once: bool,
    threads: int,
    timeout: float | None,
    pause_after: int,
    token_file: str | None,
    tls_certificate: str | None,
    verbose: bool,
    as_json: bool,
) -> None:
    """Call a Python function with each message of a queue; the function's result goes to the message's reply queue.

    The function takes one argument, the message. It raises spool.Retry to be called again later, and spool.Reject for a
    message that must not be attempted again. Any other exception is a failed attempt. The message, its reply and the
    messages that the function puts are one commit. Python looks for the function in the current directory first.

    With -s https://HOST:PORT/NAME, the messages are those of a server (spool-serve). While the server cannot be
    reached, the program pauses.

    After the first SIGTERM, Ctrl-C or other ending signal (SIGHUP, SIGUSR1, SIGUSR2, SIGALRM), the program ends when
    the calls in progress have ended. The second signal ends the program at once: the messages of these calls go back
    to their queues, and each call counts as an attempt.

    \b
    Exit codes:
      0    all messages were handled; without --once: a signal ended the program
      1    it failed
      4    with --once: a message is damaged and was moved to quarantine
      5    with --once: messages are left for later, because they failed or another program holds them
      6    with --once: messages failed for good; they are in the error queue, or deleted
      130  the second Ctrl-C ended the program
      143  the second SIGTERM ended the program

    \b
    Examples:
      spool-worker -s /var/spool/shop orders=shop.handlers:book --threads 4
      spool-worker orders=handlers:book invoices=handlers:send --once
      spool-worker -s https://queue.example:8815/shop orders=handlers:book --token-file token
    """
    from spool.workers.functions import ServiceError, find_function

    if verbose:
        log_to_stderr(logging.INFO)
    if as_json:
        click.get_current_context().with_resource(prints_to_stderr())
    try:
        functions = {queue: find_function(target) for queue, target in targets.items()}
    except ServiceError as error:
        raise Failure(str(error), WRONG_USAGE) from error
    with typed_values(), _opened(token_file, tls_certificate) as space, _status(list(functions)) as show:
        group = WorkerGroup(
            space, functions, show, threads=threads, once=once, timeout=timeout, pause_after=pause_after
        )
        group.run()
        delayed = {queue: delayed_in(space, queue) for queue in functions} if once else {}
    for queue, worker in group.workers.items():
        print_summary(queue, worker.summary, group.errors.get(queue), as_json, delayed.get(queue, ""))
    code = group.exit_code(once)
    if group.ended:
        note("interrupted")
        code = ended_by(group.ended)
    if any(worker.summary.abandoned for worker in group.workers.values()):
        # A hanging function, or a thread that it started, may prevent the end of the interpreter.
        sys.stdout.flush()
        os._exit(code)
    click.get_current_context().exit(code)


def _opened(token_file: str | None, certificate_file: str | None) -> Any:
    """Open the space that the command names: a directory, or a space of a server."""
    if (address := named_address()) is None:
        return open_space()
    import spool

    return spool.connect(address, token_file=token_file, certificate_file=certificate_file)


class WorkerGroup:
    """One worker for each queue. Each worker runs in a separate thread. The main thread waits for the workers, and acts
    on signals."""

    def __init__(
        self, space: Any, functions: "Mapping[str, Callable[[Any], Any] | Handler]",
        show: "Callable[[str, WorkSummary], None]", **options: Any,
    ) -> None:  # fmt: skip
        from spool import Worker

        self.workers = {queue: Worker(space, queue, function, **options) for queue, function in functions.items()}
        self._show = show
        self.errors: dict[str, BaseException] = {}
        self.signals: list[int] = []
        self.ended = 0  # the signal that ended all workers at once

    def run(self) -> None:
        """Run all workers to their end. An error of one worker stops all other workers."""
        threads = [threading.Thread(target=self._run, args=item) for item in self.workers.items()]
        with ending_signals(self._signalled):
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(_POLL_SECONDS)  # a short wait, because the main thread runs the signal handlers
                    for queue, worker in self.workers.items():
                        self._show(queue, worker.summary)
                    if len(self.signals) > 1 and not self.ended:
                        self.ended = self.signals[1]
                        for worker in self.workers.values():
                            worker.end()

    def exit_code(self, once: bool) -> int:
        """Return the exit code of the run. Without ``once``, only an error changes the code."""
        from spool.workers.effects import Effect

        summaries = [worker.summary for worker in self.workers.values()] if once else []
        effects = {effect for effect in Effect for summary in summaries if getattr(summary, effect.value, 0)}
        return code_of_effects(effects, failed=self.errors, left=any(summary.left for summary in summaries))

    def _run(self, queue: str, worker: "Worker") -> None:
        try:
            worker.run()
        except BaseException as error:
            self.errors[queue] = error
            for other in self.workers.values():
                other.stop()

    def _signalled(self, number: int, frame: Any) -> None:
        self.signals.append(number)
        for worker in self.workers.values():
            worker.stop()
        if len(self.signals) == 1:
            note_at_once(f"{name_of(number)}: finishing the calls in progress; a second signal ends it at once")


@contextmanager
def _status(queues: list[str]) -> "Iterator[Callable[[str, WorkSummary], None]]":
    """Show the counts of each queue in one line of a terminal. Yield the function that updates a line."""
    if not sys.stderr.isatty():
        yield lambda queue, summary: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as lines:
        idle = "waiting for messages"
        tasks = {queue: lines.add_task(f"{queue}: {idle}", total=None) for queue in queues}
        yield lambda queue, summary: lines.update(tasks[queue], description=f"{queue}: {_in_words(summary, idle)}")


def _in_words(summary: "WorkSummary", none: str = "no messages") -> str:
    from spool.workers.effects import Effect

    counts = ((getattr(summary, effect.value, 0), effect.words) for effect in Effect)
    return ", ".join(f"{count:,} {words}" for count, words in counts if count) or none


def print_summary(
    queue: str, summary: "WorkSummary", error: BaseException | None, as_json: bool, delayed: str = ""
) -> None:
    """Print the outcomes of a queue's messages. ``delayed``: a description of the delayed messages."""
    if as_json:
        write_json({"queue": queue, **vars(summary), "error": None if error is None else describe(error)})
        return
    left = f"{summary.left:,} left" if summary.left else ""
    click.echo(f"{queue}: {'; '.join(filter(None, (_in_words(summary), left, delayed)))}")
    for effect, reason in summary.reasons.items():
        note(f"{queue}: {reason}" if effect == "delivered" else f"{queue}: the last failure: {reason}")
    if error is not None:
        note(f"{queue}: {describe(error)}")


if __name__ == "__main__":
    main()
