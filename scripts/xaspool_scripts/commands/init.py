"""``spool-admin init``: create a queue space."""

import os
import shlex
import sys
from typing import Any

import click

from spool.model.settings import SPACE_OPTIONS
from xaspool_scripts.terminal.exit_codes import WRONG_USAGE
from xaspool_scripts.terminal.program import Failure, note, typed_values
from xaspool_scripts.terminal.shared_options import confirm, given, group, options_of, yes_option
from xaspool_scripts.terminal.wording import plural, printable

_MAX_NAMED = 3


@click.command()
@click.argument("path", type=click.Path())
@options_of(SPACE_OPTIONS, types={"mirror": click.Path(file_okay=False), "monitor_group": group})
@click.option(
    "--if-missing", "exist_ok", is_flag=True,
    help="Make the space only if it does not exist; if it exists with other options than these, that is an error.",
)  # fmt: skip
@yes_option
def init(path: str, yes: bool, exist_ok: bool, **options: Any) -> None:
    """Create a new queue space in the directory PATH, which is created if it does not exist.

    If PATH holds the messages of a space that has lost its space.toml, these messages belong to the new space: create
    their queues again. If PATH holds other files, the command asks on a terminal, and needs --yes elsewhere.

    \b
    Examples:
      spool-admin init /var/spool/shop
      spool-admin init /var/spool/shop --if-missing
      spool-admin init /mnt/disk/shop --mirror /mnt/other-disk/shop --max-bytes '10 GiB'
    """
    import spool
    from spool.engine import examine_kind
    from spool.model import layout
    from spool.model.paths import local_path

    if options["mirror"] is not None:
        options["mirror"] = os.path.abspath(local_path(options["mirror"]))
    path = local_path(path)
    _refuse_foreign_files(path, yes)
    if options["network_file_system"] is not None:
        _require_network(path, options["network_file_system"])
    existed = os.path.exists(os.path.join(path, layout.SETTINGS))
    with typed_values(), spool.create(path, exist_ok=exist_ok, **given(options)) as space:
        damaged = space.recovery.damaged
        made = space.path
    for finding in damaged:
        note(str(finding))
    kind = examine_kind(made)
    if kind.outcome != "fine":
        note(f"warning: {kind.detail} (run spool-admin doctor)")
    following = "" if damaged else f"; next: spool-admin -s {printable(shlex.quote(path))} queue create NAME"
    note(f"{printable(made)} is a queue space" if existed else f"made a queue space in {printable(made)}{following}")


def _refuse_foreign_files(path: str, yes: bool) -> None:
    """On a terminal, ask before a space is created among other files. Without a terminal, refuse."""
    from spool.model import layout

    if yes or not os.path.isdir(path):
        return
    names = os.listdir(path)
    foreign = layout.foreign(names)
    if not foreign or layout.SETTINGS in names:
        return
    named = ", ".join(map(printable, foreign[:_MAX_NAMED])) + (", …" if len(foreign) > _MAX_NAMED else "")
    holds = f"{printable(path)} is not empty: it holds {plural(len(foreign), 'other file')} ({named})"
    if sys.stdin is None or not sys.stdin.isatty():
        raise Failure(f"{holds}; choose an empty or a new directory, or insist with --yes")
    confirm(f"{holds}. Make a queue space among them?", yes, "nothing was made")


def _require_network(path: str, kind: str) -> None:
    """Refuse --network-file-system for a directory on a local file system."""
    from spool.engine import local_file_system

    existing = os.path.abspath(path)
    while not os.path.isdir(existing):
        existing = os.path.dirname(existing)
    local = local_file_system(existing)
    if local is not None:
        place = f"{printable(path)} lies on {local}, which is none"
        raise Failure(f"--network-file-system {kind}: {place}: leave it out", WRONG_USAGE)
