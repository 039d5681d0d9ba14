"""Forward messages to a function that takes 20 ms, with one Spark worker and with two workers, as on a cluster."""

from collections.abc import Iterator

from bench import capacity_run
from bench.cases.base import Case, Result
from bench.figures import Figure, ratio
from bench.sessions import session_on
from bench.setting import Bench
from bench.table import Outcome, Row, Verdict, unmeasured

_LEAST = 1.8
_ROW = Row("forward-workers", "forward to a service of 20 ms, two workers instead of one", f"≥ {_LEAST} ×")
_SHARE = 25  # a run has fewer messages by this factor than a run without the 20 ms
_NAMES = {1: "one worker", 2: "two workers"}


def _measure(bench: Bench) -> Iterator[Result]:
    try:
        from forwarder import SparkUnavailable
    except ImportError as error:
        yield unmeasured(_ROW, f"it takes the extra [spark]: {error}")
        return
    count = max(2, bench.sizes.forwarded // _SHARE)
    rates: dict[int, list[float]] = {workers: [] for workers in _NAMES}
    try:
        for workers, found in rates.items():
            with (
                bench.scratch("workers") as directory,
                session_on(f"local-cluster[{workers},1,1024]") as spark,
            ):
                capacity_run.forward(spark, f"{directory}/warm", "nothing", count)
                for run in range(bench.sizes.forwards):
                    samples = capacity_run.forward(spark, f"{directory}/{run}", "nap", count)
                    found.append(count / sum(sample.seconds for sample in samples))
    except SparkUnavailable as error:
        yield unmeasured(_ROW, str(error))
        return
    one, two = (Figure(name, rates[workers], "messages/s") for workers, name in _NAMES.items())
    reached = ratio(two, one)
    note = f"{count:,} messages; each worker is a Java of its own with one core"
    yield Outcome(_ROW, f"{reached:.2f} ×", Verdict.of(reached >= _LEAST), two, [one], note=note, against=one)


CASES = (Case("workers", (_ROW,), _measure),)
