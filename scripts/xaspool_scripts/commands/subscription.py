"""``spool-admin subscription``: list and delete subscriptions, i.e. the readers for which a space keeps messages."""

from dataclasses import asdict

import click

from xaspool_scripts.terminal.output import moment, write_all
from xaspool_scripts.terminal.program import Commands, json_option, note, opened
from xaspool_scripts.terminal.shared_options import confirm, yes_option
from xaspool_scripts.terminal.wording import plural, printable


@click.group(cls=Commands)
def subscription() -> None:
    """Subscriptions: streams of Spark, and archives, for which the space keeps each message until they have read it."""


@subscription.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the subscriptions, each with its queues, the place up to which it has read, and the data kept for it.

    The messages of a query's last batch count as unread until the query begins the next batch, because Spark reports
    the end of a batch only then.

    \b
    Example:
      spool-admin subscription list
    """
    with opened() as space:
        found = space.subscriptions()
    columns = ("name", "queues", "read to", "unread", "kept bytes", "expires at")
    rows = (
        (name, ", ".join(each.queues) or "all", each.read_to, each.unread, each.kept_bytes, moment(each.expires_at))
        for name, each in found.items()
    )
    nothing = "there are no subscriptions: a stream of Spark registers one by its option subscription, or an archive"
    write_all([{"name": name, **asdict(each)} for name, each in found.items()], as_json, columns, rows, nothing)


@subscription.command()
@click.argument("name", metavar="NAME")
@yes_option
def delete(name: str, yes: bool) -> None:
    """Delete a subscription, and remove the messages that are kept for no other subscription. On a terminal, the
    command asks first.

    The query of the subscription fails at its next batch, with an error that explains the next step.

    \b
    Example:
      spool-admin subscription delete seen --yes
    """
    with opened() as space:
        there = space.subscriptions().get(name)
        if there is not None:
            confirm(f"delete {printable(name)}, which has not read {plural(there.unread, 'message')}?", yes)
        space.delete_subscription(name)
    note(f"deleted {printable(name)}")
