"""The time in which a new process runs a command or imports ``spool``, compared with a process that does nothing.

All processes use this tree, even if it is not installed. The targets are for a machine where ``python -c pass`` takes
15 ms. On a slower machine, the targets are longer in proportion.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import spool
from bench.cases.base import Case, Result
from bench.figures import Figure, in_turns
from bench.setting import Bench
from bench.table import Outcome, Row, Verdict

_ROOT = Path(__file__).parents[2]
_PASS_SECONDS = 0.015
_PROGRAM = "from xaspool_scripts.start import admin; admin()"
_ADMIN = Row("start-admin", "spool-admin queue list", "≤ 0.25 s where python -c pass takes 15 ms")
_IMPORT = Row("start-import", "import spool", "≤ 60 ms where python -c pass takes 15 ms")


def _measure(bench: Bench) -> Iterator[Result]:
    with bench.scratch("start") as directory:
        with spool.create(f"{directory}/space") as space:
            space.create_queue("queue")
        steps = {
            "python -c pass": partial(_seconds, "pass"),
            "import spool": partial(_seconds, "import spool"),
            "spool-admin": partial(_seconds, _PROGRAM, "-s", f"{directory}/space", "queue", "list"),
        }
        in_turns(steps, 1)  # warm up: Python compiles the modules
        seconds = in_turns(steps, bench.sizes.starts)
    nothing = Figure("python -c pass", [1000 * one for one in seconds["python -c pass"]], "ms")
    admin = Figure("spool-admin", [1000 * one for one in seconds["spool-admin"]], "ms")
    yield _judged(_ADMIN, admin, nothing, admin.median, 250.0)
    whole = Figure("python -c 'import spool'", [1000 * one for one in seconds["import spool"]], "ms")
    yield _judged(_IMPORT, whole, nothing, whole.median - nothing.median, 60.0)


def _judged(row: Row, ours: Figure, nothing: Figure, reached: float, most: float) -> Outcome:
    allowed = most * max(1.0, nothing.median / (1000 * _PASS_SECONDS))
    note = f"{allowed:.0f} ms allowed: python -c pass takes {nothing.median:.1f} ms"
    return Outcome(row, f"{reached:.0f} ms", Verdict.of(reached <= allowed), ours, [nothing], note)


def _seconds(program: str, *arguments: str) -> float:
    path = os.pathsep.join((str(_ROOT), str(_ROOT / "scripts")))
    begun = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", program, *arguments], env={**os.environ, "PYTHONPATH": path}, check=True,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return time.perf_counter() - begun


CASES = (Case("start", (_ADMIN, _IMPORT), _measure),)
