"""Count the failed messages of a queue by reason, and by the queue that they came from, for one line of text.

Nothing is claimed, no body is read, and only the first messages of a long queue are counted.
"""

from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from xaspool_scripts.output import short
from xaspool_scripts.wording import printable

if TYPE_CHECKING:
    from spool import Space

MOST_COUNTED = 10_000
_MOST_NAMED = 5
_WIDTH = 60  # characters of a reason


@dataclass(frozen=True, slots=True)
class Failed:
    """The failed messages of a queue.

    reasons, origins: the number of messages by reason, and by the queue that they came from.
    is_cut: whether the queue has more messages, which are not counted.
    """

    reasons: Counter[str]
    origins: Counter[str]
    is_cut: bool

    @property
    def by_reason(self) -> str:
        """The most frequent reasons with their counts; an empty string without a failed message."""
        cut = f" in the first {MOST_COUNTED:,} messages" if self.is_cut and self.reasons else ""
        return named(self.reasons) + cut


def count_failed(space: "Space", queue: str, **filters: Any) -> Failed:
    """Count the failed messages that match the filters. Damaged messages have no reason, so they are left out."""
    failed = Failed(Counter(), Counter(), False)
    entries = space.entries(queue, preview=0, **filters)
    for entry in islice(entries, MOST_COUNTED):
        if entry.message is not None:
            if entry.message.failure_reason is not None:
                failed.reasons[short(printable(entry.message.failure_reason), _WIDTH)] += 1
            if entry.holder is None and entry.message.origin_queue is not None:
                failed.origins[entry.message.origin_queue] += 1
    return Failed(failed.reasons, failed.origins, next(entries, None) is not None)


def named(counts: Counter[str]) -> str:
    """Return the most frequent texts with their counts, e.g. ``HTTP 503 (23), HTTP 400 (10)``."""
    found = counts.most_common()
    parts = [f"{text} ({count:,})" for text, count in found[:_MOST_NAMED]]
    if rest := sum(count for _, count in found[_MOST_NAMED:]):
        parts.append(f"others ({rest:,})")
    return ", ".join(parts)
