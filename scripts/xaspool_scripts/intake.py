"""``spool-intake``: turn files in ``drop/<queue>/`` into messages."""

import sys
from typing import TYPE_CHECKING

import click

from xaspool_scripts.terminal.exit_codes import exit_code
from xaspool_scripts.terminal.output import write_json
from xaspool_scripts.terminal.program import SingleProgram, json_option, note, opened
from xaspool_scripts.terminal.signals import ending_signals
from xaspool_scripts.terminal.wording import plural

if TYPE_CHECKING:
    from spool.intake import IntakeCounts


@click.command("spool-intake", cls=SingleProgram)
@click.option("--once", is_flag=True, help="Take the files that are complete now, then exit.")
@json_option
@click.pass_context
def main(context: click.Context, once: bool, as_json: bool) -> None:
    """Turn files in drop/QUEUE/ into messages, each exactly once, until a signal ends the program.

    Write a file under a name that begins with '.' or ends in '.tmp' or '.part', and rename it when it is complete.
    The queue's options --drop-ignore, --drop-settle and --drop-marker are for programs that cannot rename. A
    file ending in .msgpack is a stream of maps {body, priority, correlation_id, ...}. A file that is refused
    goes to quarantine/ with the reason: see spool-admin quarantine. A file that another user wrote in place is taken
    once it has not changed for the space's drop_settle, 60 seconds by default.

    SIGTERM, Ctrl-C and other ending signals (SIGHUP, SIGUSR1, SIGUSR2, SIGALRM) end the program after the current
    commit, with exit code 0.

    \b
    Exit codes of --once:
      0  all files were taken, or there were none
      1  it failed
      5  files are left for later; standard error names each file, or the folder of a full queue, with the reason
      6  files were refused and moved to quarantine

    \b
    Examples:
      spool-intake -s /var/spool/shop
      cp order.json /var/spool/shop/drop/orders/.order && mv /var/spool/shop/drop/orders/.order \\
         /var/spool/shop/drop/orders/order.json
    """
    with opened() as space:
        from spool.intake import Intake

        shown = _on_terminal() and not (as_json or once)
        intake = Intake(space, progress=(lambda counts: note(_in_words(counts))) if shown else None)
        with ending_signals(lambda *_: intake.stop()):
            if not once:
                note(f"taking files from {space.path}/drop; Ctrl-C ends it")
            counts = intake.run(once)
    if as_json:
        write_json(counts)
    else:
        click.echo(_in_words(counts))
    if once:
        context.exit(exit_code(failed_for_good=counts.quarantined, left=counts.left))


def _on_terminal() -> bool:
    """Return whether standard error is a terminal. A log should not get a line for each commit."""
    return sys.stderr is not None and sys.stderr.isatty()


def _in_words(counts: "IntakeCounts") -> str:
    text = f"{plural(counts.files, 'file')} taken, {plural(counts.messages, 'message')}"
    text += f", {plural(counts.quarantined, 'file')} in quarantine" if counts.quarantined else ""
    text += f", {counts.left:,} left" if counts.left else ""
    return text + (f", {counts.ignored:,} ignored" if counts.ignored else "")


if __name__ == "__main__":
    main()
