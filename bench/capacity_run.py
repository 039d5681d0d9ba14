"""``python -m bench capacity``: measure a forwarder's costs, predict a second run from the costs, and measure this run.

The first run has one task and a function that does nothing. The second run has two workers and a function that takes 20
ms. Then the command prints the needs of a million to a billion messages per day, computed from the costs.
"""

import argparse
import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING

import spool
from bench.capacity import Calls, Costs, Sample, fitted, need, rate, simulate
from bench.peers.base import BODY
from bench.sessions import elsewhere, session_on
from bench.spaces import QUEUE, fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from forwarder import Endpoint, Event

SERVICE_SECONDS = 0.02
_A_COMMIT = 1000
_FLUSHES = 20
_WORKERS = 2
_LOADS = (1e6, 1e7, 1e8, 1e9)
_WEB_CORE = 0.0006  # seconds of a core for an HTTP request, from the results of the case ``web``
_SERVICES = (
    ("a function that does nothing", Calls(0.0)),
    ("a function, 20 ms, one call at a time", Calls(SERVICE_SECONDS)),
    ("a web service, 20 ms, 32 calls at a time", Calls(SERVICE_SECONDS, 32, _WEB_CORE)),
)


def nothing(message: spool.Message) -> None:
    """A service that costs nothing."""


def nap(message: spool.Message) -> None:
    """A service that takes 20 ms."""
    time.sleep(SERVICE_SECONDS)


def main(words: list[str]) -> None:
    found = argparse.ArgumentParser(prog="python -m bench capacity", description=__doc__)
    found.add_argument("--directory", default=".", help="on the disk to measure; default: here")
    found.add_argument("--messages", type=int, default=20_000, help="of the run that measures; default: 20,000")
    found.add_argument("--slow-messages", type=int, default=800, help="of the run that is predicted; default: 800")
    found.add_argument("--costs", type=_costs, metavar="S,S,S,S", help="plan with these costs, and measure nothing")
    found.add_argument("--network", action="store_true", help="of workers that do not see the space")
    found.add_argument("--cores", type=int, default=16, help="for the tasks of one space; default: 16")
    asked = found.parse_args(words)
    if asked.costs is not None:
        print(told(asked.costs), *table(asked.costs, asked.cores), sep="\n")
        return
    endpoint = None
    if asked.network:
        from forwarder import Endpoint

        endpoint = Endpoint("127.0.0.1")
    directory = tempfile.mkdtemp(prefix="xaspool-bench-", dir=os.path.abspath(asked.directory))
    try:
        with elsewhere() if asked.network else nullcontext():
            costs = measured_costs(directory, asked.messages, endpoint)
            print(told(costs), flush=True)
            print(compared(costs, directory, asked.slow_messages, endpoint), flush=True)
        print(*table(costs, asked.cores), sep="\n", flush=True)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _costs(text: str) -> Costs:
    """Parse the seconds of a round, of a message in the driver, of a message in a task, and of a branch."""
    return Costs(*map(float, text.split(",", 3)))


def measured_costs(directory: str, messages: int, endpoint: "Endpoint | None" = None) -> Costs:
    """Measure flushes, and rounds of all sizes with one task. ``endpoint``: for workers that do not see the space."""
    with session_on("local[1]") as spark:
        forward(spark, f"{directory}/warm", "nothing", 500, endpoint)
        samples = forward(spark, f"{directory}/nothing", "nothing", messages, endpoint)
    return fitted(samples, flush_seconds(f"{directory}/flushed"))


def compared(costs: Costs, directory: str, messages: int, endpoint: "Endpoint | None" = None) -> str:
    """Predict a run of two workers whose service takes 20 ms, measure the run, and return both results as text."""
    calls = Calls(SERVICE_SECONDS)
    formula = rate(costs, calls, _WORKERS)
    simulated = simulate(costs, calls, _WORKERS, itertools.repeat(0.0, messages)).rate
    with session_on(f"local[{_WORKERS}]") as spark:
        forward(spark, f"{directory}/warm2", "nothing", 500, endpoint)
        samples = forward(spark, f"{directory}/nap", "nap", messages, endpoint)
    measured = messages / sum(sample.seconds for sample in samples)
    return (
        f"{_WORKERS} workers, {SERVICE_SECONDS * 1000:g} ms a call, {messages:,} messages: measured {measured:.1f} "
        f"messages/s; simulated {simulated:.1f} ({simulated / measured - 1:+.0%}); by the formula, when rounds have "
        f"grown, {formula:.1f} ({formula / measured - 1:+.0%})"
    )


def told(costs: Costs) -> str:
    return (
        f"a round {costs.round * 1e3:.0f} ms; a message {costs.message * 1e6:.1f} µs of the driver and "
        f"{costs.task * 1e6:.1f} µs of a task; a branch {costs.branch * 1e3:.1f} ms"
    )


def table(costs: Costs, cores: int = 16) -> Iterator[str]:
    """Yield the lines of a Markdown table with the needs of loads. ``cores``: the cores for the tasks of one space."""
    head = ("messages a day", "service", "a second, at the peak", "calls under way", "cores", "spaces")
    yield from ("", f"| {' | '.join((*head, 'flushes a second', 'MB a second'))} |", "|---|---" + "|---:" * 6 + "|")
    for a_day, (name, calls) in itertools.product(_LOADS, _SERVICES):
        it = need(costs, calls, a_day, cores=cores)
        cells = (it.messages, it.calls, it.tasks, it.spaces, it.flushes, it.megabytes)
        yield f"| {a_day:,.0f} | {name} | {' | '.join(f'{cell:,.0f}' for cell in cells)} |"


def forward(
    spark: "SparkSession", path: str, function: str, messages: int, endpoint: "Endpoint | None" = None
) -> list[Sample]:
    """Forward the messages of a new space to a function of this module; return a sample for each round."""
    from forwarder import Forwarder
    from forwarder.events import Begun, Done

    fill(path, messages, _A_COMMIT)
    samples: list[Sample] = []
    last = [time.perf_counter(), time.process_time()]

    def note(event: "Event") -> None:
        if isinstance(event, Begun | Done):
            now, processor = time.perf_counter(), time.process_time()
            if isinstance(event, Done):
                samples.append(Sample(sum(event.effects.values()), now - last[0], processor - last[1]))
            last[:] = now, processor

    routes = {QUEUE: f"python:bench.capacity_run:{function}"}
    summary = Forwarder(path, routes, spark, endpoint=endpoint, on_event=note).run(once=True)
    if summary.effects != {QUEUE: {"delivered": messages}}:
        raise RuntimeError(f"of {messages:,} messages were {summary.effects}: {summary.errors} {summary.down}")
    return samples


def flush_seconds(path: str) -> float:
    """Return the seconds of a commit of one message."""
    with spool.create(path) as space:
        space.create_queue(QUEUE)
        space.put(QUEUE, BODY)
        begun = time.perf_counter()
        for _ in range(_FLUSHES):
            space.put(QUEUE, BODY)
        return (time.perf_counter() - begun) / _FLUSHES
