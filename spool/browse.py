"""Looking through a queue without taking anything, and without bringing what is swept back into memory."""

from collections.abc import Iterator
from heapq import heappop, heappush

from spool.contents import run_of
from spool.index import Index
from spool.line import Key
from spool.runs import Run
from spool.segments import Segment

Browsed = tuple[int, int, int, str | None]
_Entry = tuple[Key, Browsed]


def browse(index: Index, queue: str, now: float) -> Iterator[Browsed]:
    """(number, first, count, correlation id) of everything in the order of delivery, delayed ones last.

    As of the first call; messages may go meanwhile: the caller looks. Segments are read one by one, each when it is
    its turn.
    """
    line = index.queue(queue)
    line.ripen(now)
    found = [
        ([(_standing(run), _described(run)) for run in runs], [(one, bytes(one.left)) for one in segments])
        for runs, segments in ((line.ready, line.swept), (line.delayed, line.swept_delayed))
    ]
    for entries, waiting in found:
        yield from _merged(index, entries, waiting)


def _merged(index: Index, entries: list[_Entry], waiting: list[tuple[Segment, bytes]]) -> Iterator[Browsed]:
    lines: list[tuple[_Entry, int, Iterator[_Entry]]] = []
    sources = iter([iter(entries), *(_entries(index, segment, left) for segment, left in waiting)])
    keys = [(), *(segment.key for segment, _ in waiting)]
    opened = 0
    while True:
        while opened < len(keys) and (not lines or keys[opened] <= lines[0][0][0]):
            _push(lines, opened, next(sources))
            opened += 1
        if not lines:
            return
        entry, line, rest = heappop(lines)
        yield entry[1]
        _push(lines, line, rest)


def _push(lines: list[tuple[_Entry, int, Iterator[_Entry]]], line: int, rest: Iterator[_Entry]) -> None:
    entry = next(rest, None)
    if entry is not None:
        heappush(lines, (entry, line, rest))


def _entries(index: Index, segment: Segment, left: bytes) -> Iterator[_Entry]:
    table = index.tables.table(segment.source, segment.section)
    for piece in segment.pieces(table, 0, left):
        run = run_of(segment, table, piece, index.queue)
        if not segment.delayed:
            run.due = None
        yield _standing(run), _described(run)


def _standing(run: Run) -> Key:
    """By which runs and segments stand in their line."""
    return run.key if run.due is None else (run.due, *run.key)


def _described(run: Run) -> Browsed:
    return run.number, run.first, run.live, run.attributes.get("correlation_id")
