"""The order of one queue: the properties of a queue that its runs and segments need."""

from collections.abc import Mapping
from typing import Any

from spool.model.order import Key, order_key
from spool.model.settings import FIFO, QueueConfig

_FIFO = (FIFO,)
_WHOLE_QUEUE = ""  # the group of every message of an ordered queue; the name of any other group is not empty


class QueueOrder:
    """How a queue sorts and groups its messages. It is immutable: a queue whose options change gets another order.

    ``criteria`` and ``ordered`` are the options ``order`` and ``ordered`` of the queue. ``is_plain``: a message without
    control fields belongs to no group, and neighbours are delivered in the order of their positions. ``is_fifo``: the
    position alone decides the place of such a message.
    """

    __slots__ = ("criteria", "is_fifo", "is_plain", "name", "ordered")

    def __init__(self, config: QueueConfig) -> None:
        self.name = config.name
        self.criteria = config.order
        self.is_fifo = config.order == _FIFO
        self.ordered = config.ordered
        self.is_plain = not config.ordered and config.order[-1] == FIFO

    def differs(self, config: QueueConfig) -> bool:
        """Return whether these options of the queue ask for another order."""
        return (config.order, config.ordered) != (self.criteria, self.ordered)

    def key_of(self, number: int, first: int, attributes: Mapping[str, Any], committed_at: float) -> Key:
        """Return the sort key of a run whose first message has the position ``number``/``first``."""
        if self.is_fifo and "top" not in attributes and "before" not in attributes:
            return (number, first)
        return order_key(self.criteria, number, first, attributes, committed_at)

    def group_of(self, attributes: Mapping[str, Any]) -> str | None:
        """Return the group of a message with these control fields; None if it belongs to no group."""
        return _WHOLE_QUEUE if self.ordered else attributes.get("group")
