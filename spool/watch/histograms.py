"""The durations that the meters of a space counted, as histograms."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

Key = tuple[str, ...]
_NANOSECONDS = 1_000_000_000


@dataclass
class Histogram:
    """Durations in seconds.

    buckets: the number of durations in each bucket, by the upper bound of the bucket; not cumulative.
    total: the sum of all durations.
    """

    buckets: Counter[float] = field(default_factory=Counter)
    total: float = 0.0

    def __add__(self, other: "Histogram") -> "Histogram":
        return Histogram(self.buckets + other.buckets, self.total + other.total)

    def quantile(self, share: float) -> float | None:
        """Return a duration that at least this share of the durations does not exceed; None without durations."""
        wanted, reached = share * self.buckets.total(), 0
        for bound in sorted(self.buckets):
            reached += self.buckets[bound]
            if reached and reached >= wanted:
                return bound
        return None


def histograms(counts: Mapping[Key, int]) -> dict[Key, Histogram]:
    """Return the histograms by their names, which end in ``_seconds``, and their labels. A damaged file of meters may
    have any keys and numbers."""
    found: dict[Key, Histogram] = {}
    for (*key, bucket), count in counts.items():
        if not key or not key[0].endswith("_seconds"):
            continue
        histogram = found.setdefault(tuple(key), Histogram())
        if bucket == "total":
            histogram.total += max(0, count) / _NANOSECONDS
        elif (bound := _bound(bucket)) is not None:
            histogram.buckets[bound] += max(0, count)
    return found


def _bound(bucket: str) -> float | None:
    try:
        bound = float(bucket)
    except ValueError:
        return None
    return None if math.isnan(bound) or bound < 0 else bound
