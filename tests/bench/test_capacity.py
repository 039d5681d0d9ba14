"""The model of a forwarder's capacity: its formula and its simulation agree with each other and with simple cases."""

import itertools
import random
from pathlib import Path

import pytest

import bench.__main__ as command_line
from bench import capacity_run
from bench.capacity import DAY, Calls, Costs, Sample, _round, fitted, need, rate, round_seconds, simulate, steady_round

COSTS = Costs(round=0.08, message=1e-6, task=2e-5, branch=0.002)
SLOW = Calls(0.02)
WEB = Calls(0.02, at_once=32)


@pytest.mark.parametrize("tasks", [1, 2, 8])
@pytest.mark.parametrize(
    "calls", [Calls(0.0005), SLOW, WEB], ids=["half a millisecond", "one call at a time", "32 calls at a time"]
)
def test_x05_the_formula_and_the_simulation_agree(calls: Calls, tasks: int) -> None:
    messages = 10 * steady_round(COSTS, calls, tasks)
    simulated = simulate(COSTS, calls, tasks, itertools.repeat(0.0, messages))
    assert simulated.messages == messages
    assert simulated.rate == pytest.approx(rate(COSTS, calls, tasks), rel=0.15)


def test_x05_a_service_that_takes_its_time_is_called_twice_as_often_by_two_workers() -> None:
    assert rate(COSTS, SLOW, 2) / rate(COSTS, SLOW, 1) == pytest.approx(2, rel=0.05)
    assert rate(COSTS, SLOW, 1) < 1 / SLOW.seconds, "one call after the other"


def test_x05_calls_at_once_are_limited_by_the_core() -> None:
    assert rate(COSTS, WEB, 1) == pytest.approx(32 * rate(COSTS, SLOW, 1), rel=0.1)
    assert rate(COSTS, Calls(0.02, 32, core=0.001), 1) < 1 / 0.001


def test_x05_rounds_grow_until_they_take_two_seconds_and_not_beyond_four() -> None:
    for calls in (Calls(0.001), SLOW, WEB):
        assert 1.9 <= round_seconds(COSTS, calls, steady_round(COSTS, calls, 2), 2) <= 4.1


def test_x05_below_its_limit_a_forwarder_keeps_up_and_above_it_does_not() -> None:
    most = rate(COSTS, SLOW, 2)
    half, twice = ([place / (most * load) for place in range(4000)] for load in (0.5, 2))
    kept_up, fell_behind = simulate(COSTS, SLOW, 2, half), simulate(COSTS, SLOW, 2, twice)
    assert kept_up.seconds == pytest.approx(half[-1], rel=0.1)
    assert kept_up.latency(0.99) < 3
    assert fell_behind.seconds == pytest.approx(2 * twice[-1], rel=0.1)
    assert fell_behind.latency(0.99) > 10


def test_x05_calls_that_differ_cost_the_wait_for_the_slowest_of_a_round() -> None:
    chance = random.Random(1)
    same = simulate(COSTS, SLOW, 4, itertools.repeat(0.0, 4000))
    differ = simulate(COSTS, SLOW, 4, itertools.repeat(0.0, 4000), lambda: chance.expovariate(1 / SLOW.seconds))
    assert 0.7 * same.rate < differ.rate < same.rate


def test_x05_one_message_takes_a_round() -> None:
    assert simulate(COSTS, SLOW, 2, [5.0]).latencies == [pytest.approx(round_seconds(COSTS, SLOW, 1, 2))]


@pytest.mark.parametrize(("messages", "branches"), [(1, 1), (2, 2), (128, 2), (16_384, 2), (16_385, 3), (65_536, 8)])
def test_x05_a_task_votes_for_two_branches_and_for_more_in_a_large_round(messages: int, branches: int) -> None:
    costs, calls = Costs(0.0, 0.0, 0.0, branch=1.0), Calls(0.0)
    assert round_seconds(costs, calls, messages, 1) == branches
    assert _round(costs, calls, 1, messages, lambda: 0.0) == branches


def test_x05_the_fit_finds_the_costs_from_samples_that_follow_them() -> None:
    samples = [
        Sample(count, round_seconds(COSTS, Calls(0.0), count, 1), COSTS.message * count + 0.001)
        for count in (128, 256, 512, 4096)
    ]
    found = fitted(samples, COSTS.branch)
    assert (found.round, found.message, found.task) == pytest.approx((COSTS.round, COSTS.message, COSTS.task))


def test_x05_a_billion_messages_a_day_are_shared_out() -> None:
    """If one machine cannot make all calls one after the other, the messages need several spaces."""
    load = need(COSTS, SLOW, 1e9, peak=1, cores=16)
    assert load.messages == pytest.approx(1e9 / DAY)
    assert load.calls == pytest.approx(load.messages * 0.02)
    assert load.tasks >= load.calls
    assert load.spaces == pytest.approx(load.calls / 16, rel=0.15)
    assert need(COSTS, WEB, 1e9, peak=1).spaces == 1
    assert need(COSTS, WEB, 1e6).tasks == 1
    assert load.megabytes == pytest.approx(load.messages * 1024 * 3 / 1e6)


def test_x05_the_page_has_the_table_of_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text()
    command = "python -m bench capacity --costs 0.06,3e-7,1.6e-5,0.003"
    assert command in page
    command_line.main(command.split()[3:])
    _, _, *table = capsys.readouterr().out.splitlines()
    assert "\n".join(table) in page
    assert capacity_run.SERVICE_SECONDS == 0.02, "as the page says"
