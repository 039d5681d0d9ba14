"""The content of one commit's files as it was read, and the data about the files that the index keeps afterwards."""

from array import array
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import repeat
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from spool.format.reader import FileContents
from spool.model.xid import Xid

# -- as it was read ---------------------------------------------------------------------------------------------------


class FileRef(NamedTuple):
    """The file that has messages. The header's ``checksum`` distinguishes the file from other files with the same name.

    ``adoption``: 0 for the commit's own file, k for the file of the k-th adopted branch. ``xid``: the xid of that
    branch.
    """

    number: int
    adoption: int
    xid: Xid | None
    checksum: int


class CommitFile(NamedTuple):
    """One file of a commit: the header and tables, without bodies. ``first``: the ordinal in the commit of the file's
    first message."""

    adoption: int
    xid: Xid | None
    first: int
    contents: FileContents

    def left(self, first: int, count: int) -> list[tuple[int, int]]:
        """Return the messages of a compacted section that were removed before the compaction was committed, as (row,
        count)."""
        spans = []
        for table in self.contents.tables:
            for command in table.commands:
                if command.name == "left":
                    start, stop = max(command.first, first), min(command.first + command.length, first + count)
                    if start < stop:
                        spans.append((start - first, stop - start))
        return spans


class Commit(NamedTuple):
    """All files of one sequence number: the commit's own file, then the files of the adopted branches.

    ``damage``: (file, problem) for each file of which a part could not be read.
    """

    number: int
    files: list[CommitFile]
    damage: list[tuple[str, str]]

    @property
    def time(self) -> float:
        """The time of the commit, in seconds since the epoch."""
        return self.files[0].contents.header.time


# -- the facts that the index keeps -----------------------------------------------------------------------------------

ENQUEUED, DEQUEUED, FAILED, EXPIRED = range(4)  # the counts of a tally

_NONE: frozenset[int] = frozenset()
_NO_TALLY: Mapping[str, list[int]] = MappingProxyType({})


@dataclass(slots=True)
class Retention:
    """The reasons to keep the files of one commit, and the counts of the commit.

    adopted: xids of the branches that the commit adopted; each has a separate file.
    live, live_bytes: the number of messages that are in these files now, and the bytes of their bodies.
    body_bytes: the bytes of all bodies that are or were in these files.
    addressed: the commits whose messages this commit's commands address. The commits that had these messages in their
        files are also included.
    supersedes: the commits whose messages a compaction copied into these files. For merged tombstones: the commits
        whose commands these files repeat.
    superseded_by: the latest commit that supersedes this commit; 0 if no commit does.
    pinned_by: the commits of claimed messages that a reader may still read from this commit's files (see ``reclaim``).
    span: the lowest and the highest commit whose messages a compaction copied into these files.
    captured: the dropped files that the commit records as captured by an intake.
    facts: the number of this commit's facts that no later fact with the same key has replaced.
    damaged: whether a part of one of the files could not be read.
    mergeable: whether a later commit may repeat the commands and facts of this commit.
    tally: for each queue, [enqueued, dequeued, failed, expired].

    Each commit has one Retention, and most commits are small, so empty fields share one value.
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
    tally: Mapping[str, list[int]] = field(default_factory=repeat(_NO_TALLY).__next__)  # one shared mapping


def add_tallies(sums: dict[str, list[int]], tally: Mapping[str, list[int]]) -> None:
    for queue, counts in tally.items():
        sums[queue] = list(map(int.__add__, sums.get(queue, (0, 0, 0, 0)), counts))


def add_target(state: Retention, number: int) -> None:
    """Record that a command in the files of ``state`` addresses commit ``number``. The files of commit ``number`` must
    be removed first."""
    if number in state.addressed:
        return
    if len(state.addressed) < 2:
        state.addressed = {*state.addressed, number}
        return
    if not isinstance(state.addressed, set):  # it is shared
        state.addressed = set(state.addressed)
    state.addressed.add(number)


@lru_cache(maxsize=1024)  # nearly all tallies have only one queue, and many tallies are equal
def shared_tally(queue: str, *counts: int) -> Mapping[str, list[int]]:
    return MappingProxyType({queue: list(counts)})


def totals_of(files: Mapping[int, Retention], recorded: Mapping[str, Any] | None) -> dict[str, list[int]]:
    """Return, for each queue, [enqueued, dequeued, failed, expired] since the space was created.

    ``recorded``: the value of the totals fact, or None. The value has the counts of reclaimed commits, and the numbers
    of these commits. If a process died after it wrote the fact, some files of these commits still exist.
    """
    covered = set[int]() if recorded is None else set(recorded["folded"])
    sums = {} if recorded is None else {queue: list(counts) for queue, counts in recorded["queues"].items()}
    for number, state in files.items():
        if number not in covered:
            add_tallies(sums, state.tally)
    return sums


# -- readers for which messages are kept -----------------------------------------------------------------------------

SUBSCRIPTION_FACT = "subscription:"


class Subscription(NamedTuple):
    """A non-consuming reader. Commits with messages for the reader's queues are kept until the reader has read these
    commits (Rule 15).

    queues: the names of the queues; empty for all queues.
    since: the commit that registered the subscription; earlier commits are not kept for the reader. ``since`` is 0
        while the number of the registering commit is not known.
    after: the reader has read all commits up to this commit.
    expires: the time from which any process may end the subscription, in seconds since the epoch.
    directory: the directory of the archive that reads; "" for another reader.
    """

    queues: tuple[str, ...]
    since: int
    after: int
    expires: float
    directory: str = ""

    @classmethod
    def of(cls, value: Any) -> Self | None:
        """Return the subscription that a fact's value describes; None if the value is no subscription."""
        match value:
            case [list(queues), int(since), int(after), float(expires), *rest]:
                return cls(tuple(map(str, queues)), since, after, expires, *map(str, rest[:1]))
        return None

    @property
    def value(self) -> list[Any]:
        """The value of the fact that records the subscription."""
        return [list(self.queues), *self[1 : None if self.directory else -1]]

    def read_between(self, later: "Subscription") -> range:
        """Return the commits that the reader has read between two states of its subscription."""
        low, high = sorted((self.after, later.after))
        return range(low + 1, high + 1)

    def has_unread(self, number: int, state: Retention) -> bool:
        """Return whether the commit has messages for the subscription's queues, and the reader has not read the commit
        yet."""
        return number > self.after and self.messages_of(state) > 0

    def messages_of(self, state: Retention) -> int:
        """Return the number of messages that a commit put into the subscription's queues; a compaction puts no
        messages."""
        if state.span is not None:
            return 0
        queues: Iterable[str] = self.queues or state.tally
        return sum(state.tally[queue][ENQUEUED] for queue in queues if queue in state.tally)
