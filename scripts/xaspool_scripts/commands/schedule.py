"""``spool-admin schedule``: create, list, show, change, delete and run schedules, which put messages at set times."""

from typing import Any, BinaryIO

import click

from spool.model.message import PUT_OPTIONS
from spool.model.objects import as_json_fields
from spool.model.schedule import OF_ONE_MESSAGE, ONCE, SKIP
from xaspool_scripts.commands import reschedule
from xaspool_scripts.commands.put import body_of_command, write_id
from xaspool_scripts.terminal.exit_codes import WRONG_USAGE
from xaspool_scripts.terminal.output import answering, moment, pairs, write_all, write_json
from xaspool_scripts.terminal.program import Commands, Failure, complete_queue, json_option, note, opened
from xaspool_scripts.terminal.shared_options import confirm, given, lifetime, options_of, yes_option
from xaspool_scripts.terminal.wording import printable

_OPTIONS = {name: option for name, option in PUT_OPTIONS.items() if name not in OF_ONE_MESSAGE}


@click.group(cls=Commands, commands=[reschedule.change])
def schedule() -> None:
    """Schedules: messages that the space puts at set times, e.g. each night."""


@schedule.command()
@reschedule.NAME
@click.argument("queue", metavar="QUEUE", shell_complete=complete_queue)
@click.option("--cron", required=True, metavar="CRON", help="The times of the messages; see below.")
@click.option(
    "--timezone", default="UTC", show_default=True, metavar="ZONE", help="The time zone of --cron, e.g. Europe/Berlin."
)
@reschedule.BODY
@reschedule.FILE
@click.option("--missed", type=click.Choice([ONCE, SKIP]), default=ONCE, help="The rule for missed times; see below.")
@click.option("--if-missing", "exist_ok", is_flag=True, help="It is no error if the same schedule exists.")
@options_of(_OPTIONS, types={"time_to_live": lifetime})
def create(name: str, queue: str, body: str | None, file: BinaryIO | None, **options: Any) -> None:
    """Create a schedule, which puts a message into QUEUE at each time. A process that has the space open puts it.

    CRON is the minute, the hour, the day of the month, the month and the day of the week, as in a crontab, e.g.
    '0 3 * * *'. Six fields begin with the second. Also @hourly, @daily, @weekly, @monthly and @yearly. The body has at
    most 64 KiB.

    If times were missed, e.g. because no process had the space open, --missed once, the default, puts one message for
    all of them. With --missed skip, a time that is more than a minute late puts none.

    \b
    Examples:
      spool-admin schedule create nightly reports --cron @daily --timezone Europe/Berlin --body all
      spool-admin schedule create poll mail --cron @hourly --file poll.json --missed skip --time-to-live 1h
    """
    if (body is None) is (file is None):
        raise click.UsageError("give the body of the messages with --body or --file")
    chosen = given(options)
    with opened() as space:
        made = space.create_schedule(name, queue, body_of_command(space, queue, body, file, chosen), **chosen)
        note(f"schedule {name} puts into queue {queue}, next at {moment(made.next_due)}")


@schedule.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the schedules, each with its next time, its last put, and the reason if its message cannot be put.

    \b
    Example:
      spool-admin schedule list
    """
    with opened() as space:
        found = list(space.schedules().values())
    columns = ("name", "queue", "cron", "timezone", "next due", "last put", "last error")
    rows = (
        (each.name, each.queue, each.cron, each.timezone, moment(each.next_due), moment(each.last_put), each.error)
        for each in found
    )
    nothing = "the space has no schedules yet: make one with spool-admin schedule create NAME QUEUE"
    write_all([each.as_dict() for each in found], as_json, columns, rows, nothing)


@schedule.command()
@reschedule.NAME
@json_option
def show(name: str, as_json: bool) -> None:
    """Show a schedule with the body and the options of its messages.

    \b
    Example:
      spool-admin schedule show nightly
    """
    with opened() as space:
        found = space.schedules().get(name)
    if found is None:
        raise Failure(f"there is no schedule {name}: spool-admin schedule list names them", WRONG_USAGE)
    fields = {**found.as_dict(), **as_json_fields("body", found.raw)}
    if as_json:
        write_json(fields)
        return
    times = {field: moment(fields[field]) for field in ("next_due", "last_due", "last_put")}
    pairs({field.replace("_", " "): value for field, value in {**fields, **times}.items()})


@schedule.command()
@reschedule.NAME
@yes_option
def delete(name: str, yes: bool) -> None:
    """Delete a schedule. Its messages remain in the queue. On a terminal, the command asks first.

    \b
    Example:
      spool-admin schedule delete nightly --yes
    """
    with opened() as space:
        confirm(f"Delete the schedule {printable(name)}?", yes)
        space.delete_schedule(name)
    note(f"deleted schedule {name}")


@schedule.command()
@reschedule.NAME
@json_option
def run(name: str, as_json: bool) -> None:
    """Put the message of a schedule now, and print its id. The times of the schedule do not change.

    \b
    Example:
      spool-admin schedule run nightly
    """
    with opened() as space:
        message_id = space.run_schedule(name)
    with answering(f"message {message_id} was put"):
        write_id(message_id, as_json)
