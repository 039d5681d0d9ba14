"""Some of many places at which a test cuts, kills or stops: those of a default run. With --long it tries all."""

import re
from collections.abc import Callable, Iterator, Sequence

Stride = Callable[[int], int]
"""The type of the fixture ``stride``: returns its argument, but 1 with --long."""


def some(places: Sequence[int], calls: Sequence[str], every: int) -> Iterator[int]:
    """Yield every so-manieth place, and the first place between each two kinds of calls.

    ``calls``: the call after each place, with its names. Calls that differ in numbers and ids are of one kind.
    """
    kinds = [re.sub(r"[0-9a-f]{4,}|\d+", "…", call) for call in calls]
    seen: set[tuple[str, str]] = set()
    for index, pair in enumerate(zip(["", *kinds], kinds, strict=False)):
        if index % every == 0 or pair not in seen:
            yield places[index]
        seen.add(pair)
