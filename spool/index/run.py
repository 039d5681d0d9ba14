"""Runs: neighbouring messages of one commit with the same queue and control fields, as one entry of the index.

All messages of a run live: what leaves from its middle splits it, so nothing is ever scanned for what is gone.
"""

from array import array
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spool.index.commit import Source
from spool.model.message import due_time, expiry_time
from spool.model.order import is_backwards

if TYPE_CHECKING:
    from spool.index.queue import Line

Lengths = int | array  # type: ignore[type-arg]  # (one length for all, or one for each row of the section)


class Run:
    """The messages ``first`` to ``end - 1`` of commit ``number``; in their file, ordinal o is row ``o - base`` of a
    section."""

    __slots__ = (
        "attributes", "base", "committed_at", "due", "end", "expires", "first", "key", "lengths", "number", "queue",
        "section", "source",
    )  # fmt: skip

    def __init__(
        self,
        queue: "Line",
        source: Source,
        section: int,
        base: int,
        number: int,
        first: int,
        count: int,
        attributes: Mapping[str, Any],
        committed_at: float,
        lengths: Lengths,
    ) -> None:
        self.queue = queue
        self.source = source
        self.section = section
        self.base = base
        self.number = number
        self.first = first
        self.end = first + count
        self.attributes = attributes
        self.committed_at = committed_at
        self.lengths = lengths
        self.due = due_time(attributes, committed_at)
        self.expires = expiry_time(attributes, committed_at) if attributes else None
        # Made once: when the front leaves, the run's place among others stays what it was.
        self.key = queue.key_of(number, first, attributes, committed_at)

    @property
    def live(self) -> int:
        return self.end - self.first

    @property
    def group(self) -> str | None:
        """Of whose messages only one transaction has any."""
        return self.queue.group_of(self.attributes)

    @property
    def keeps_waiting(self) -> bool:
        """Whether others of its group wait until it is due for its next try."""
        return self.due is not None and bool(self.attributes.get("attempts")) and self.group is not None

    @property
    def backwards(self) -> bool:
        """Whether the last message of the run is delivered first."""
        return is_backwards(self.queue.order, self.attributes)

    @property
    def ordinals(self) -> range:
        """In the order of delivery."""
        ordinals = range(self.first, self.end)
        return ordinals[::-1] if self.backwards else ordinals

    def is_past(self, now: float) -> bool:
        """Whether its time is over: then nobody gets it any more."""
        return self.expires is not None and self.expires <= now

    def row_of(self, ordinal: int) -> int:
        return ordinal - self.base

    def bytes_of(self, ordinal: int, count: int = 1) -> int:
        if isinstance(self.lengths, int):
            return self.lengths * count
        row = ordinal - self.base
        return sum(self.lengths[row : row + count])

    def tail(self, first: int) -> "Run":
        """What lies from that ordinal on, as a run of its own; this one is not changed."""
        rest = Run(
            self.queue, self.source, self.section, self.base, self.number, first, self.end - first, self.attributes,
            self.committed_at, self.lengths,
        )  # fmt: skip
        rest.due = self.due  # one that has become due stays so
        return rest


def lengths_of(lengths: "array[int]") -> Lengths:
    """A section's lengths as its runs keep them: mostly all are the same."""
    if lengths and lengths.count(lengths[0]) == len(lengths):
        return lengths[0]
    return lengths
