"""Runs: neighbouring messages of one commit with the same queue and control fields, as one entry of the index.

All messages of a run are live. If messages in the middle of a run are removed, the run is split. So no search has to
skip removed messages.
"""

from array import array
from collections.abc import Mapping
from typing import Any

from spool.format.header import SectionEntry
from spool.format.reader import BodyPlace
from spool.index.commit import FileRef
from spool.model.message import due_time, expiry_time, message_id
from spool.model.order import Key, is_backwards, order_key
from spool.model.settings import FIFO, QueueConfig

_FIFO = (FIFO,)
_WHOLE_QUEUE = ""  # the group of every message of an ordered queue; the name of any other group is not empty
Lengths = int | array  # type: ignore[type-arg]  # (one length for all bodies, or one for each row)


class QueueOrder:
    """The rules by which a queue sorts and groups messages. An order is immutable: a queue with changed options gets
    another order.

    ``criteria`` and ``ordered`` are the options ``order`` and ``ordered`` of the queue. ``is_plain``: whether a message
    without control fields belongs to no group, and neighbouring messages of this kind are delivered in the order of
    their positions.
    ``is_fifo``: whether only the position decides the place of a message without control fields.
    """

    __slots__ = ("criteria", "is_fifo", "is_plain", "name", "ordered")

    def __init__(self, config: QueueConfig) -> None:
        self.name = config.name
        self.criteria = config.order
        self.is_fifo = config.order == _FIFO
        self.ordered = config.ordered
        self.is_plain = not config.ordered and config.order[-1] == FIFO

    def differs(self, config: QueueConfig) -> bool:
        """Return whether these options of the queue require another order."""
        return (config.order, config.ordered) != (self.criteria, self.ordered)

    def key_of(self, number: int, first: int, attributes: Mapping[str, Any], committed_at: float) -> Key:
        """Return the sort key of a run whose first message has the position ``number``/``first``."""
        if self.is_fifo and "top" not in attributes and "before" not in attributes:
            return (number, first)
        return order_key(self.criteria, number, first, attributes, committed_at)

    def group_of(self, attributes: Mapping[str, Any]) -> str | None:
        """Return the group of a message with these control fields; None if the message belongs to no group."""
        return _WHOLE_QUEUE if self.ordered else attributes.get("group")


class Run:
    """The messages ``first`` to ``end - 1`` of commit ``number``.

    queue: the order of the messages' queue. (The message table has the queue itself.)
    file: the file that has the messages.
    bodies: the place of the body if its section has no other body; otherwise the section. The table of the section has
        the places of the bodies.
    base: the message with ordinal o is in row ``o - base`` of the section.
    branch: the id of the branch in which the messages were put. A run has messages of one branch only.
    begin: the ordinal of the branch's first message in the commit.
    due, expires: seconds since the epoch, or None. ``due`` becomes None once the messages are due.
    key: the sort key in the queue. The key does not change when messages at the front are removed.
    """

    __slots__ = (
        "attributes", "base", "begin", "bodies", "branch", "committed_at", "due", "end", "expires", "file", "first",
        "key", "lengths", "number", "queue",
    )  # fmt: skip

    def __init__(
        self,
        queue: QueueOrder,
        file: FileRef,
        bodies: BodyPlace | SectionEntry,
        base: int,
        number: int,
        first: int,
        count: int,
        attributes: Mapping[str, Any],
        committed_at: float,
        lengths: Lengths,
        branch: bytes,
        begin: int,
    ) -> None:
        self.queue = queue
        self.file = file
        self.bodies = bodies
        self.base = base
        self.number = number
        self.first = first
        self.end = first + count
        self.attributes = attributes
        self.committed_at = committed_at
        self.lengths = lengths
        self.branch = branch
        self.begin = begin
        self.due = due_time(attributes, committed_at) if attributes else None
        self.expires = expiry_time(attributes, committed_at) if attributes else None
        plain = queue.is_fifo and not attributes
        self.key = (number, first) if plain else queue.key_of(number, first, attributes, committed_at)

    @property
    def live(self) -> int:
        """The number of messages in the run."""
        return self.end - self.first

    @property
    def group(self) -> str | None:
        """The group of the run's messages, or None. Only one transaction at a time may claim messages of a group."""
        return self.queue.group_of(self.attributes)

    @property
    def blocks_group(self) -> bool:
        """True if the rest of the group waits until this run is due for its next attempt."""
        return self.due is not None and bool(self.attributes.get("attempts")) and self.group is not None

    @property
    def is_backwards(self) -> bool:
        """True if the last message of the run is delivered first."""
        return is_backwards(self.queue.criteria, self.attributes)

    @property
    def ordinals(self) -> range:
        """The ordinals of the messages, in the order of delivery."""
        ordinals = range(self.first, self.end)
        return ordinals[::-1] if self.is_backwards else ordinals

    def id_of(self, ordinal: int) -> str:
        """Return the id of a message of the run."""
        return message_id(self.branch, ordinal - self.begin)

    def is_expired(self, now: float) -> bool:
        """Return whether the run's expiry time has passed, so that its messages are not delivered any more."""
        return self.expires is not None and self.expires <= now

    def bytes_of(self, ordinal: int, count: int = 1) -> int:
        """Return the total size, in bytes, of the bodies of ``count`` messages from ``ordinal`` on."""
        if isinstance(self.lengths, int):
            return self.lengths * count
        row = ordinal - self.base
        return sum(self.lengths[row : row + count])

    def tail(self, first: int) -> "Run":
        """Return a new run of the messages from ordinal ``first`` on. This run does not change."""
        rest = Run(
            self.queue, self.file, self.bodies, self.base, self.number, first, self.end - first, self.attributes,
            self.committed_at, self.lengths, self.branch, self.begin,
        )  # fmt: skip
        rest.due = self.due  # a run that has become due remains due
        return rest


def lengths_of(lengths: "array[int]") -> Lengths:
    """Return the lengths of a section's bodies in the form for runs: one number in the usual case that all are
    equal."""
    if lengths and lengths.count(lengths[0]) == len(lengths):
        return lengths[0]
    return lengths
