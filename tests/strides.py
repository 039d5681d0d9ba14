"""Some of many places at which a test cuts, kills or stops, and some of many cases: those of a default run.

With --long it tries all.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import pytest

Stride = Callable[[int], int]
"""The type of the fixture ``stride``: returns its argument, but 1 with --long."""


def some(places: Sequence[int], calls: Sequence[str], every: int) -> Iterator[int]:
    """Yield every so-manieth place, and the first place before each kind of call.

    ``calls``: the call after each place, with its names. Calls that differ in numbers and ids are of one kind.
    """
    seen: set[str] = set()
    for index, call in enumerate(calls):
        kind = re.sub(r"[0-9a-f]{4,}|\d+", "…", call)
        if index % every == 0 or kind not in seen:
            yield places[index]
        seen.add(kind)


def of_this_run(items: Sequence[pytest.Item], *, long: bool, deep: bool) -> Iterator[pytest.Item]:
    """Yield the tests without the mark ``slow`` (unless ``long``), without the mark ``deep`` (unless ``deep``), and, of
    tests with the mark ``every(n, first=0)``, every n-th case, beginning with the case at ``first`` (unless ``long``).

    Skipped cases do not count. Values of several parameters are covered if their numbers have no common divisor with
    ``n``.
    """
    seen: Counter[str] = Counter()
    for item in items:
        if (item.get_closest_marker("slow") and not long) or (item.get_closest_marker("deep") and not deep):
            continue
        every = item.get_closest_marker("every")
        if every and not long and not item.get_closest_marker("skip"):
            test = item.nodeid.partition("[")[0]
            seen[test] += 1
            if (seen[test] - 1 - every.kwargs.get("first", 0)) % every.args[0]:
                continue
        yield item
