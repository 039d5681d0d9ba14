"""Tests for each set of survivor rules: the sets of a default run, those of ``--long``, and those of ``--deep``."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.survivors import Rules


def by_rules(*quick: Rules) -> pytest.MarkDecorator:
    """Run a test with each set of rules as ``rules``; sets that are not ``quick`` run with ``--long``."""
    return pytest.mark.parametrize(
        "rules",
        [pytest.param(rules, id=rules.value, marks=[] if rules in quick else [pytest.mark.slow]) for rules in Rules],
    )


# STRICT and ORDERED are the extremes: a disk that keeps as little as it may, and one that keeps names in their order.
EXTREMES = (Rules.ORDERED, Rules.STRICT)
TWO_RULES = by_rules(*EXTREMES)
THREE_RULES = by_rules(*EXTREMES, Rules.NAMES_FOLLOW)
ALL_RULES = by_rules(*Rules)


def in_turn(
    parameters: str, named: Sequence[Any], sets: Sequence[Any], *, quick: int = 0, long: int = 0, first: int = 0
) -> pytest.MarkDecorator:
    """Run a test with each history or scenario, and with a few sets of rules for each, in turn.

    A default run takes ``quick`` sets for each of ``named``, ``--long`` takes ``long`` more, and ``--deep`` takes all.
    The sets go around, beginning with the one at ``first``, so that each set meets as many histories as another.
    """
    cases = []
    for row, one in enumerate(named):
        for turn in range(len(sets)):
            chosen = sets[(first + row * (quick or long) + turn) % len(sets)]
            marks = [] if turn < quick else [pytest.mark.slow] if turn < quick + long else [pytest.mark.deep]
            cases.append(pytest.param(one, chosen, id=f"{_name(one)}-{_name(chosen)}", marks=marks))
    return pytest.mark.parametrize(parameters, cases)


def _name(part: Any) -> str:
    """Return the name of a history, scenario or set of rules, or of a tuple of these."""
    if isinstance(part, tuple):
        return "-".join(map(_name, part))
    return part.value if isinstance(part, Rules) else getattr(part, "name", str(part))
