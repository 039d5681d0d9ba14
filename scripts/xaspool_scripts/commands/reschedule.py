"""``spool-admin schedule change``: change a schedule in one step."""

from typing import Any, BinaryIO

import click

from spool.model.schedule import ONCE, SKIP
from xaspool_scripts.commands.put import body_of_command
from xaspool_scripts.terminal.output import moment
from xaspool_scripts.terminal.program import SpaceCommand, note, opened
from xaspool_scripts.terminal.shared_options import given

NAME = click.argument("name", metavar="NAME")
BODY = click.option("--body", metavar="TEXT", help="The body of each message as text; a consumer in Python gets a str.")
FILE = click.option(
    "--file", type=click.File("rb"), metavar="FILE", help="The file whose present content is each body."
)


@click.command(cls=SpaceCommand)
@NAME
@click.option("--cron", metavar="CRON", help="The new times of the messages, as for create.")
@click.option("--timezone", metavar="ZONE", help="The new time zone of --cron, e.g. Europe/Berlin.")
@BODY
@FILE
@click.option("--missed", type=click.Choice([ONCE, SKIP]), help="The new rule for missed times, as for create.")
def change(name: str, body: str | None, file: BinaryIO | None, **options: Any) -> None:
    """Change a schedule in one commit. Values that are not given remain.

    The schedule keeps the times of its last message. A message that is late is still put, with the new body.

    \b
    Examples:
      spool-admin schedule change nightly --timezone Europe/Berlin --missed skip
      spool-admin schedule change nightly --cron '30 4 * * *'
    """
    chosen = given(options)
    if (body is not None and file is not None) or not (chosen or body is not None or file):
        raise click.UsageError("give --cron, --timezone, --missed, or a body with --body or --file, not both")
    with opened() as space:
        if body is not None or file is not None:
            known = space.schedules().get(name)
            chosen["body"] = body_of_command(space, known.queue if known else "", body, file, chosen)
        changed = space.change_schedule(name, **chosen)
    note(f"changed schedule {name}, next at {moment(changed.next_due)}")
