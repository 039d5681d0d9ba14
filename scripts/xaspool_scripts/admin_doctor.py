"""``spool-admin doctor``: is this directory's file system good enough for a queue space?"""

import os

import click

from xaspool_scripts.common import FAILED, Failure, json_option, note, space_option, space_path
from xaspool_scripts.output import printable, table, write_json


@click.command()
@click.argument("directory", type=click.Path(), required=False)
@json_option
@space_option
@click.pass_context
def doctor(context: click.Context, directory: str | None, as_json: bool) -> None:
    """Prove that the file system of DIRECTORY, or of the space, does what a queue space needs.

    Locks, renames, flushes and the rest are tried out where the messages would lie; nothing is left behind. The
    directory may hold a space, also one in use, or none yet.

    Exit codes: 0 good enough, perhaps with warnings, 1 refused.

    \b
    Examples:
      spool-admin doctor /var/spool
      spool-admin -s /var/spool/shop doctor
    """
    from spool.clock import Clock
    from spool.disk import Disk
    from spool.filesystem import Outcome, examine

    path = directory if directory is not None else space_path(context)
    if not os.path.isdir(path):
        raise Failure(f"{printable(path)} is no directory: name one that is there, e.g. where the space shall be made")
    proofs = examine(Disk(path), Clock())
    if as_json:
        for proof in proofs:
            write_json(proof)
    else:
        table(("what", "outcome", "found"), [(proof.what, proof.outcome.value, proof.detail) for proof in proofs])
    refused = [proof.what for proof in proofs if proof.outcome is Outcome.REFUSED]
    warned = sum(proof.outcome is Outcome.WARNING for proof in proofs)
    if refused:
        note(f"refused: {', '.join(refused)}; a queue space in {printable(path)} would lose messages")
        context.exit(FAILED)
    note("good enough" + (f", with {warned} warning{'s' if warned > 1 else ''}" if warned else ""))
