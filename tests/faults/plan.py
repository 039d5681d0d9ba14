"""The calls of the disk that fail: an errno, the calls that can fail with it, and the first of them that fails.

A plan counts the calls that can fail with its errno; ``begin`` is the number of the first call that fails. ``Spread``
names the later calls that fail. A failing write leaves half of its bytes: the worst that a full disk or a bad one does.
"""

import enum
import errno
import os
from dataclasses import dataclass, field

from spool.disk.disk import FlushFailed

READS = frozenset(("open", "open_directory", "read_at", "names", "identity", "exists", "handle_identity", "has_writer"))
NAMING = frozenset(("create", "rename", "rename_new", "link", "unlink", "make_directory", "remove_directory"))
GROWING = frozenset(("create", "write_at", "rename", "rename_new", "link", "make_directory"))
WRITES = NAMING | {"write_at", "truncate"}
FLUSHES = frozenset(("flush",))
DESCRIPTORS = frozenset(("create", "open", "open_directory", "names", "has_writer", "flush_directory", "exclusively"))

HITS = {
    errno.EIO: READS | WRITES | FLUSHES,
    errno.ENOSPC: GROWING | FLUSHES,
    errno.EDQUOT: GROWING | FLUSHES,
    errno.EROFS: WRITES | {"open_to_write"},
    errno.EMFILE: DESCRIPTORS,
}


class Spread(enum.Enum):
    """The calls that fail after the first failure."""

    ONCE = "once"
    KIND = "and every later call of that kind"
    ALL = "and every later call that it can hit"
    READ_ONLY = "and every later writing call, with EROFS"


@dataclass
class Plan:
    """``begin`` counts from 1; 0: nothing fails. ``failed``: the calls that failed."""

    code: int = errno.EIO
    begin: int = 0
    spread: Spread = Spread.ONCE
    hits: frozenset[str] = frozenset()
    calls: int = 0
    failed: list[str] = field(default_factory=list)
    failed_flushes: int = 0
    kind: str = ""
    armed: bool = True

    def __post_init__(self) -> None:
        self.hits = self.hits or HITS[self.code]

    def fails(self, call: str) -> int | None:
        """Return the errno with which this call fails, or None."""
        if not self.armed or not self.begin:
            self.calls += call in self.hits
            return None
        if call in self.hits:
            self.calls += 1
            if self.calls == self.begin:
                self.kind = call
                return self.code
        if not self.kind:
            return None
        if self.spread is Spread.READ_ONLY:
            return errno.EROFS if call in HITS[errno.EROFS] else None
        later = call == self.kind if self.spread is Spread.KIND else call in self.hits
        return self.code if later and self.spread is not Spread.ONCE else None

    def error(self, call: str, code: int, name: object) -> OSError:
        """Return the error to raise; the error of a flush stops the space."""
        self.failed.append(f"{call}({name})")
        if call == "flush":
            self.failed_flushes += 1
            return FlushFailed(code, f"fsync: {os.strerror(code)}")
        return OSError(code, os.strerror(code), name if isinstance(name, str) else None)

    def __str__(self) -> str:
        how = f"{errno.errorcode[self.code]} at call {self.begin} of those that it can hit, {self.spread.value}"
        return f"{how}; failed: {', '.join(self.failed[:4]) or 'nothing'}"
