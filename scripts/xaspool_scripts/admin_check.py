"""``spool-admin check``: read every byte of a space, name what is wrong, and repair it."""

import click

from xaspool_scripts.codes import COULD_NOT_LOOK, DAMAGE_LEFT
from xaspool_scripts.common import (
    Failure,
    describe,
    json_option,
    note,
    opened,
    space_option,
)  # fmt: skip
from xaspool_scripts.output import printable, write_json
from xaspool_scripts.wording import plural

CLEAN, REPAIRED = 0, 1


class CouldNotLook(Failure):
    """`check` could not read the space."""

    exit_code = COULD_NOT_LOOK


@click.command()
@click.option("--repair", is_flag=True, help="Repair what can be repaired, and move the rest to quarantine/.")
@json_option
@space_option
@click.pass_context
def check(context: click.Context, repair: bool, as_json: bool) -> None:
    """Read every byte of the space and name what is wrong.

    With --repair, what can be repaired is, and the rest moves to quarantine/, with the reason beside it; nothing is
    deleted. Other processes may have the space open: a file that one of them uses is named, and not repaired.

    Exit codes: 0 clean, 1 repaired, 4 damage left, 8 could not look.

    \b
    Examples:
      spool-admin check
      spool-admin check --repair
    """
    from spool.admin.findings import Kind
    from spool.errors import SpoolError

    try:
        with opened(tell=False) as space:
            first = space.check(repair=repair)
            left = [finding for finding in (space.check() if repair else first) if finding.kind is Kind.DAMAGED]
            kept = space.quarantined()
            checked = [*first, *kept]
            named = {finding.name for finding in checked}
            findings = [*checked, *(old for old in space.recovery.findings if old.name not in named)]
    except (SpoolError, OSError, Failure) as error:
        raise CouldNotLook(f"could not look: {describe(error)}") from error
    for finding in findings:
        if as_json:
            write_json(finding)
        else:
            click.echo(printable(str(finding)))
    repaired = sum(finding.repaired for finding in first) if repair else 0
    if left:
        also = f", {plural(repaired, 'file')} repaired" if repair else ""
        note(f"damage is left: {plural(len(left), 'file')}{also}; every other message is served")
    elif repaired:
        note(f"repaired: {plural(repaired, 'file')}")
    elif kept:
        note(f"nothing is damaged; quarantine/ keeps {plural(len(kept), 'file')}: see spool-admin quarantine list")
    else:
        note("clean" if not findings else "clean: nothing is damaged")
    context.exit(DAMAGE_LEFT if left else REPAIRED if repaired else CLEAN)
