"""``spool-admin archive``: write the messages of a queue to Parquet files."""

import os
from dataclasses import asdict

import click

from spool.model.paths import local_path
from xaspool_scripts.terminal.output import write_json
from xaspool_scripts.terminal.program import Failure, SpaceCommand, complete_queue, extra, json_option, note, opened
from xaspool_scripts.terminal.shared_options import duration, whole
from xaspool_scripts.terminal.wording import plural, printable

_MOST_EXPIRY = 366 * 86_400.0


@click.command(cls=SpaceCommand)
@click.argument("queue", metavar="QUEUE", shell_complete=complete_queue)
@click.option("--to", "directory", metavar="DIRECTORY", required=True, type=click.Path(), help="Where the files go.")
@click.option("--subscription", metavar="NAME", help="The name of the archive's subscription. Default: archive-QUEUE.")
@click.option(
    "--keep-for", "expiry", type=duration, metavar="TIME", default="30d",
    help="How long the space keeps messages for the next run, at most 366d. Written in seconds or e.g. 5m. "
    "Default: 30d.",
)  # fmt: skip
@click.option(
    "--row-group", type=whole, metavar="N", default=10_000,
    help="How many messages a row group has; so many are in memory at a time. Default: 10000.",
)  # fmt: skip
@click.option("--after-loss", is_flag=True, help="Go on although messages were lost, e.g. if no run came in time.")
@json_option
def archive(
    queue: str, directory: str, subscription: str | None, expiry: float, row_group: int, after_loss: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Write the messages that were put into QUEUE since the last run to Parquet files, each message exactly once.

    The first run writes the messages that are in the queue, and registers a subscription. From then on, the space keeps
    each message until a run has written it, even if a consumer took the message. The command takes no message.

    The files are DIRECTORY/date=YYYY-MM-DD/archive-QUEUE-FIRST-LAST.parquet, with the day of the put (UTC) and the
    numbers of the first and the last commit. If a run is killed or fails, run the command again.

    \b
    Examples:
      spool-admin archive orders --to /archive/orders
      spool-admin archive orders --to /archive/orders --keep-for 90d --json
    """
    if not 0 < expiry <= _MOST_EXPIRY:
        raise click.BadParameter("--keep-for is more than 0 and at most 366d")
    if row_group < 1:
        raise click.BadParameter("--row-group is a whole number from 1")
    with extra("parquet", "archive"):
        from forwarder.archive import Archive
    directory = local_path(directory, "an archive", "/archive/orders")
    if subscription == "":
        raise click.BadParameter("--subscription is empty: leave it out for archive-QUEUE, or write a name")
    if os.path.exists(directory) and not os.path.isdir(directory):
        raise click.BadParameter(f"{printable(directory)} is a file: --to names a directory")
    with opened() as space:
        space.stats(queue)  # refuses a wrong name
        try:
            report = Archive(
                space, queue, directory, subscription=subscription or f"archive-{queue}", expiry=expiry,
                row_group=row_group, after_loss=after_loss,
            ).run()  # fmt: skip
        except OSError as error:
            if type(error).__module__.startswith("spool"):
                raise
            text = f"{printable(directory)} cannot be written: {error.strerror or error}; run the command again, which "
            raise Failure(f"{text}archives each message once") from error
    if as_json:
        write_json(asdict(report))
    else:
        files = f" in {plural(len(report.files), 'file')}" if report.files else ""
        note(f"archived {plural(report.messages, 'message')} of {queue}{files} to {printable(directory)}")
