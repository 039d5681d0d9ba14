"""The rules hold in each scenario, and the checker shows a history for each rule that is left out."""

import pytest

from tests.protocol.scenario import Scenario, Setting
from tests.protocol.scenarios import SCENARIOS

SETTINGS = [
    pytest.param(scenario, setting, id=f"{scenario.name}-{place}", marks=[pytest.mark.slow] if setting.long else [])
    for scenario in SCENARIOS
    for place, setting in enumerate(scenario.settings, start=1)
]
MISTAKES = [
    pytest.param(
        scenario, setting, shows, id=f"{scenario.name}: {mistake}", marks=[pytest.mark.slow] if setting.long else []
    )
    for scenario in SCENARIOS
    for shows, mistakes in scenario.mistakes.items()
    for mistake, setting in mistakes.items()
]


@pytest.mark.every(5)
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("scenario", "setting"), SETTINGS)
def test_the_rules_hold(scenario: Scenario, setting: Setting) -> None:
    result = scenario.run(setting)
    print(f"{result.states:,} states")
    assert result.fault is None, str(result.fault)


@pytest.mark.every(13)
@pytest.mark.parametrize(("scenario", "setting", "shows"), MISTAKES)
def test_a_rule_left_out_breaks_a_promise(scenario: Scenario, setting: Setting, shows: str) -> None:
    result = scenario.run(setting)
    print(result.fault)
    assert result.fault is not None
    assert shows in result.fault.broken
