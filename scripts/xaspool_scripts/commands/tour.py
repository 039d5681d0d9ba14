"""``spool-admin tour``: run the sample application step by step, and show the commands."""

import shlex
import tempfile

import click

from xaspool_scripts.sample import SENTENCE
from xaspool_scripts.terminal.program import note
from xaspool_scripts.terminal.wording import printable

# The tour shows this code, and runs the code on the tour's space.
_SERVICE = """\
def capitals(message):
    return message.body.upper()                      # the reply
space.work("strings", capitals, once=True)"""
_BROKEN = """\
def broken(message):
    raise spool.Retry("the service is broken")       # the message goes back to its queue
for _ in range(3):
    space.work("strings", broken, once=True)"""


@click.command()
@click.option(
    "--keep", metavar="PATH", type=click.Path(),
    help="The directory in which the tour's space is made and kept; without it, the space is removed.",
)  # fmt: skip
@click.pass_context
def tour(context: click.Context, keep: str | None) -> None:
    """Walk through a small application: a service answers a sentence in capitals, then it fails.

    The tour runs each command that it shows, in a separate space, and removes that space at the end.

    \b
    Examples:
      spool-admin tour
      spool-admin tour --keep /tmp/tour
    """
    with tempfile.TemporaryDirectory(prefix="xaspool-tour-") as directory:
        path = keep or f"{directory}/space"
        _Guide(context.find_root().command, path).walk()
    note(f"the tour's space is {printable(path)}" if keep else "the tour's space was removed")
    note("spool-admin docs lists the pages of the documentation")


class _Guide:
    def __init__(self, program: click.Command, path: str) -> None:
        self._program = program
        self._path = path

    def walk(self) -> None:
        self._explain("A queue space is a directory. There is no server: init makes it, once.")
        self._command("init", self._path, "--if-missing")
        click.echo(f"$ export SPOOL_SPACE={shlex.quote(self._path)}")
        self._explain("A queue is named after its service. Its options name other queues, for replies and errors.")
        self._command("queue", "create", "answers", "--if-missing")
        self._command("queue", "create", "errors", "--if-missing")
        options = ("--reply-queue", "answers", "--retries", "2", "--retry-delay", "0", "--error-queue", "errors")
        self._command("queue", "create", "strings", *options, "--if-missing")
        self._explain("Now a message is put. Once its id is printed, it is durable: it survives a power cut.")
        self._command("message", "put", "strings", "--body", SENTENCE, "--correlation-id", "tour")
        self._command("queue", "list")
        self._explain("A service takes it and puts the reply, in one transaction: both happen or neither does.")
        self._python(_SERVICE)
        self._explain("The sender finds the reply by the correlation id.")
        self._command("message", "get", "answers", "--correlation-id", "tour")
        click.echo()
        self._explain(
            "Services fail. A message comes back after a failed attempt; after the last, it is in the error queue."
        )
        self._command("message", "put", "strings", "--body", SENTENCE)
        self._python(_BROKEN)
        self._command("message", "list", "errors")
        self._explain("When the service works again, one command moves failed messages back to their queues.")
        self._command("message", "redrive", "errors")
        self._python(_SERVICE)
        self._command("message", "get", "answers")
        click.echo()
        self._explain("The last command reads every byte of the space, and names damaged files.")
        self._command("check")

    def _explain(self, text: str) -> None:
        click.echo(f"\n{text}\n")

    def _command(self, *words: str) -> None:
        """Show and run a command of this program, on the tour's space."""
        click.echo(f"$ spool-admin {shlex.join(words)}")
        arguments = [*words] if words[0] == "init" else ["-s", self._path, *words]
        with click.Context(self._program, info_name="spool-admin") as parent:
            try:
                with self._program.make_context("spool-admin", arguments, parent=parent) as context:
                    self._program.invoke(context)
            except click.exceptions.Exit as ended:
                if ended.exit_code:
                    raise

    def _python(self, source: str) -> None:
        """Show and run code."""
        import spool

        for line in source.splitlines():
            click.echo(f"{'...' if line.startswith(' ') else '>>>'} {line}")
        with spool.open(self._path) as space:
            exec(source, {"spool": spool, "space": space})
