"""Eight processes, half putting, half getting, are killed at random and in named windows; no promise is broken."""

import os
import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.strides import Stride
from tests.torture.arena import ANYWHERE, Arena, Plan, Result
from tests.torture.windows import WINDOWS


def run(directory: Path, plan: Plan) -> Result:
    print(f"seed {plan.seed}: repeat with XASPOOL_TORTURE_SEED={plan.seed}")
    result = Arena(directory, plan).run()
    print(f"killed: {dict(result.killed)}")
    print(f"stopped: {dict(result.stopped)}")
    print(f"records: {dict(result.operations)}")
    return result


def seed() -> int:
    return int(os.environ.get("XASPOOL_TORTURE_SEED", 0)) or random.SystemRandom().randrange(1, 2**31)


def assert_nothing_is_broken(result: Result) -> None:
    result.aftermath.assert_nothing_is_broken()
    assert [window for window in (*WINDOWS, ANYWHERE) if not result.killed[window]] == []
    assert result.stopped
    assert result.operations["saw"], "nobody looked"


def test_nothing_acknowledged_is_lost_doubled_or_reordered_by_kills_in_every_window_and_stops(
    tmp_path: Path, stride: Stride
) -> None:
    least = Plan(seed())
    plan = replace(
        least,
        kills_per_window=least.kills_per_window // stride(3),
        kills_anywhere=least.kills_anywhere // stride(4),
        least_seconds=least.least_seconds / stride(15),
    )
    assert_nothing_is_broken(run(tmp_path, plan))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_same_for_ten_minutes(tmp_path: Path) -> None:
    assert_nothing_is_broken(run(tmp_path, Plan(seed(), kills_per_window=20, least_seconds=600, most_seconds=700)))
