"""``spool-recover``: recover a space, and print the findings and repairs."""

import os
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from xaspool_scripts.terminal.exit_codes import exit_code
from xaspool_scripts.terminal.output import write_json
from xaspool_scripts.terminal.program import SingleProgram, json_option, open_space, space_path
from xaspool_scripts.terminal.wording import plural, printable

if TYPE_CHECKING:
    from spool import RecoveryReport

_MAX_SHOWN = 20

# (kind, singular, plural), with the worst kind first. A kind that is not listed is shown by its name.
_IN_WORDS = (
    ("damaged", "file was durable and is not whole any more", "files were durable and are not whole any more"),
    ("returned", "transaction lost its commit and waits for a decision again",
     "transactions lost their commit and wait for a decision again"),
    ("in doubt", "transaction waits for a decision", "transactions wait for a decision"),
    ("torn", "file was only half written: its commit was not flushed yet",
     "files were only half written: their commits were not flushed yet"),
    ("finished", "commit was complete, and its process died before it returned",
     "commits were complete, and their processes died before they returned"),
    ("empty number", "commit number has no file: not flushed yet", "commit numbers have no files: not flushed yet"),
    ("moved", "committed transaction was not yet in its final place",
     "committed transactions were not yet in their final place"),
    ("rolled back", "transaction was cut off before it committed", "transactions were cut off before they committed"),
    ("counted", "process died while it held messages; they are back in their queues",
     "processes died while they held messages; they are back in their queues"),
    ("taken", "batch of dropped files was not finished", "batches of dropped files were not finished"),
    ("stray", "file does not belong here", "files do not belong here"),
)  # fmt: skip


@click.command("spool-recover", cls=SingleProgram)
@click.option("--dry-run", is_flag=True, help="Print the actions of a recovery, and change nothing.")
@json_option
@click.pass_context
def main(context: click.Context, dry_run: bool, as_json: bool) -> None:
    """Recover a queue space after a crash, and print each finding with the action that was taken.

    Any program that opens a space recovers it; this command also prints a report, and removes the files that the space
    does not need any more. If other processes have the space
    open, the first of them has recovered it, and the report leaves out their transactions in progress.

    Exit codes: 0 fine, 1 it failed, 2 wrong usage, 4 a file is damaged, or quarantine/ holds
    one in which messages lay.

    \b
    Examples:
      spool-recover -s /var/spool/shop
      spool-recover --dry-run
    """
    from spool import plan_recovery

    path = space_path()
    if dry_run:
        report = plan_recovery(path)
    else:
        with open_space() as space:
            report = space.recovery
            report.findings += [finding for finding in space.quarantined() if finding.kind == "damaged"]
            report.others = [] if report.alone else space.engine.other_processes()
            space.engine.free_room()
    if as_json:
        found = {"path": os.path.abspath(path), "dry_run": dry_run, **asdict(report)}
        del found["others"]
        write_json(found)
    else:
        for line in _story(report, path, dry_run):
            click.echo(printable(line))
    context.exit(exit_code(damaged=report.damaged))


def _story(report: "RecoveryReport", path: str, dry_run: bool) -> Iterator[str]:
    did = "recovered" if report.alone and not dry_run else "looked at"
    commits = plural(report.published, "commit", "commits")
    yield f"queue space {os.path.abspath(path)}: {commits}, {did} in {report.seconds:.2f} s"
    if not report.alone:
        others = "; ".join(report.others[:5]) + ("; …" if len(report.others) > 5 else "")
        named = f" ({others})" if others else ""
        yield f"Other processes have it open{named}: it was recovered when the first of them opened it."
        yield "Their transactions in progress are not reported; spool-admin check looks for damage."
    if dry_run and any(finding.action for finding in report.findings):
        yield "Nothing was changed. A recovery would do this:"
    words = {kind: (one, many) for kind, one, many in _IN_WORDS}
    kinds = [*words, *sorted({str(finding.kind) for finding in report.findings} - set(words))]
    for kind in kinds:
        findings = [finding for finding in report.findings if finding.kind == kind]
        if findings:
            yield f"  {plural(len(findings), *words.get(kind, (kind, kind)))}:"
            for finding in findings[:_MAX_SHOWN]:
                yield f"    {finding.name}: {finding.detail}" + (f" → {finding.action}" if finding.action else "")
            if len(findings) > _MAX_SHOWN:
                yield f"    … and {len(findings) - _MAX_SHOWN:,} more: --json lists all"
    yield _summary(report, dry_run)


def _summary(report: "RecoveryReport", dry_run: bool) -> str:
    parts = []
    if report.damaged:
        parts.append(
            f"{plural(len(report.damaged), 'file is', 'files are')} damaged; every message that is whole is served. "
            "spool-admin check reads the files; a backup may have the messages that are missing"
        )
    else:
        if not report.alone:
            parts.append("nothing needs to be recovered now")
        parts.append("nothing that recovery reads is damaged; bodies are not read here: spool-admin check reads them")
    if report.in_doubt:
        decide = "its coordinator decides" if len(report.in_doubt) == 1 else "their coordinators decide"
        parts.append(
            f"{plural(len(report.in_doubt), 'transaction is', 'transactions are')} in doubt: "
            f"{decide}, or an administrator does: spool-admin transaction list"
        )
    return f"{'Dry run' if dry_run else 'Summary'}: {'; '.join(parts)}."


if __name__ == "__main__":
    main()
