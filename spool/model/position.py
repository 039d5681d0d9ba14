"""Positions of messages, and ranges of neighbouring positions: (sequence number, first ordinal, count). Pure."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Position(NamedTuple):
    """A message's permanent place: the number of its commit, and its ordinal in that commit."""

    number: int
    ordinal: int


PositionRanges = list[tuple[int, int, int]]


def positions(ranges: Iterable[tuple[int, int, int]]) -> Iterator[Position]:
    """Yield the position of every message in the ranges."""
    for number, first, count in ranges:
        for ordinal in range(first, first + count):
            yield Position(number, ordinal)


def append_range(ranges: PositionRanges, number: int, first: int, count: int) -> None:
    """Add a range at the end of the ranges. If the new range continues the last range, join the two ranges."""
    if ranges and ranges[-1][0] == number and ranges[-1][1] + ranges[-1][2] == first:
        ranges[-1] = (number, ranges[-1][1], ranges[-1][2] + count)
    else:
        ranges.append((number, first, count))


def subtract_ranges(ranges: PositionRanges, kept: PositionRanges) -> PositionRanges:
    """Return the parts of ``ranges`` that are not in ``kept``. Each part is within one range of ``ranges``."""
    if ranges == kept:
        return []
    if not kept:
        return list(ranges)
    keep = set(positions(kept))
    rest: PositionRanges = []
    for one in ranges:
        left: PositionRanges = []
        for position in positions([one]):
            if position not in keep:
                append_range(left, position.number, position.ordinal, 1)
        rest += left
    return rest
