"""What keeps a commit's files on disk, and what they have counted."""

from array import array
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType

from spool.model.xid import Xid

ENQUEUED, DEQUEUED, FAILED, EXPIRED = range(4)

_NONE: frozenset[int] = frozenset()
_NO_TALLY: Mapping[str, list[int]] = MappingProxyType({})


@dataclass(slots=True)
class FileState:
    """Of one number: how many messages live in its files, and what else needs them.

    ``targets``: commits that its commands address, and files in which those messages lay. ``supersedes``: the files
    that a sweep took messages from, or a fold its commands. ``superseded_by``: the latest such number. ``readers``: who
    may still read from here then, as commits whose messages are claimed (see ``reclaim``). ``span``: the least and the
    greatest number whose messages a sweep put here. ``body_bytes`` and ``live_bytes``: of the messages that came here,
    and of those that are still here. Most commits are small, hence what is mostly empty is shared.
    """

    adopted: tuple[Xid, ...] = ()
    live: int = 0
    live_bytes: int = 0
    body_bytes: int = 0
    targets: Set[int] = _NONE
    supersedes: "array[int] | None" = None
    superseded_by: int = 0
    readers: frozenset[int] | None = None
    span: tuple[int, int] | None = None
    taken: tuple[tuple[str, bytes], ...] = ()
    facts: int = 0
    damaged: bool = False
    foldable: bool = False
    tally: Mapping[str, list[int]] = field(default_factory=lambda: _NO_TALLY)

    def address(self, number: int) -> None:
        """A command of this commit needs that number's files to be gone first."""
        if number not in self.targets:
            self.targets = {*self.targets, number} if len(self.targets) < 2 else self._grown(number)

    def _grown(self, number: int) -> Set[int]:
        targets = self.targets if isinstance(self.targets, set) else set(self.targets)
        targets.add(number)
        return targets

    def count(self, queue: str, what: int, count: int) -> None:
        if not self.tally and what == ENQUEUED:
            self.tally = _enqueued(queue, count)
            return
        if not isinstance(self.tally, dict):  # it is shared
            self.tally = {name: list(counts) for name, counts in self.tally.items()}
        self.tally.setdefault(queue, [0, 0, 0, 0])[what] += count

    def still_superseding(self, files: Mapping[int, "FileState"]) -> bool:
        """Whether a file that this one supersedes is still there; those that are gone are forgotten."""
        if self.supersedes is not None:
            there = array("Q", (number for number in self.supersedes if number in files))
            self.supersedes = there or None
        return self.supersedes is not None


@lru_cache(maxsize=1024)  # nearly all commits are like others in this
def _enqueued(queue: str, count: int) -> Mapping[str, list[int]]:
    return MappingProxyType({queue: [count, 0, 0, 0]})


def add_tallies(sums: dict[str, list[int]], tally: Mapping[str, list[int]]) -> None:
    for queue, counts in tally.items():
        sums[queue] = list(map(int.__add__, sums.get(queue, (0, 0, 0, 0)), counts))
