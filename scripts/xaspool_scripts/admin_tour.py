"""``spool-admin tour``: the sample application, step by step, with commands to type."""

import shlex
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from xaspool_scripts.common import note
from xaspool_scripts.output import printable

if TYPE_CHECKING:
    from spool import Space

_SENTENCE = "this is a q example"
_SERVICE = """\
for tx, message in space.consume("strings", timeout=0):
    tx.put(message.reply_queue, message.body.upper(), correlation_id=message.correlation_id)"""
_BROKEN = """\
for tx, message in space.consume("strings", timeout=0):
    raise RuntimeError("the service is broken")      # each failed try rolls the message back"""


@click.command()
@click.option(
    "--keep",
    metavar="PATH",
    type=click.Path(),
    help="The directory in which the tour's space is made and kept; without it, the space is removed.",
)
@click.pass_context
def tour(context: click.Context, keep: str | None) -> None:
    """Walk through a small application: a sentence goes in, a service answers it in capitals, and one breaks.

    Everything that is shown is done, in a space of its own, which is removed at the end.

    \b
    Examples:
      spool-admin tour
      spool-admin tour --keep /tmp/tour
    """
    program = context.find_root().command
    with _directory(keep) as path:
        guide = _Guide(program, path)
        guide.walk()
    note(f"the tour's space is {printable(path)}" if keep else "the tour's space is gone")
    note("spool-admin docs lists the pages that tell more")


@contextmanager
def _directory(keep: str | None) -> Iterator[str]:
    if keep is not None:
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="xaspool-tour-") as directory:
        yield f"{directory}/space"


class _Guide:
    """Says what comes, shows the command, and does it."""

    def __init__(self, program: click.Command, path: str) -> None:
        self._program = program
        self._path = path

    def walk(self) -> None:
        self._says("A queue space is a directory. There is no server: make it, and it is there.")
        self._does("init", self._path)
        click.echo(f"$ export SPOOL_SPACE={shlex.quote(self._path)}")
        self._says("Queues are named after the service that handles them. One says where answers and failures go.")
        self._does("queue", "create", "answers")
        self._does("queue", "create", "errors")
        options = ("--reply-queue", "answers", "--retries", "2", "--retry-delay", "0", "--error-queue", "errors")
        self._does("queue", "create", "strings", *options)
        self._says("Now a message is put. Once its id is printed, no power cut takes it back.")
        self._does("message", "put", "strings", "--body", _SENTENCE, "--correlation-id", "tour")
        self._does("queue", "list")
        self._says("A service takes it, and answers, in one transaction: both happen or neither does.")
        self._runs(_SERVICE, self._serve)
        self._says("The sender finds the answer by the correlation id.")
        self._does("message", "get", "answers", "--correlation-id", "tour")
        click.echo()
        self._says("Services break. A message comes back after each failed try, and after the last it is set aside.")
        self._does("message", "put", "strings", "--body", _SENTENCE)
        self._runs(_BROKEN, self._fail)
        self._does("message", "list", "errors")
        self._says("Once the service is mended, one command sends back what failed, to where it came from.")
        self._does("message", "redrive", "errors")
        self._runs(_SERVICE, self._serve)
        self._does("message", "get", "answers")
        click.echo()
        self._says("And this reads every byte, and says whether all is well.")
        self._does("check")

    def _says(self, text: str) -> None:
        click.echo(f"\n{text}\n")

    def _does(self, *words: str) -> None:
        """A command of this program, on the tour's space."""
        click.echo(f"$ spool-admin {shlex.join(words)}")
        arguments = [*words] if words[0] == "init" else ["-s", self._path, *words]
        with click.Context(self._program, info_name="spool-admin") as context:
            try:
                with self._program.make_context("spool-admin", arguments, parent=context) as made:
                    self._program.invoke(made)
            except click.exceptions.Exit as ended:
                if ended.exit_code:
                    raise

    def _runs(self, source: str, call: "Callable[[Space], None]") -> None:
        import spool

        for line in source.splitlines():
            click.echo(f"{'...' if line.startswith(' ') else '>>>'} {line}")
        with spool.open(self._path) as space:
            call(space)

    @staticmethod
    def _serve(space: "Space") -> None:
        for tx, message in space.consume("strings", timeout=0):
            assert message.reply_queue is not None
            tx.put(message.reply_queue, message.body.upper(), correlation_id=message.correlation_id)

    @staticmethod
    def _fail(space: "Space") -> None:
        while space.stats("strings").ready:
            try:
                for _ in space.consume("strings", timeout=0):
                    raise RuntimeError("the service is broken")
            except RuntimeError as error:
                click.echo(f"RuntimeError: {error}")
