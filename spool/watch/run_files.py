"""Files of ``run/`` that hold one value for people: the findings of the last recovery, and the published metrics.

Such a file is written under a temporary name and renamed, so that a reader finds a whole file. The file is not flushed,
because its loss does no harm. A checksum detects a file that a power cut left incomplete.
"""

import zlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import msgpack

from spool.admin.findings import Finding, Kind, RecoveryRecord, RecoveryReport
from spool.disk.content import opened, unlink_if_there
from spool.disk.disk import FILE_MODE, Disk
from spool.errors import CorruptedFile, NewerFormat
from spool.model import layout

_VERSION = 1
_CHECKSUM_BYTES = 4
_MOST_BYTES = 64 << 20
_MOST_FINDINGS = 1_000
_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, msgpack.UnpackException)


def write(disk: Disk, name: str, value: Mapping[str, Any], *, mode: int = FILE_MODE, group: int | None = None) -> None:
    """Replace the file by a value of maps, lists, texts and numbers."""
    # (the name of a file may have any bytes)
    packed = msgpack.packb({"version": _VERSION, **value}, unicode_errors="surrogateescape")
    temporary = f"{name}.tmp"
    unlink_if_there(disk, temporary)
    handle = disk.create(temporary)
    try:
        disk.write_at(handle, 0, zlib.crc32(packed).to_bytes(_CHECKSUM_BYTES, "big") + packed)
    finally:
        disk.close(handle)
    if mode != FILE_MODE:
        disk.set_mode(temporary, mode, group)
    disk.rename(temporary, name)


def read(disk: Disk, name: str) -> dict[str, Any] | None:
    """Return the value of the file; None if the file does not exist.

    Raises CorruptedFile, NewerFormat, and OSError.
    """
    found = disk.identity(name)
    if found is None:
        return None
    with opened(disk, name) as handle:
        data = disk.read_at(handle, 0, _MOST_BYTES)
    checksum, packed = data[:_CHECKSUM_BYTES], data[_CHECKSUM_BYTES:]
    damaged = CorruptedFile(f"{disk.path(name)} is damaged: delete it, a process with the space open writes it again")
    if zlib.crc32(packed).to_bytes(_CHECKSUM_BYTES, "big") != checksum:
        raise damaged
    try:
        value: dict[str, Any] = msgpack.unpackb(packed, use_list=False, unicode_errors="surrogateescape")
        version = value.pop("version")
    except _UNREADABLE:
        raise damaged from None
    if version != _VERSION:
        raise NewerFormat(f"{disk.path(name)} was written by another version of xaspool: use the same version here")
    return value


def record_recovery(disk: Disk, report: RecoveryReport, at: float) -> None:
    """Keep the findings of a recovery until the next recovery that finds something."""
    findings = [asdict(finding) for finding in report.findings[:_MOST_FINDINGS]]
    write(disk, layout.RECOVERY, {"at": at, "seconds": report.seconds, "findings": findings})


def last_recovery(disk: Disk) -> RecoveryRecord | None:
    """Return the last recovery that found something, or None. A file that cannot be read counts as none."""
    try:
        value = read(disk, layout.RECOVERY)
        return None if value is None else recovery_of(value)
    except (OSError, CorruptedFile, NewerFormat, *_UNREADABLE):
        return None


def recovery_of(value: Mapping[str, Any]) -> RecoveryRecord:
    return RecoveryRecord(value["at"], value["seconds"], tuple(map(finding_of, value["findings"])))


def finding_of(value: Mapping[str, Any]) -> Finding:
    return Finding(**{**value, "kind": Kind(value["kind"]), "position": None})
