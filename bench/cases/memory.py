"""The memory of a process with a large space open, minus the memory of a process with an empty space open."""

from collections.abc import Iterator

import spool
from bench import spaces
from bench.cases.base import Case, Result, in_new_process
from bench.figures import Figure
from bench.setting import Bench
from bench.table import Outcome, Row, Verdict

_WAITING = Row("memory", "memory above an empty space, 1,000,000 waiting", "≤ 50 MB")
_COMPACTED = Row("memory-compacted", "memory above an empty space, 10,000,000 waiting and compacted", "≤ 64 MB")
_TIMES = 3


def _measure(bench: Bench) -> Iterator[Result]:
    fewer, more = bench.sizes.waiting
    with bench.scratch("empty") as directory:
        empty = spaces.build(f"{directory}/space", 0, 1)
        nothing = Figure("an empty space", _resident(empty), "MB")
        yield _judged(_WAITING, bench.spaces.get(fewer, 1000), nothing, 50, 1_000_000)
        many = bench.spaces.get(more, 1000)
        spaces.compact(many)
        yield _judged(_COMPACTED, many, nothing, 64, 10_000_000)


def _judged(row: Row, built: spaces.Built, nothing: Figure, most: float, messages: int) -> Outcome:
    """Return the outcome. It is judged only if the backlog is as large as the target says."""
    above = [resident - nothing.median for resident in _resident(built)]
    ours = Figure("xaspool", above, "MB above")
    note = f"with {built.messages:,} messages in {spaces.files(built.path):,} files"
    verdict = Verdict.of(ours.median <= most) if built.messages >= messages else Verdict.UNKNOWN
    return Outcome(row, f"{ours.median:.1f} MB", verdict, ours, [nothing], note)


def _resident(built: spaces.Built) -> list[float]:
    return [in_new_process(_resident_here, built.path) for _ in range(_TIMES)]


def _resident_here(path: str) -> float:
    """Return the resident MB of this process with the space open, after it has counted the messages."""
    with spool.open(path) as space:
        space.stats(spaces.QUEUE)
        with open("/proc/self/status", encoding="ascii") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1000


CASES = (Case("memory", (_WAITING, _COMPACTED), _measure),)
