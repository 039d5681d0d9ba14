"""Count the failed messages of a queue by reason and by original queue, for one line of text.

The count claims no message and reads no body. In a long queue, only the first messages are counted. The command line
also uses this module.
"""

from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from spool.model.text import printable

if TYPE_CHECKING:
    from spool import Space

MOST_COUNTED = 10_000
_MOST_NAMED = 5
_WIDTH = 60  # the most characters of a reason


@dataclass(frozen=True, slots=True)
class Failed:
    """The failed messages of a queue.

    reasons: the number of messages by the beginning of the reason.
    origins: the number of messages by original queue.
    cut_after: the number of checked messages if further messages were not counted; otherwise 0.
    """

    reasons: Counter[str]
    origins: Counter[str]
    cut_after: int

    @property
    def by_reason(self) -> str:
        """The most frequent reasons with their counts; "" if no message has failed."""
        found = Counter[str]()
        for reason, count in self.reasons.items():
            found[in_words(reason)] += count
        return named(found) + self.limit

    @property
    def limit(self) -> str:
        """The end of a line about the reasons if not all messages are counted; "" if all messages are counted."""
        return f" in the first {self.cut_after:,} messages" if self.cut_after and self.reasons else ""


def count_failed(space: "Space", queue: str, most: int | None = None, **filters: Any) -> Failed:
    """Count the failed messages that match the filters. Damaged messages are omitted, because they have no reason.

    ``most``: the number of messages to check; None means ``MOST_COUNTED``.
    """
    most = MOST_COUNTED if most is None else most
    failed = Failed(Counter(), Counter(), 0)
    entries = space.entries(queue, preview=0, **filters)
    for entry in islice(entries, most):
        if entry.message is not None:
            if entry.message.failure_reason is not None:
                failed.reasons[entry.message.failure_reason[: _WIDTH + 1]] += 1
            if entry.holder is None and entry.message.origin_queue is not None:
                failed.origins[entry.message.origin_queue] += 1
    return Failed(failed.reasons, failed.origins, 0 if next(entries, None) is None else most)


def in_words(reason: str) -> str:
    """Return the printable beginning of a reason."""
    shown = printable(reason)
    return shown if len(shown) <= _WIDTH else f"{shown[: _WIDTH - 1]}…"


def frequent(counts: Counter[str]) -> tuple[list[tuple[str, int]], int]:
    """Return the most frequent texts with their counts, and the sum of all other counts."""
    found = counts.most_common()
    return found[:_MOST_NAMED], sum(count for _, count in found[_MOST_NAMED:])


def named(counts: Counter[str]) -> str:
    """Return the most frequent texts with their counts, e.g. ``HTTP 503 (23), HTTP 400 (10)``."""
    found, rest = frequent(counts)
    parts = [f"{text} ({count:,})" for text, count in found]
    return ", ".join([*parts, f"others ({rest:,})"] if rest else parts)
