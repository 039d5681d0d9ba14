"""Neighbouring messages as ranges: (number of the commit, first ordinal, count). Pure."""

from collections.abc import Iterable, Iterator

from spool.model.message import Position

Ranges = list[tuple[int, int, int]]


def positions(ranges: Iterable[tuple[int, int, int]]) -> Iterator[Position]:
    """Every message on its own."""
    for number, first, count in ranges:
        for ordinal in range(first, first + count):
            yield Position(number, ordinal)


def append(ranges: Ranges, number: int, first: int, count: int) -> None:
    """Add a range at the end, joined to the last one if it follows it."""
    if ranges and ranges[-1][0] == number and ranges[-1][1] + ranges[-1][2] == first:
        ranges[-1] = (number, ranges[-1][1], ranges[-1][2] + count)
    else:
        ranges.append((number, first, count))


def subtract(ranges: Ranges, kept: Ranges) -> Ranges:
    """What lies in ``ranges`` and not in ``kept``, as pieces of the ranges that it lies in."""
    if ranges == kept:
        return []
    if not kept:
        return list(ranges)
    keep = set(positions(kept))
    rest: Ranges = []
    for one in ranges:
        pieces: Ranges = []
        for position in positions([one]):
            if position not in keep:
                append(pieces, position.number, position.ordinal, 1)
        rest += pieces
    return rest
