"""The kinds of difference between a disk after a power cut and the same disk before."""

from spool.errors import CorruptedFile
from spool.format.header import FIXED_BYTES, Header, decode_header, header_length
from spool.model import layout
from tests.machine import Image

STAGES = (layout.ACTIVE, layout.PREPARED, layout.COMMITTED)
EMPTY = "renamed but empty"
STALE = "recycled with old bytes"
BOTH = "in both stages"
LOST_RENAME = "lost rename"
LOST_UNLINK = "lost unlink"
PERMITTED = "permitted loss"
KINDS = (EMPTY, STALE, BOTH, LOST_RENAME, LOST_UNLINK, PERMITTED)


def kinds_of(seen: Image, left: Image) -> set[str]:
    """``seen``: the disk that processes saw last; ``left``: the disk after the power cut."""
    before = {path: data for path, _, data in seen.files if data is not None and _stage(path) in STAGES}
    after = {path: (number, data) for path, number, data in left.files if data is not None and _stage(path) in STAGES}
    found = set()
    for path, data in before.items():
        if path not in after:
            found.add(PERMITTED if _unflushed(data) else LOST_RENAME)
        elif data and not after[path][1].strip(b"\0"):
            found.add(EMPTY)
        elif _number(after[path][1]) not in (None, 0, _number(data)):
            found.add(STALE)
    if after.keys() - before.keys():
        found.add(LOST_UNLINK)
    stages: dict[int, set[str]] = {}
    for path, (number, _) in after.items():
        stages.setdefault(number, set()).add(_stage(path))
    if any(len(places) > 1 for places in stages.values()):
        found.add(BOTH)
    return found


def _stage(path: str) -> str:
    return path.partition("/")[0]


def _header(data: bytes) -> Header | None:
    try:
        return decode_header(data[: header_length(data[:FIXED_BYTES])], len(data))
    except (CorruptedFile, IndexError):
        return None


def _number(data: bytes) -> int | None:
    header = _header(data)
    return None if header is None else header.number


def _unflushed(data: bytes) -> bool:
    """Return whether the file's writer asked for no flush, so that the file may be lost."""
    header = _header(data)
    return header is not None and not header.flushed
