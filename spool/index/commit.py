"""What one commit did, as it was read, and what the index keeps of its files afterwards."""

from array import array
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import repeat
from types import MappingProxyType
from typing import NamedTuple

from spool.format.reader import FileContents
from spool.model.xid import Xid

# -- as it was read ---------------------------------------------------------------------------------------------------


class FileRef(NamedTuple):
    """The file in which messages lie. ``checksum``, of its header, tells it from any other file under its name.

    ``adoption``: 0 for the commit's own file, k for its k-th adopted branch, whose xid is ``xid``.
    """

    number: int
    adoption: int
    xid: Xid | None
    checksum: int


class Part(NamedTuple):
    """One file of a commit: its header and tables, without bodies. ``first``: the ordinal, in the commit, of the file's
    first message."""

    adoption: int
    xid: Xid | None
    first: int
    contents: FileContents

    def file_ref(self, number: int) -> FileRef:
        return tuple.__new__(FileRef, (number, self.adoption, self.xid, self.contents.header.checksum))


class Commit(NamedTuple):
    """All files of one sequence number: its own, then the adopted branches.

    ``damage``: (file, what is wrong with it) for each file that could not be read whole.
    """

    number: int
    parts: list[Part]
    damage: list[tuple[str, str]]

    @property
    def time(self) -> float:
        """When it was committed, in seconds since the epoch."""
        return self.parts[0].contents.header.time


# -- what is kept of its files ----------------------------------------------------------------------------------------

ENQUEUED, DEQUEUED, FAILED, EXPIRED = range(4)  # the counts of a tally

_NONE: frozenset[int] = frozenset()
_NO_TALLY: Mapping[str, list[int]] = MappingProxyType({})


@dataclass(slots=True)
class Retention:
    """What keeps the files of one commit on disk, and what the commit counted.

    adopted: xids of the branches that the commit adopted; each is a file of its own.
    live, live_bytes: messages that lie in these files now, and their bodies' bytes.
    body_bytes: bytes of all bodies that these files hold or held.
    addressed: commits that its commands address, and commits in whose files the addressed messages lay.
    supersedes: commits whose messages a compaction copied here, or whose commands merged tombstones repeat here.
    superseded_by: the latest commit that supersedes this one; 0 if there is none.
    pinned_by: commits with claimed messages; a reader may still read those messages from here (see ``reclaim``).
    span: the least and the greatest commit whose messages a compaction copied here.
    captured: dropped files that the commit names as captured by an intake.
    facts: how many of its facts are the newest of their keys.
    damaged: one of the files could not be read whole.
    mergeable: a later commit may repeat its commands and facts.
    tally: per queue [enqueued, dequeued, failed, expired].

    There is one for each commit, and most commits are small: empty fields share one value.
    """

    adopted: tuple[Xid, ...] = ()
    live: int = 0
    live_bytes: int = 0
    body_bytes: int = 0
    addressed: Set[int] = _NONE
    supersedes: "array[int] | None" = None
    superseded_by: int = 0
    pinned_by: frozenset[int] | None = None
    span: tuple[int, int] | None = None
    captured: tuple[tuple[str, bytes], ...] = ()
    facts: int = 0
    damaged: bool = False
    mergeable: bool = False
    tally: Mapping[str, list[int]] = field(default_factory=repeat(_NO_TALLY).__next__)  # one for all

    def still_superseding(self, files: Mapping[int, "Retention"]) -> bool:
        """Return whether a commit that this one supersedes has files; forget those that have none."""
        if self.supersedes is not None:
            there = array("Q", (number for number in self.supersedes if number in files))
            self.supersedes = there or None
        return self.supersedes is not None


def add_tallies(sums: dict[str, list[int]], tally: Mapping[str, list[int]]) -> None:
    for queue, counts in tally.items():
        sums[queue] = list(map(int.__add__, sums.get(queue, (0, 0, 0, 0)), counts))


def add_target(state: Retention, number: int) -> None:
    """Note that these files must stay until the files of commit ``number`` are gone: a command addresses it."""
    if number in state.addressed:
        return
    if len(state.addressed) < 2:
        state.addressed = {*state.addressed, number}
        return
    if not isinstance(state.addressed, set):  # it is shared
        state.addressed = set(state.addressed)
    state.addressed.add(number)


@lru_cache(maxsize=1024)  # nearly all commits have a tally like that of others: of one queue
def shared_tally(queue: str, *counts: int) -> Mapping[str, list[int]]:
    return MappingProxyType({queue: list(counts)})
