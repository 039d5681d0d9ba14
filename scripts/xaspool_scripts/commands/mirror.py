"""``spool-admin mirror``: show, begin and end the mirror of a space, and create a space from a mirror."""

import os

import click

from xaspool_scripts.terminal.exit_codes import DAMAGE_LEFT, FAILED, NOTHING_THERE
from xaspool_scripts.terminal.output import table, write_json
from xaspool_scripts.terminal.program import Commands, json_option, new_space_path, note, space_path
from xaspool_scripts.terminal.shared_options import progress
from xaspool_scripts.terminal.wording import plural, printable


@click.group(cls=Commands)
def mirror() -> None:
    """A second directory, best on another disk, that has every commit of the space."""


@mirror.command()
@json_option
@click.pass_context
def show(context: click.Context, as_json: bool) -> None:
    """Show the mirror, and whether an opening accepts it. Nothing is changed.

    Exit codes: 0 fine, 1 an opening is refused, 3 the space has no mirror.

    \b
    Example:
      spool-admin mirror show -s /var/spool/shop
    """
    from spool import mirrors

    path = space_path()
    found = mirrors.describe(path)
    if found is None:
        note(f"{printable(os.path.abspath(path))} has no mirror: spool-admin mirror begin DIRECTORY begins one")
        context.exit(NOTHING_THERE)
    if as_json:
        write_json(found)
    else:
        columns = ("mirror", "state", "commits", "in the mirror", "missing there")
        table(columns, [(found.mirror, found.state, found.commits, found.mirror_commits, found.missing)])
        if found.detail:
            note(found.detail)
    if found.detail:
        context.exit(FAILED)


@mirror.command()
@click.argument("directory", type=click.Path())
def begin(directory: str) -> None:
    """Begin a new mirror in DIRECTORY.

    The directory is empty or does not exist yet. Every commit of the space is copied into the directory.

    No program may have the space open meanwhile. The parent of DIRECTORY must exist, because the other disk is mounted
    there. An earlier mirror of the space is not touched, and gets no more commits.

    \b
    Example:
      spool-admin mirror begin /mnt/disk2/shop -s /var/spool/shop
    """
    from spool import mirrors

    with mirrors.begin(space_path(), directory) as space:
        note(f"{printable(os.path.abspath(directory))} is the mirror of {printable(space.path)} now")


@mirror.command()
def drop() -> None:
    """End the mirror: the space goes on without one. The files of the mirror are not touched.

    No program may have the space open meanwhile.

    \b
    Example:
      spool-admin mirror drop -s /var/spool/shop
    """
    from spool import mirrors

    path = space_path()
    left = mirrors.drop(path)
    note(f"{printable(path)} has no mirror any more; {printable(left)} was not changed")


@mirror.command()
@click.argument("directory", metavar="MIRROR", type=click.Path())
@click.pass_context
def restore(context: click.Context, directory: str) -> None:
    """Make a new space out of the mirror in MIRROR.

    -s names the directory of the new space, which is empty. The mirror is not changed. The new space has no mirror
    until you begin one. If the command is interrupted, run it again.

    Exit codes: 0 fine, 1 it failed, 2 wrong usage, 4 a file of the mirror is damaged.

    \b
    Example:
      spool-admin mirror restore /mnt/disk2/shop -s /var/spool/shop
    """
    from spool import mirrors

    path = new_space_path()
    with progress("restoring", 1) as set_progress:
        made = mirrors.restore(path, directory, progress=lambda done, of: set_progress(done / max(1, of)))
    with made as space:
        found = (*space.recovery.findings, *space.check())
        damaged = {finding.name: finding for finding in found if finding.kind in ("damaged", "torn")}
        waiting = sum(stats.ready + stats.delayed for stats in space.stats().values())
        note(f"made a queue space in {printable(space.path)}, with {plural(waiting, 'message')}; it has no mirror yet")
    for finding in damaged.values():
        note(str(finding))
    if damaged:
        context.exit(DAMAGE_LEFT)
