"""``spool-intake``: files in ``drop/<queue>/`` become messages."""

import signal
from typing import TYPE_CHECKING

import click

from xaspool_scripts.common import SingleProgram, json_option, note, opened, space_option, version_option
from xaspool_scripts.output import write_json

if TYPE_CHECKING:
    from spool.intake import IntakeCounts


@click.command("spool-intake", cls=SingleProgram)
@click.option("--once", is_flag=True, help="Take what is there now, then exit.")
@json_option
@space_option
@version_option
def main(once: bool, as_json: bool) -> None:
    """Turn files in drop/QUEUE/ into messages, each exactly once; runs until it is stopped.

    Write a file under a name that begins with '.' or ends in '.tmp' or '.part', and rename it when it is complete. A
    file ending in .msgpack is a stream of maps {body, priority, correlation_id, ...}. What is not acceptable goes to
    quarantine/ with the reason. SIGTERM and Ctrl-C end it after the commit it is at, with exit code 0.

    \b
    Examples:
      spool-intake -s /var/spool/shop
      cp order.json /var/spool/shop/drop/orders/.order && mv /var/spool/shop/drop/orders/.order \\
         /var/spool/shop/drop/orders/order.json
    """
    with opened() as space:
        from spool.intake import Intake

        intake = Intake(space, progress=None if as_json or once else _progress)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: intake.stop())
        if not once:
            note(f"taking files from {space.path}/drop; Ctrl-C ends it")
        counts = intake.run(once)
    if as_json:
        write_json(counts)
    else:
        click.echo(_in_words(counts))


def _progress(counts: "IntakeCounts") -> None:
    note(_in_words(counts))


def _in_words(counts: "IntakeCounts") -> str:
    text = f"{counts.files:,} files taken, {counts.messages:,} messages"
    return text + (f", {counts.quarantined:,} files in quarantine" if counts.quarantined else "")


if __name__ == "__main__":
    main()
