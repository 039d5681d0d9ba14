"""``spool-admin check``: read every byte of a space, name the damaged files, and repair them."""

from typing import TYPE_CHECKING

import click

from xaspool_scripts.terminal.exit_codes import COULD_NOT_LOOK, FINE, exit_code
from xaspool_scripts.terminal.output import write_json
from xaspool_scripts.terminal.program import Failure, SpaceCommand, describe, json_option, note, opened
from xaspool_scripts.terminal.wording import plural, printable

if TYPE_CHECKING:
    from spool import Finding

REPAIRED = 1


@click.command(cls=SpaceCommand)
@click.option(
    "--repair", is_flag=True, help="Repair damaged files where that is possible, and move the others to quarantine/."
)
@json_option
@click.pass_context
def check(context: click.Context, repair: bool, as_json: bool) -> None:
    """Read every byte of the space and name each damaged file.

    With --repair, the command repairs each file that can be repaired. It moves other damaged files and messages to
    quarantine/, with the reason beside each, and deletes nothing. Other processes may have the space open. The command
    does not repair a file that another process uses.

    A damaged file counts as damage until it is repaired, or until its remains in quarantine/ are deleted. Put the
    readable messages of these remains as new messages, then delete the file with spool-admin quarantine delete. The
    command also names dropped files that were refused; they do not count as damage.

    Exit codes: 0 clean, 1 repaired, 4 damage left, 8 could not look.

    \b
    Examples:
      spool-admin check
      spool-admin check --repair
    """
    from spool.errors import SpoolError

    try:
        with opened(tell=False) as space:
            first = space.check(repair=repair)
            now = space.check() if repair else first
            kept = space.quarantined()
            checked = [*first, *kept]
            named = {finding.name for finding in checked}
            findings = [*checked, *(old for old in space.recovery.findings if old.name not in named)]
    except (SpoolError, OSError, Failure) as error:
        raise Failure(f"could not look: {describe(error)}", COULD_NOT_LOOK) from error
    for finding in findings:
        if as_json:
            write_json(finding)
        else:
            click.echo(printable(str(finding)))
    repaired = sum(finding.repaired for finding in first) if repair else 0
    note(_in_words(_damaged(now), _damaged(kept), repaired, len(kept)))
    damage = _damaged(now) + _damaged(kept)
    context.exit(exit_code(damaged=damage) or (REPAIRED if repaired else FINE))


def _damaged(findings: "list[Finding]") -> int:
    return sum(finding.kind == "damaged" for finding in findings)


def _in_words(in_place: int, in_quarantine: int, repaired: int, kept: int) -> str:
    """Return the summary in words. ``kept``: the number of all files in quarantine."""
    also = f"; repaired: {plural(repaired, 'file')}" if repaired else ""
    if in_place:
        return f"damage is left: {plural(in_place, 'file')}{also}; every other message is served"
    if in_quarantine:
        return (
            f"damage is left in quarantine/: {plural(in_quarantine, 'file')} in which messages lay{also}; every other "
            "message is served: see spool-admin quarantine list"
        )
    if repaired:
        return f"repaired: {plural(repaired, 'file')}"
    if kept:
        return f"clean; quarantine/ keeps {plural(kept, 'file')} without messages: see spool-admin quarantine list"
    return "clean: nothing is damaged"
