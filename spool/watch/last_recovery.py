"""The findings of the last recovery that found something, in ``run/recovery``."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from spool.admin.findings import Finding, Kind, RecoveryRecord, RecoveryReport
from spool.disk.content import unlink_if_there
from spool.disk.disk import Disk
from spool.model import layout
from spool.store import run_files

_MOST_FINDINGS = 1_000


def record_recovery(disk: Disk, report: RecoveryReport, at: float) -> None:
    """Keep the findings of a recovery until the next recovery that finds something; damage, until none is found."""
    findings = [asdict(finding) for finding in report.findings[:_MOST_FINDINGS]]
    if findings:
        run_files.write(disk, layout.RECOVERY, {"at": at, "seconds": report.seconds, "findings": findings})
    elif (last := last_recovery(disk)) is not None and any(finding.is_damage_left for finding in last.findings):
        unlink_if_there(disk, layout.RECOVERY)


def last_recovery(disk: Disk) -> RecoveryRecord | None:
    """Return the last recovery that found something, or None. A file that cannot be read counts as none."""
    try:
        value = run_files.read(disk, layout.RECOVERY)
        return None if value is None else recovery_of(value)
    except (OSError, *run_files.UNREADABLE):
        return None


def recovery_of(value: Mapping[str, Any]) -> RecoveryRecord:
    return RecoveryRecord(value["at"], value["seconds"], tuple(map(finding_of, value["findings"])))


def finding_of(value: Mapping[str, Any]) -> Finding:
    return Finding(**{**value, "kind": Kind(value["kind"]), "position": None})
