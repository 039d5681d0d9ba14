"""Interleaved calls of several processes, with kills and power cuts: no acknowledged message is lost or delivered
twice, and the order holds (E04, E11, X04)."""

from collections import Counter

import pytest

from tests.crash.by_rules import EXTREMES, in_turn
from tests.crash.interleave import Count, Interleaver
from tests.crash.kinds import KINDS
from tests.crash.scenarios import SCENARIOS, Scenario
from tests.protocol.scenarios import SCENARIOS as MODEL
from tests.survivors import Rules

# Sizes of the slow tests, with --long and with --deep.
MANY = {"long": {"limit": 150, "per_cut": 10}, "deep": {"limit": 1000, "per_cut": 20}}


@pytest.mark.every(7)
@in_turn("scenario, rules", SCENARIOS, EXTREMES, quick=1, long=1)
def test_each_interleaving_of_processes_ends_in_an_explained_state(
    scenario: Scenario, rules: Rules, record_property, pytestconfig
) -> None:
    _record(Interleaver(scenario, rules, limit=pytestconfig.getoption("schedules")).explore(), record_property)


@pytest.mark.timeout(7200)
@in_turn("scenario, rules", SCENARIOS, tuple(Rules), long=2)
def test_much_more_that_interleaves_is_explained(scenario: Scenario, rules: Rules, record_property, depth: str) -> None:
    _record(Interleaver(scenario, rules, **MANY[depth]).explore(), record_property)


@pytest.mark.slow
def test_power_cuts_leave_every_kind_of_disk(record_property) -> None:
    """Otherwise the tests above would cover fewer disks than they seem to."""
    kinds: Counter[str] = Counter()
    for name in ("a late reader beside reclaim and recycling", "reply, rollback and put", "commits beside takes"):
        (scenario,) = (scenario for scenario in SCENARIOS if scenario.name == name)
        for rules in Rules:
            kinds += Interleaver(scenario, rules, limit=9, per_cut=8).explore().kinds
    record_property("interleavings: kinds", dict(kinds))
    assert all(kinds[kind] for kind in KINDS), kinds


def _record(count: Count, record_property) -> None:
    for name, value in vars(count).items():
        record_property(f"interleavings: {name}", dict(value) if isinstance(value, Counter) else value)
    assert min(count.schedules, count.kills, count.cuts, count.survivors) > 0
    print(f"{count.schedules} schedules, {count.kills} kills, {count.cuts} cuts, {count.survivors} disks")


def test_every_scenario_of_the_model_runs_with_the_engine() -> None:
    """Except those that have tests of their own: power cuts at an opening, names that follow, processes that commit
    together, calls that sleep, and an xid that is used again."""
    elsewhere = {"open-after-power-cut", "data-flushes", "votes-by-data", "puts-together", "get-together", "one-key"}
    elsewhere |= {"waiting", "xid-used-again"}
    here = {part for scenario in SCENARIOS if scenario.model for part in scenario.model.split(" and ")}
    assert here | elsewhere == {scenario.name for scenario in MODEL}


def test_x10_a_schedule_can_be_played_again() -> None:
    scenario = SCENARIOS[0]
    traces = [Interleaver(scenario, Rules.ORDERED, limit=1).play((), seed=5).trace for _ in range(2)]
    assert traces[0] == traces[1]
    assert len({actor for actor, _ in traces[0]}) == 3
