"""The numbers of Python frames and C calls in the steps of ``bench.walk``, which do not depend on disk and machine."""

from collections.abc import Iterator

from bench.cases.base import Case, Result
from bench.setting import Bench
from bench.table import Outcome, Row, Verdict
from bench.walk import walks

# For each step, the row's key, and the numbers of Python frames and of C calls.
_MOST = {
    "put": ("calls-put", 50, 80),
    "get": ("calls-get", 70, 110),
    "each further put of a transaction": ("calls-put-each", 8, 15),
    "each further get of a transaction, of messages of one commit": ("calls-get-each", 25, 30),
    "two-phase commit of a put, all five calls": ("calls-two-phase", 200, 250),
}
_ROWS = {
    step: Row(key, f"Python frames + C calls: {step}", f"≤ {frames} + {c_calls}")
    for step, (key, frames, c_calls) in _MOST.items()
}


def _measure(bench: Bench) -> Iterator[Result]:
    with bench.scratch("calls") as directory:
        found = walks(directory)
    for step, row in _ROWS.items():
        _, frames, c_calls = _MOST[step]
        walk = found[step]
        good = walk.frames <= frames and walk.c_calls <= c_calls
        yield Outcome(row, f"{walk.frames} + {walk.c_calls}", Verdict.of(good))


CASES = (Case("calls", tuple(_ROWS.values()), _measure),)
