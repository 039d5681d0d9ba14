"""A scenario: processes that run the protocol at once, faults of the machine, and mistakes for the checker to find."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tests.protocol.checker import Checks, Faults, Process, Result, check
from tests.protocol.machine import Machine, State
from tests.protocol.rules import Rules


class Case(NamedTuple):
    """The checker's input from a scenario: processes, a start, and checks."""

    processes: list[Process]
    start: State
    checks: Checks = Checks()


class Setting(NamedTuple):
    """One run of the checker: the rules in force, the scenario's own options, the machine and its faults.

    ``long``: more than some 30,000 states, so with ``--long`` only.
    """

    kills: int = 0
    power: bool = False
    rules: Rules = Rules()
    options: Mapping[str, Any] = {}
    journal: bool = True
    faults: Faults = Faults()
    long: bool = False


class Scenario(NamedTuple):
    """``name``: docs/architecture.md and tests/crash/scenarios.py cite it. ``rules``: the rules that it checks.

    mistakes: settings that leave a rule out, by a part of the sentence with which the checker reports the broken
        promise, and by the text of the mistake.
    """

    name: str
    title: str
    rules: tuple[int, ...]
    build: Callable[..., Case]
    settings: tuple[Setting, ...]
    mistakes: Mapping[str, Mapping[str, Setting]] = {}

    def run(self, setting: Setting) -> Result:
        case = self.build(setting.rules, **setting.options)
        faults = setting.faults._replace(kills=setting.kills)
        return check(case.processes, case.start, Machine(setting.power, setting.journal), faults, case.checks)
