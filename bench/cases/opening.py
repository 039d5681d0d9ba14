"""Open a space in a new process, with a backlog in few commits, in many commits after a compaction, and cold."""

import os
import time
from collections.abc import Callable, Iterator
from functools import partial

import spool
from bench import spaces
from bench.cases.base import Case, Result, in_new_process
from bench.figures import Figure, in_turns, ratio
from bench.setting import Bench
from bench.table import Outcome, Row, Verdict, unmeasured

_FRONT_BYTES = 16 << 10
_COLD_ROUNDS = 3
# The number of messages in the targets. A smaller backlog is not judged.
_MESSAGES = 1_000_000

_FEW = Row("open-few", "open with 1,000,000 messages in 1,000 commits", "≤ 0.5 s")
_COMPACTED = Row(
    "open-compacted", "open with 1,000,000 messages in 1,000,000 commits after a compaction",
    "≤ 0.5 s, the first time too",
)  # fmt: skip
_COMPACTION = Row("compaction", "compact 1,000,000 small commits beside an idle application", "≤ 5 minutes")
_MINUTES = 5
_COLD = Row(
    "open-cold", "open with 1,000,000 messages in 1,000,000 commits, cold, never compacted",
    "≤ 1.5 × the time to open and read the front of each file once",
)  # fmt: skip


def _measure(bench: Bench) -> Iterator[Result]:
    sizes = bench.sizes
    few = bench.spaces.get(sizes.opened, 1000)
    yield _within(_FEW, Figure("xaspool", _opens(few, sizes.opens), "s"), sizes.opened)
    many = bench.spaces.get(sizes.opened, 1)
    if spaces.files(many.path) < many.messages:
        yield unmeasured(_COLD, "another case has compacted it")
    else:
        yield _cold(many)
    already = spaces.files(many.path) < many.messages
    seconds = spaces.compact(many)
    if seconds is None:
        yield unmeasured(_COMPACTION, f"it left {spaces.files(many.path):,} files")
        yield unmeasured(_COMPACTED, f"the compaction left {spaces.files(many.path):,} files")
        return
    yield _compaction(seconds, many) if not already else unmeasured(_COMPACTION, "another case did it")
    yield _within(_COMPACTED, Figure("xaspool", _opens(many, sizes.opens), "s"), sizes.opened)


def _compaction(seconds: float, built: spaces.Built) -> Outcome:
    verdict = Verdict.of(seconds <= 60 * _MINUTES) if built.messages >= _MESSAGES else Verdict.UNKNOWN
    note = f"{built.messages:,} commits, now {spaces.files(built.path):,} files; without the time of opening"
    return Outcome(_COMPACTION, f"{seconds / 60:.1f} minutes", verdict, note=note)


def _opens(built: spaces.Built, times: int) -> list[float]:
    return [in_new_process(_open, built.path) for _ in range(times)]


def _within(row: Row, ours: Figure, messages: int) -> Outcome:
    """Return the outcome. It is judged only if the backlog is as large as the target says."""
    reached = f"{ours.median:.3f} s, the first time {ours.samples[0]:.3f} s"
    if messages < _MESSAGES:
        return Outcome(row, reached, Verdict.UNKNOWN, ours, note=f"with {messages:,} messages only")
    return Outcome(row, reached, Verdict.of(max(ours.median, ours.samples[0]) <= 0.5), ours)


def _cold(built: spaces.Built) -> Outcome:
    how = spaces.cool(built.path)
    steps = {"xaspool": partial(_colder, _open, built.path), "fronts": partial(_colder, _read_fronts, built.path)}
    seconds = in_turns(steps, _COLD_ROUNDS)
    ours, fronts = Figure("xaspool", seconds["xaspool"], "s"), Figure("reading fronts", seconds["fronts"], "s")
    reached = ratio(ours, fronts)
    note = f"{built.messages:,} files; {how} before each"
    verdict = Verdict.of(reached <= 1.5) if built.messages >= _MESSAGES else Verdict.UNKNOWN
    return Outcome(_COLD, f"{reached:.2f} × reading fronts", verdict, ours, [fronts], note)


def _colder(function: Callable[[str], float], path: str) -> float:
    spaces.forget_checkpoint(path)
    spaces.cool(path)
    return float(in_new_process(function, path))


def _open(path: str) -> float:
    begun = time.perf_counter()
    space = spool.open(path)
    seconds = time.perf_counter() - begun
    space.close()
    return seconds


def _read_fronts(path: str) -> float:
    begun = time.perf_counter()
    for name in sorted(os.listdir(f"{path}/committed")):
        handle = os.open(f"{path}/committed/{name}", os.O_RDONLY)
        os.read(handle, _FRONT_BYTES)
        os.close(handle)
    return time.perf_counter() - begun


CASES = (Case("open", (_FEW, _COLD, _COMPACTION, _COMPACTED), _measure),)
