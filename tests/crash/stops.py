"""Narrow windows: one actor stops before a call that is named, another goes on, and comes back at every step of its.

Random schedules meet such windows rarely; these are tried in full.
"""

import re
from typing import NamedTuple

from tests.crash.interleave import Interleaver
from tests.crash.scenarios import SCENARIOS, Scenario
from tests.crash.schedule import Choice, Cut, Kill, Schedule, Switch
from tests.strides import some
from tests.survivors import Rules


class Stop(NamedTuple):
    """``first`` stops before each of its calls that ``before`` (a regular expression) describes; ``second`` goes on.
    Both are places in the order in which the scenario adds them."""

    why: str
    scenario: str
    first: int
    before: str
    second: int
    rules: Rules = Rules.ORDERED


RACE = "commit, rollback and commit race"
COMMIT, ROLLBACK, OTHER_COMMIT = range(3)
CLAIM = r"lock \d+ \d{8} "  # of a message: its number's bits lie above its ordinal's

STOPS = (
    Stop("a list of prepared branches is never read between a vote's new version and its new name",
         "a vote beside a take", 0, r"rename_new \S+ prepared/", 1),
    Stop("a list of prepared branches is never read between a rollback's new version and the old name's end",
         "a rollback beside takes", 0, "unlink prepared/", 1),
    Stop("no branch is rolled back while its bytes are made durable", RACE, COMMIT, r"rename \S+copy prepared/",
         ROLLBACK),
    Stop("no branch is committed whose rollback is at its last step", RACE, ROLLBACK, "unlink prepared/", COMMIT),
    Stop("no branch is rolled back while its commit is flushed", RACE, COMMIT, "flush", ROLLBACK),
    Stop("after the number lock a commit looks whether its branch was committed meanwhile", RACE, COMMIT,
         r"lock \d+ 0 ", OTHER_COMMIT),
    Stop("a committed branch is not made durable behind its move", "adopt, take and reclaim by two", 0, "flush", 1),
    Stop("a claim looks for a vote about its message", "a vote beside a take", 1, CLAIM, 0),
    Stop("a claim looks for a removal of its message", "a claim beside a removal", 1, CLAIM, 0),
    Stop("a claim looks for a removal that is not published yet", "a commit that cannot be made visible", 1,
         CLAIM, 0),
    Stop("numbers are given out one at a time", "commits beside takes", 0, r"rename_new \S+ committed/", 1),
    Stop("a number is published after those before it, by its writer", "commits beside takes", 0, "flush", 1),
    Stop("two processes that create queues lose none", "two create queues", 0, "rename space.toml.tmp", 1),
    Stop("two intakes do not take one file while it has two names", "two intakes", 0, "link drop/", 1, Rules.STRICT),
    Stop("two intakes do not take one file while it has a copy", "two intakes and another user's files", 0,
         "rename_new drop/", 1, Rules.STRICT),
)  # fmt: skip


def explorer_of(scenario: str, rules: Rules = Rules.ORDERED, *, every: int = 1) -> Interleaver:
    return Interleaver(scenario_of(scenario), rules, limit=1, every=every)


def scenario_of(name: str) -> Scenario:
    (scenario,) = (one for one in SCENARIOS if one.name == name)
    return scenario


def calls_of(schedule: Schedule, actor: int, described: str = "") -> list[int]:
    """The steps at which the actor makes such a call."""
    steps = zip(schedule.trace, schedule.told, strict=True)
    return [n for n, ((who, _), told) in enumerate(steps, 1) if who == actor and re.match(described, told)]


def some_calls_of(explorer: Interleaver, schedule: Schedule, actor: int, first: int = 1) -> list[int]:
    """The steps of an actor from ``first`` on, or some of them: see ``Interleaver.every``."""
    steps = [step for step in calls_of(schedule, actor) if step >= first]
    return list(some(steps, [schedule.told[step - 1] for step in steps], explorer.every))


