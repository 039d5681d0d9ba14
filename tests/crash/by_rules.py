"""Tests for each set of survivor rules: the sets of a default run, and those of ``--long``."""

import pytest

from tests.survivors import Rules


def by_rules(*quick: Rules) -> pytest.MarkDecorator:
    """Run a test with each set of rules as ``rules``; sets that are not ``quick`` run with ``--long``."""
    return pytest.mark.parametrize(
        "rules",
        [pytest.param(rules, id=rules.value, marks=[] if rules in quick else [pytest.mark.slow]) for rules in Rules],
    )


# STRICT and ORDERED are the extremes: a disk that keeps as little as it may, and one that keeps names in their order.
TWO_RULES = by_rules(Rules.ORDERED, Rules.STRICT)
THREE_RULES = by_rules(Rules.ORDERED, Rules.STRICT, Rules.NAMES_FOLLOW)
ALL_RULES = by_rules(*Rules)
