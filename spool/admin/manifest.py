"""The manifest of an export, which is the last member and lists the contents. If the manifest and the files differ, a
reader trusts the manifest.

The manifest is JSON, with one object a line. The first line is a summary. A line follows for each file, in the order of
the export, with the size and the SHA-256 of its bytes. The last line has the SHA-256 of all earlier lines. The first
member of an export names the format, and also ends with the checksum of its lines.
"""

import hashlib
import json
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import Any

from spool.admin.tar_stream import Member
from spool.errors import CorruptedFile, NewerFormat
from spool.model import layout
from spool.model.text import shown

BEGIN, MANIFEST = "xaspool-export.json", "xaspool-manifest.json"
FORMAT = 1
MAX_BEGIN_BYTES = 1 << 12
_MAX_SUMMARY_BYTES = 1 << 26
_MAX_LINE_BYTES = 1 << 13


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of an export or import: the number of files that are done. ``of``: the approximate number of all
    files."""

    files: int
    of: int


@dataclass(frozen=True)
class ExportReport:
    """The contents of an export.

    files: the number of files of the space.
    newest: the number of the last commit in the export.
    messages: the number of messages in each queue. The messages put by transactions in doubt do not count.
    dropped: the dropped files that are no messages yet: for each name, relative to the space, the time of the last
        change, in nanoseconds since the epoch.
    left_out: the files that are not in the export: for each name, relative to the space, the reason.
    """

    files: int
    newest: int
    messages: dict[str, int]
    dropped: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


_FIELDS = {"files": int, "newest": int, "messages": dict, "dropped": dict, "left_out": dict}


def newest_of(names: Iterable[str]) -> int:
    """Return the number of the last commit among these files of a space."""
    committed = (layout.parse_committed(name.removeprefix(f"{layout.COMMITTED}/")) for name in names)
    return max((name.number for name in committed if name is not None), default=0)


def begin(files: int) -> bytes:
    """Return the first member. ``files``: the approximate number of files in the export."""
    return _sealed(_line({"format": FORMAT, "files": files}))


def read_begin(data: bytes) -> int:
    """Return the approximate number of files that follow. Raises CorruptedFile, NewerFormat."""
    found = _object(_unsealed(data), format=int, files=int)
    if found["format"] > FORMAT:
        raise NewerFormat(f"the export has format {found['format']}, this program reads {FORMAT}: use a later version")
    return int(found["files"])


def manifest(report: ExportReport, members: Iterable[Member]) -> bytes:
    """Return the last member. ``members``: all members before the manifest."""
    return _sealed(_line({"format": FORMAT, **asdict(report)}) + b"".join(map(_member, members)))


def max_manifest_bytes(members: int) -> int:
    """Return the largest possible manifest size, in bytes, for an export with this number of members."""
    return _MAX_SUMMARY_BYTES + members * _MAX_LINE_BYTES


def read_manifest(data: bytes, members: Collection[Member]) -> ExportReport:
    """Return the manifest's summary.

    Raises:
        CorruptedFile: the manifest's own checksum is wrong, or the manifest does not list exactly these members.
    """
    summary, _, listed = _unsealed(data).partition(b"\n")
    found = _object(summary, format=int, **_FIELDS)
    if listed != b"".join(map(_member, members)):
        raise CorruptedFile(_difference(listed.splitlines(keepends=True), members))
    report = ExportReport(**{name: found[name] for name in _FIELDS})
    numbers, texts = (*report.messages.values(), *report.dropped.values()), report.left_out.values()
    if found["format"] != FORMAT or not all(map(_is_count, numbers)) or any(type(text) is not str for text in texts):
        raise CorruptedFile("its manifest has a value that no manifest has")
    return report


def _difference(listed: list[bytes], members: Collection[Member]) -> str:
    for line, member in zip_longest(listed, members):
        if member is None or line is None:
            break
        if line != _member(member):
            if line.startswith(_member(member).partition(b', "size"')[0]):
                return f"the bytes of {shown(member.name)} do not match its manifest"
            return f"it holds {shown(member.name)} where its manifest lists another file"
    return f"it holds {len(members):,} members, and its manifest lists {len(listed):,}"


def _member(member: Member) -> bytes:
    return _line({"name": member.name, "size": member.size, "sha256": member.checksum})


def _line(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields).encode("ascii") + b"\n"


def _sealed(lines: bytes) -> bytes:
    return lines + _line({"sha256": hashlib.sha256(lines).hexdigest()})


def _unsealed(data: bytes) -> bytes:
    """Return the lines before the checksum. Raises CorruptedFile if the checksum is wrong."""
    lines = data[: data.rfind(b"\n", 0, -1) + 1]
    if data != _sealed(lines):
        raise CorruptedFile("its manifest or its first member is damaged")
    return lines


def _object(line: bytes, **types: type) -> dict[str, Any]:
    """Parse an object that has at least the given keys, with values of the given types. A later format may add keys."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise CorruptedFile("its manifest or its first member is not JSON") from None
    if not isinstance(found, dict) or any(type(found.get(name)) is not kind for name, kind in types.items()):
        raise CorruptedFile("its manifest or its first member lacks a field")
    if not all(_is_count(found[name]) for name, kind in types.items() if kind is int):
        raise CorruptedFile("its manifest or its first member has a number out of range")
    return found


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63
