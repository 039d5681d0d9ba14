"""A power cut or a kill between any two calls of the disk: decisions are found if they were made, and remain found."""

from collections.abc import Callable

import pytest

from tests.decisions.cuts import Cuts
from tests.decisions.machines import Coordinator
from tests.survivors import Rules

SPACE, SHOP, OTHER = "space /a", "PostgreSQL 7 shop", "space /b"


def all_branches_end(process: Coordinator) -> None:
    process.open()
    process.register(SPACE)
    process.register(SHOP)
    process.decide(1)
    process.end(1)
    process.decide(2)
    process.decide(3)
    process.end(3)
    process.decide(4)
    process.decide(5)  # the log is full, and is written again
    process.end(2, 4)
    process.register(OTHER)
    process.decide(6)
    process.end(5, 6)
    process.close()


def branches_remain(process: Coordinator) -> None:
    process.open()
    process.recover()
    process.register(SPACE)
    process.decide(1)
    process.decide(2)
    process.end(1)
    process.close()


def threads_decide(process: Coordinator) -> None:
    process.open()
    process.register(SPACE)
    process.decide_together(1, 2)
    process.end(1)
    process.decide_together(3, 4)
    process.end(2, 3)
    process.decide_together(5, 6)
    process.close(remove=False)


BY_PROGRAM = pytest.mark.parametrize(
    "program", [all_branches_end, branches_remain, threads_decide], ids=lambda program: program.__name__
)
BY_RULES = pytest.mark.parametrize("rules", Rules, ids=lambda rules: rules.value)


@BY_RULES
@BY_PROGRAM
def test_x03_no_power_cut_loses_or_invents_a_decision(
    program: Callable[[Coordinator], None], rules: Rules, record_property: Callable[[str, object], None]
) -> None:
    cuts = Cuts(program, rules, branches_remain)
    cuts.explore()
    record_property("decision logs: disks", cuts.disks)
