"""Get by id: the work for a get as the backlog grows, counted in executed lines, and not in time."""

import math
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import spool
from bench import spaces
from bench.cases.base import Case, Result
from bench.figures import Figure
from bench.setting import Bench
from bench.table import Outcome, Row, Verdict, unmeasured
from spool.maintenance.compaction import SEGMENT_MESSAGES

_TIMES = 9
_IN_MEMORY = Row("by-id", "get by id, in memory", "O(1), shown by counts")
_COMPACTED = Row(
    "by-id-compacted", "get by id, in a compacted segment", "one binary search per segment, shown by counts"
)
# A search through n entries compares log2(n) entries, with a few lines of code for each.
_LINES_A_STEP = 12


def _measure(bench: Bench) -> Iterator[Result]:
    backlogs = [size for size in bench.sizes.backlogs if size <= bench.sizes.opened]
    figures = [_counted(bench.spaces.get(size, 1000)) for size in backlogs]
    growth = figures[-1].median / figures[0].median
    yield Outcome(
        _IN_MEMORY, f"{growth:.2f} × the lines, {backlogs[-1] // backlogs[0]:,} × the messages",
        Verdict.of(growth <= 1.1) if len(figures) > 1 else Verdict.UNKNOWN, figures[-1], figures[:-1],
    )  # fmt: skip
    built = [bench.spaces.get(size, 1) for size in backlogs]
    if any(spaces.compact(one) is None for one in built):
        yield unmeasured(_COMPACTED, "the compaction did not come to its end")
        return
    compacted = [_counted(one) for one in built]
    segments = [math.ceil(one.messages / SEGMENT_MESSAGES) for one in built]
    a_segment = (compacted[-1].median - compacted[0].median) / max(1, segments[-1] - segments[0])
    yield Outcome(
        _COMPACTED, f"{a_segment:.0f} lines more for each of {segments[-1] - segments[0]} segments more",
        Verdict.of(a_segment <= _LINES_A_STEP * math.log2(SEGMENT_MESSAGES)) if segments[-1] > segments[0] else
        Verdict.UNKNOWN, compacted[-1], compacted[:-1],
    )  # fmt: skip


def _counted(built: spaces.Built) -> Figure:
    """Count the executed lines of several gets from the middle of the backlog."""
    with spool.open(built.path) as space:
        space.get(spaces.QUEUE, message_id=built.ids.pop())
        counts = [_lines_of(space, built.ids.pop()) for _ in range(_TIMES)]
    return Figure(f"{built.messages:,} waiting", counts, "lines")


def _lines_of(space: spool.Space, message_id: str) -> int:
    executed = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal executed
        executed += event == "line"
        return trace

    sys.settrace(trace)
    try:
        space.get(spaces.QUEUE, message_id=message_id)
    finally:
        sys.settrace(None)
    return executed


CASES = (Case("by-id", (_IN_MEMORY, _COMPACTED), _measure),)
