"""``spool-admin quarantine``: list, show, restore and delete the files in quarantine."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from xaspool_scripts.bodies import as_json_fields
from xaspool_scripts.common import Commands, Failure, complete_quarantined, json_option, note, opened
from xaspool_scripts.options import confirm, yes_option
from xaspool_scripts.output import moment, pairs, write_all, write_json
from xaspool_scripts.wording import plural, printable

if TYPE_CHECKING:
    from spool import QuarantinedFile, Space

_NAME = click.argument("name", metavar="NAME", shell_complete=complete_quarantined)


@click.group(cls=Commands)
def quarantine() -> None:
    """Files in quarantine/: dropped files that were refused, and damaged files and messages of the space."""


@quarantine.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the files in quarantine with the time, the size, the reason, and the next step.

    \b
    Example:
      spool-admin quarantine list
    """
    with opened() as space:
        files = [space.quarantined_file(finding.name) for finding in space.quarantined()]
    columns = ("name", "since", "bytes", "reason", "what to do")
    rows = ((file.name, moment(file.since), file.size, file.reason, file.advice) for file in files)
    write_all([_object(file) for file in files], as_json, columns, rows, "quarantine is empty")


@quarantine.command()
@_NAME
@json_option
def show(name: str, as_json: bool) -> None:
    """Show why a file is in quarantine, the next step, and its first 1,024 bytes.

    \b
    Example:
      spool-admin quarantine show active.order.msgpack
    """
    with opened() as space:
        file = _file(space, name)
        place = f"{space.path}/quarantine/{file.name}"
    if as_json:
        write_json(_object(file))
        return
    shown = {"name": file.name, "file": place, "since": moment(file.since), "bytes": file.size}
    pairs({**shown, "queue": file.queue, "reason": file.reason, "what to do": file.advice})
    if file.beginning:
        click.echo()
        click.echo(printable(file.beginning.decode("utf-8", "backslashreplace"), keep="\n\t"))


@quarantine.command()
@_NAME
def restore(name: str) -> None:
    """Put a dropped file back into the folder of its queue, under its old name. The next spool-intake takes the file
    there.

    If the file itself is wrong, correct it in quarantine/ first. Only dropped files can be put back.

    \b
    Example:
      spool-admin quarantine restore active.order.msgpack
    """
    with opened() as space:
        place = space.restore_quarantined(_file(space, name).name)
    note(f"put back as {printable(place)}; spool-intake takes it")


@quarantine.command()
@_NAME
@yes_option
def delete(name: str, yes: bool) -> None:
    """Delete a file in quarantine and its reason for good. On a terminal, the command asks first.

    \b
    Example:
      spool-admin quarantine delete active.order.msgpack --yes
    """
    with opened() as space:
        file = _file(space, name)
        size = "no regular file" if file.size is None else plural(file.size, "byte")
        confirm(f"delete {printable(file.name)} ({size}) for good?", yes)
        space.delete_quarantined(name)
    note(f"deleted {printable(file.name)}")


def _file(space: "Space", name: str) -> "QuarantinedFile":
    """Return the file of this name. If the file is missing, the exit code is 1, as for a missing message."""
    import spool

    try:
        return space.quarantined_file(name)
    except spool.InvalidArgument as error:
        raise Failure(str(error)) from error


def _object(file: "QuarantinedFile") -> dict[str, Any]:
    return asdict(file) | as_json_fields("beginning", file.beginning)
