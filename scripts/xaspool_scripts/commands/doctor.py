"""``spool-admin doctor``: test whether a directory's file system is good enough for a queue space."""

import os

import click

from xaspool_scripts import ownership
from xaspool_scripts.terminal.exit_codes import FAILED
from xaspool_scripts.terminal.output import write_all
from xaspool_scripts.terminal.program import Failure, SpaceCommand, json_option, note, space_path
from xaspool_scripts.terminal.wording import plural, printable

_USE = ("space", "room", "owner", "writing")  # a failure of these, or of a directory, loses no message


@click.command(cls=SpaceCommand)
@click.argument("directory", type=click.Path(readable=False), required=False)
@json_option
@click.pass_context
def doctor(context: click.Context, directory: str | None, as_json: bool) -> None:
    """Test whether the file system of DIRECTORY is good enough for a queue space.

    Without DIRECTORY, the command tests the file system of the space, or of the current directory. It tries locks,
    renames and flushes in the directory, and leaves no file there. The directory may be a space that is in use. The
    command also names other distributions that install the packages of xaspool.

    Exit codes: 0 good enough, perhaps with warnings, 1 refused, or packages of xaspool were overwritten.

    \b
    Examples:
      spool-admin doctor /var/spool
      spool-admin -s /var/spool/shop doctor
    """
    from spool.engine import examine, is_directory

    path = directory if directory is not None else space_path(context, otherwise=os.curdir)
    if not is_directory(path):
        raise Failure(f"{printable(path)} is no directory: name one that exists, e.g. the one to make the space in")
    trials = examine(path)
    rows = [(trial.what, trial.outcome.value, trial.detail) for trial in trials]
    write_all(trials, as_json, ("what", "outcome", "found"), rows, "no test was made")
    refused = [trial for trial in trials if trial.outcome == "refused"]
    warned = sum(trial.outcome == "warning" for trial in trials)
    shared = ownership.sentence()
    if shared:
        note(shared)
    if refused:
        reason = refused[0].detail if all(trial.what in _USE or trial.what.endswith("/") for trial in refused) else ""
        verdict = f"cannot be used: {reason}" if reason else "would lose messages"
        note(f"refused: {', '.join(trial.what for trial in refused)}; a queue space in {printable(path)} {verdict}")
        context.exit(FAILED)
    if ownership.damaged():
        context.exit(FAILED)
    note("good enough" + (f", with {plural(warned, 'warning')}" if warned else ""))
