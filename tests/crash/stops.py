"""Narrow windows: one actor stops before a call that is named, another goes on, and comes back at every step of its.

Random schedules meet such windows rarely; these are tried in full.
"""

import re
from typing import NamedTuple

from tests.crash.interleave import Interleaver
from tests.crash.scenarios import SCENARIOS, Scenario
from tests.crash.schedule import Cut, Kill, Schedule, Switch
from tests.survivors import Rules


class Stop(NamedTuple):
    """``first`` stops before each of its calls that ``before`` (a regular expression) describes; ``second`` goes on.
    Both are places in the scenario's cast."""

    why: str
    scenario: str
    first: int
    before: str
    second: int
    rules: Rules = Rules.ORDERED


def explorer_of(scenario: str, rules: Rules = Rules.ORDERED) -> Interleaver:
    return Interleaver(scenario_of(scenario), rules, limit=1)


def scenario_of(name: str) -> Scenario:
    (scenario,) = (one for one in SCENARIOS if one.name == name)
    return scenario


def calls_of(schedule: Schedule, actor: int, described: str = "") -> list[int]:
    """The steps at which the actor makes such a call."""
    steps = zip(schedule.trace, schedule.told, strict=True)
    return [n for n, ((who, _), told) in enumerate(steps, 1) if who == actor and re.match(described, told)]


def stop_in_turn(stop: Stop) -> int:
    """How many schedules were played; none, and the window is not there any more."""
    explorer = explorer_of(stop.scenario, stop.rules)
    begin = (Switch(1, stop.first),)
    for step in calls_of(explorer.play(begin), stop.first, stop.before):
        plan = (*begin, Switch(step, stop.second))
        for back in [n for n in calls_of(explorer.play(plan), stop.second) if n > step]:
            explorer.play((*plan, Switch(back, stop.first)))
    return explorer.count.schedules - 1


def die_in_turn(explorer: Interleaver, victim: int, rescuer: int, described: str) -> None:
    """At each step of the rescuer, the victim comes as far as the last such call of its, and dies there."""
    for step in calls_of(explorer.play((Switch(1, rescuer),)), rescuer)[1:]:
        plan = (Switch(1, rescuer), Switch(step, victim))
        calls = [n for n in calls_of(explorer.play(plan), victim, described) if n > step]
        if calls:
            explorer.play((*plan, Kill(calls[-1], victim), Switch(calls[-1], rescuer)))


def die_and_cut(explorer: Interleaver, victim: int, described: str, every: int = 4) -> None:
    """The victim dies at such a call, and at some later step the power fails."""
    explorer.per_cut = 20
    for step in calls_of(explorer.play((Switch(1, victim),)), victim, described):
        plan = (Switch(1, victim), Kill(step, victim))
        for later in range(step + 1, explorer.play(plan).steps, every):
            explorer.play((*plan, Cut(later)))


def die_at_each_step(explorer: Interleaver, victim: int, described: str) -> None:
    """From such a call on: the victim's process dies before each of its steps, and in another life the power fails; and
    once when all are told."""
    whole = explorer.play(())
    first = calls_of(whole, victim, described)[0]
    for step in calls_of(whole, victim):
        if step >= first:
            explorer.play((Kill(step, victim),))
            explorer.play((Cut(step),))
    explorer.play((Cut(whole.steps),))
