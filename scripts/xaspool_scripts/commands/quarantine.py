"""``spool-admin quarantine``: list, show, restore and delete the files in quarantine."""

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from xaspool_scripts.terminal.output import moment, pairs, short, table, write_json
from xaspool_scripts.terminal.output import show as as_text
from xaspool_scripts.terminal.program import (
    AnyFunction,
    Commands,
    Failure,
    complete_quarantined,
    json_option,
    note,
    opened,
)
from xaspool_scripts.terminal.shared_options import attempt_each, confirm, fail, yes_option
from xaspool_scripts.terminal.wording import on_terminal, plural, printable

if TYPE_CHECKING:
    from spool import QuarantinedFile, Space

_NAME = click.argument("name", metavar="NAME", shell_complete=complete_quarantined)
_WIDTH, _LEAST_REASON = 100, 20  # the width of a line, and the least width of a reason, in columns


@click.group(cls=Commands)
def quarantine() -> None:
    """Files in quarantine/: dropped files that were refused, and damaged files and messages of the space."""


def _choice(function: AnyFunction) -> AnyFunction:
    """Add the arguments that choose files: names, a cause, or all files."""
    for option in (
        click.option("--all", "every", is_flag=True, help="Choose all files in quarantine/."),
        click.option("--cause", metavar="CAUSE", help="Choose all files with this cause, which list shows."),
        click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete_quarantined),
    ):
        function = option(function)
    return function


@quarantine.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the files in quarantine with the time, the cause, the size and the reason. Standard error names the next
    step for each cause.

    \b
    Example:
      spool-admin quarantine list
    """
    with opened() as space:
        files = _files(space)
    if as_json:
        for file in files:
            write_json(_object(file))
        return
    if not files:
        note("quarantine is empty")
        return
    rows = [(as_text(moment(file.since))[:16], file.cause, file.size, file.name) for file in files]
    columns = ("since", "cause", "bytes", "name")
    widths = [max(len(as_text(row[at])) for row in [columns, *rows]) for at in range(len(columns))]
    left = max(_LEAST_REASON, _WIDTH - sum(widths) - 2 * len(columns))
    reasons = [file.problem if on_terminal() else short(file.problem, left) for file in files]
    table(
        ("since", "cause", "bytes", "reason", "name"),
        [(*row[:3], reason, row[3]) for row, reason in zip(rows, reasons, strict=True)],
    )
    kinds = Counter((file.cause, file.advice, file.can_be_restored) for file in files)
    for (cause, advice, can_be_restored), count in kinds.items():
        note(f"{cause} ({plural(count, 'file')}): {advice}")
        if can_be_restored and count > 1:
            note(f"all of them: spool-admin quarantine restore --cause {cause}")


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
    pairs({**shown, "queue": file.queue, "cause": file.cause, "reason": file.reason, "what to do": file.advice})
    if file.beginning:
        from spool.watch.body_text import beginning

        click.echo()
        click.echo(printable(beginning(file.beginning), keep="\n\t"))


@quarantine.command()
@_choice
def restore(names: tuple[str, ...], cause: str | None, every: bool) -> None:
    """Put dropped files back into the folders of their queues, under their old names. The next spool-intake takes the
    files there.

    If the file itself is wrong, correct it in quarantine/ first. Only dropped files can be put back. With --all, the
    command leaves the other files in quarantine/.

    \b
    Examples:
      spool-admin quarantine restore active.order.msgpack
      spool-admin quarantine restore --cause too-large
    """
    with opened() as space:
        files = _chosen(space, names, cause, every)
        possible = [file for file in files if file.can_be_restored] if every else files
        places: list[str] = []
        failed = attempt_each(possible, lambda file: places.append(space.restore_quarantined(file.name)))
    if len(places) == 1:
        note(f"put back as {printable(places[0])}; spool-intake takes it")
    elif places or not failed:
        note(f"put back {plural(len(places), 'file')}; spool-intake takes them")
    if len(files) > len(possible):
        note(f"{plural(len(files) - len(possible), 'other file')} cannot be put back: see spool-admin quarantine list")
    fail(failed)


@quarantine.command()
@_choice
@yes_option
def delete(names: tuple[str, ...], cause: str | None, every: bool, yes: bool) -> None:
    """Delete files in quarantine and their reasons for good. On a terminal, the command asks first.

    \b
    Examples:
      spool-admin quarantine delete active.order.msgpack --yes
      spool-admin quarantine delete --cause refused --yes
    """
    with opened() as space:
        files = _chosen(space, names, cause, every)
        if len(files) == 1:
            size = "no regular file" if files[0].size is None else plural(files[0].size, "byte")
            confirm(f"delete {printable(files[0].name)} ({size}) for good?", yes)
        elif files:
            damaged = sum(file.is_damage for file in files)
            lay = f", {damaged} of them with messages of the space," if damaged else ""
            confirm(f"delete {plural(len(files), 'file')}{lay} for good?", yes)
        failed = attempt_each(files, lambda file: space.delete_quarantined(file.name))
    done = len(files) - len(failed)
    if done == 1 and len(files) == 1:
        note(f"deleted {printable(files[0].name)}")
    elif done or not failed:
        note(f"deleted {plural(done, 'file')}")
    fail(failed)


def _files(space: "Space") -> "list[QuarantinedFile]":
    return [space.quarantined_file(finding.name) for finding in space.quarantined()]


def _chosen(space: "Space", names: tuple[str, ...], cause: str | None, every: bool) -> "list[QuarantinedFile]":
    """Return the chosen files. The user has to give exactly one of names, a cause, and --all."""
    if bool(names) + (cause is not None) + every != 1:
        raise click.UsageError("give the names of files, or --cause CAUSE, or --all: spool-admin quarantine list")
    if names:
        return [_file(space, name) for name in dict.fromkeys(names)]
    files = _files(space)
    if cause is None:
        return files
    found = [file for file in files if file.cause == cause]
    if not found:
        there = ", ".join(sorted({file.cause for file in files})) or "no file"
        raise Failure(f"no file in quarantine has the cause {cause!r}: there is {there}")
    return found


def _file(space: "Space", name: str) -> "QuarantinedFile":
    """Return the file with this name, or with the escaped name that ``list`` prints. If no such file exists, the exit
    code is 1, as for a missing message."""
    import spool

    try:
        return space.quarantined_file(name)
    except spool.InvalidArgument as error:
        for file in _files(space):
            if printable(file.name) == name:
                return file
        raise Failure(str(error)) from error


def _object(file: "QuarantinedFile") -> dict[str, Any]:
    from spool.model.objects import as_json_fields

    return asdict(file) | as_json_fields("beginning", file.beginning)