def stop_in_turn(stop: Stop, *, every: int = 1) -> int:
    """Return the number of played schedules; 0 means that the window does not exist any more."""
    explorer = explorer_of(stop.scenario, stop.rules, every=every)
    begin = (Switch(1, stop.first),)
    for step in calls_of(explorer.play(begin), stop.first, stop.before):
        plan = (*begin, Switch(step, stop.second))
        for back in some_calls_of(explorer, explorer.play(plan), stop.second, step + 1):
            explorer.play((*plan, Switch(back, stop.first)))
    return explorer.count.schedules - 1


def stop_and_rest(explorer: Interleaver, first: int, before: str, second: int) -> int:
    """Stop one actor before each such call, while another goes on until it waits. Return the number of played
    schedules."""
    begin = (Switch(1, first),)
    for step in calls_of(explorer.play(begin), first, before):
        explorer.play((*begin, Switch(step, second)))
    return explorer.count.schedules - 1


def stop_twice(explorer: Interleaver, stopped: int, before: str, first: int, then: int) -> int:
    """Stop one actor before such a call, and run another to its end; at each later step run a third to its end. Return
    the number of played schedules."""
    begin = (Switch(1, stopped),)
    for step in calls_of(explorer.play(begin), stopped, before):
        plan = (*begin, Switch(step, first))
        whole = explorer.play(plan)
        back = calls_of(whole, first)[-1]
        for again in some_calls_of(explorer, whole, stopped, back + 1):
            explorer.play((*plan, Switch(back + 1, stopped), Switch(again, then)))
    return explorer.count.schedules


def die_in_turn(explorer: Interleaver, victim: int, rescuer: int, described: str) -> None:
    """At each step of the rescuer, let the victim go on to its last such call, and kill it there."""
    for step in some_calls_of(explorer, explorer.play((Switch(1, rescuer),)), rescuer, 2):
        plan = (Switch(1, rescuer), Switch(step, victim))
        calls = [n for n in calls_of(explorer.play(plan), victim, described) if n > step]
        if calls:
            explorer.play((*plan, Kill(calls[-1], victim), Switch(calls[-1], rescuer)))


def die_and_cut(explorer: Interleaver, victim: int, described: str, every: int = 4, *, witness: int | None = None):
    """The victim dies at such a call, and at some later step the power fails. ``witness``: goes on when it dies."""
    explorer.per_cut = 20
    for step in calls_of(explorer.play((Switch(1, victim),)), victim, described):
        plan: tuple[Choice, ...] = (Switch(1, victim), Kill(step, victim))
        plan += () if witness is None else (Switch(step, witness),)
        for later in range(step + 1, explorer.play(plan).steps, every):
            explorer.play((*plan, Cut(later)))


def die_and_stop(explorer: Interleaver, victim: int, described: str, *, first: int, then: int) -> None:
    """The victim dies at such a call. One goes on, and at each of its steps another does."""
    for step in calls_of(explorer.play((Switch(1, victim),)), victim, described):
        plan = (Switch(1, victim), Kill(step, victim), Switch(step, first))
        for later in [n for n in calls_of(explorer.play(plan), first) if n > step]:
            explorer.play((*plan, Switch(later, then)))


def cut_in_turn(explorer: Interleaver, witness: int) -> int:
    """Cut the power before each step of an actor. Return the number of played schedules."""
    explorer.per_cut = 20
    for step in calls_of(explorer.play(()), witness):
        explorer.play((Cut(step),))
    return explorer.count.schedules - 1


def die_at_each_step(explorer: Interleaver, victim: int, described: str, *, of: int | None = None) -> None:
    """From such a call on: the victim's process dies before each of its steps; in another run the power fails there.
    Both happen once more after all callers were told. ``of``: before each step of this actor instead."""
    whole, actor = explorer.play(()), victim if of is None else of
    first = calls_of(whole, actor, described)[0]
    for step in some_calls_of(explorer, whole, actor, first):
        explorer.play((Kill(step, victim),))
        explorer.play((Cut(step),))
    explorer.play((Cut(whole.steps),))
