"""A thousand concurrent puts, by ``submit`` in one thread or by asyncio tasks, compared with the raw append."""

import asyncio
import importlib
import importlib.util
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import spool
from bench.cases.base import Case, Result
from bench.figures import Figure, in_turns
from bench.peers.base import BODY
from bench.setting import Bench, Sizes
from bench.table import Outcome, Row, Verdict, unmeasured

_RAW_APPENDS = 200
_RAW_NEEDED = 4_000

_SUBMIT = Row("submit", "submit, 1,000 outstanding, one thread", "≥ 80,000/s where raw append is ≥ 4,000/s")
_ASYNCIO = Row("asyncio", "asyncio, 1,000 tasks putting", "≥ 30,000/s where raw append is ≥ 4,000/s")


def _submit(bench: Bench) -> Iterator[Result]:
    if not hasattr(spool.Space, "submit"):
        yield unmeasured(_SUBMIT, "not built: there is no Space.submit")
        return
    with bench.scratch("submit") as directory, spool.create(f"{directory}/space") as space:
        space.create_queue("queue")
        busy: list[float] = []
        found = _judged(bench, _SUBMIT, "submit", partial(_submitted, space, bench.sizes, busy), 80_000)
        processor = f"{1e6 * statistics.median(busy):.1f} µs of processor a message"
        yield replace(found, note="; ".join(filter(None, [processor, found.note])))


def _submitted(space: Any, sizes: Sizes, busy: list[float]) -> float:
    waiting: deque[Any] = deque()
    begun, used = time.perf_counter(), time.process_time()
    for _ in range(sizes.submitted):
        if len(waiting) == sizes.outstanding:
            waiting.popleft().result()
        waiting.append(space.submit("queue", BODY))
    for future in waiting:
        future.result()
    rate = sizes.submitted / (time.perf_counter() - begun)
    busy.append((time.process_time() - used) / sizes.submitted)
    _drain(space, sizes.submitted)
    return rate


def _drain(space: Any, left: int) -> None:
    while left:
        left -= len(space.get_many("queue", min(left, 1000)))


def _asyncio(bench: Bench) -> Iterator[Result]:
    if importlib.util.find_spec("spool.aio") is None:
        yield unmeasured(_ASYNCIO, "not built: there is no spool.aio")
        return
    aio = importlib.import_module("spool.aio")
    with bench.scratch("asyncio") as directory, asyncio.Runner() as runner:
        with spool.create(f"{directory}/space") as drain:
            drain.create_queue("queue")
            space = runner.run(_entered(aio.open(f"{directory}/space")))

            def step() -> float:
                begun = time.perf_counter()
                runner.run(_put_by_tasks(space, bench.sizes.outstanding, bench.sizes.submitted))
                rate = bench.sizes.submitted / (time.perf_counter() - begun)
                _drain(drain, bench.sizes.submitted)
                return rate

            yield _judged(bench, _ASYNCIO, "asyncio", step, 30_000)
            runner.run(space.__aexit__(None, None, None))


async def _entered(opening: Any) -> Any:
    return await opening.__aenter__()


async def _put_by_tasks(space: Any, tasks: int, messages: int) -> None:
    async def put(count: int) -> None:
        for _ in range(count):
            await space.put("queue", BODY)

    counts = [messages // tasks + (task < messages % tasks) for task in range(tasks)]
    await asyncio.gather(*(put(count) for count in counts))


def _judged(bench: Bench, row: Row, who: str, step: Callable[[], float], target: float) -> Outcome:
    with bench.scratch("raw") as directory:
        raw = bench.peers["raw append"].line(f"{who}-raw") if "raw append" in bench.peers else _raw(directory)

        def appends() -> float:
            begun = time.perf_counter()
            for _ in range(_RAW_APPENDS):
                raw.put(1)
            return _RAW_APPENDS / (time.perf_counter() - begun)

        steps = {who: step, "raw append": appends}
        in_turns(steps, 2)
        rates = in_turns(steps, bench.sizes.slices)
        raw.close()
    ours = Figure(who, rates[who], "messages/s", True)
    limit = Figure("raw append", rates["raw append"], "messages/s", True)
    reached = f"{ours.median:,.0f}/s"
    if ours.median >= target or limit.median >= _RAW_NEEDED:
        return Outcome(row, reached, Verdict.of(ours.median >= target), ours, [limit])
    scaled = target * limit.median / _RAW_NEEDED
    note = f"not judged: raw append does {limit.median:,.0f}/s only, for which {scaled:,.0f}/s would be in proportion"
    return Outcome(row, reached, Verdict.UNKNOWN, ours, [limit], note)


def _raw(directory: str) -> Any:
    from bench.peers.raw import RawLine

    return RawLine(f"{directory}/raw")


CASES = (Case("submit", (_SUBMIT,), _submit), Case("asyncio", (_ASYNCIO,), _asyncio))
