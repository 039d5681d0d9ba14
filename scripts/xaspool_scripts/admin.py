"""``spool-admin``: make, inspect, change and repair a space."""

import click

from xaspool_scripts.admin_archive import export, import_
from xaspool_scripts.admin_docs import docs
from xaspool_scripts.admin_doctor import doctor
from xaspool_scripts.admin_init import init
from xaspool_scripts.admin_message import message
from xaspool_scripts.admin_quarantine import quarantine
from xaspool_scripts.admin_queue import queue
from xaspool_scripts.admin_tour import tour
from xaspool_scripts.admin_transaction import transaction
from xaspool_scripts.common import (
    COULD_NOT_LOOK,
    DAMAGE_LEFT,
    Failure,
    Program,
    describe,
    json_option,
    note,
    opened,
    space_option,
    version_option,
)  # fmt: skip
from xaspool_scripts.output import printable, write_json
from xaspool_scripts.wording import plural

CLEAN, REPAIRED = 0, 1


class CouldNotLook(Failure):
    """`check` could not read the space."""

    exit_code = COULD_NOT_LOOK


@click.group("spool-admin", cls=Program)
@space_option
@version_option
def main() -> None:
    """Administer a queue space.

    \b
    Examples:
      spool-admin init /var/spool/shop
      export SPOOL_SPACE=/var/spool/shop
      spool-admin queue create orders
      echo hello | spool-admin message put orders
      spool-admin message get orders

    \b
    Completion, for bash (zsh and fish likewise):
      eval "$(_SPOOL_ADMIN_COMPLETE=bash_source spool-admin)"

    Exit codes: 0 fine, 1 it failed, 2 wrong usage or a wrong value, 3 nothing there.
    """


@main.command()
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


main.add_command(docs)
main.add_command(init)
main.add_command(doctor)
main.add_command(queue)
main.add_command(message)
main.add_command(transaction)
main.add_command(quarantine)
main.add_command(export)
main.add_command(import_)
main.add_command(tour)

if __name__ == "__main__":
    main()
