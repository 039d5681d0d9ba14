"""A power cut at any call, with any disk that it can leave: acknowledged calls happened, others wholly or not."""

from collections import Counter

import pytest

from tests.crash.by_rules import in_turn
from tests.crash.harness import Explorer, Tally
from tests.histories.dropped import files_of_another_user
from tests.histories.history import History
from tests.histories.table import HISTORIES
from tests.strides import Stride
from tests.survivors import Rules

# (The attempt of a dead process is counted later, so what another process shows first still changes.)
TAKEN_OVER = tuple(history for history in HISTORIES if history.name != "retries")


# A default run tries a few short histories under all rules, the others under ordered and unordered names.
# (All that may survive under the rules of new names may under the strict ones, too; but the engine flushes less there.)
# (Where names follow: those that overwrite consumed files, in place of the ordered rules.)
OVERWRITES = {"get", "two-phase commit", "reclaim", "groups, consumed and reclaimed"}
SHORT = {"put", "get", "prepare", "two-phase commit", "intake", "intake of another user's files"}
LOSING = {
    "a queue without durability": {Rules.STRICT},
    "moved out of a queue without durability": {Rules.ORDERED, Rules.LOG_TREE},
    "a queue without durability, compacted": {Rules.ORDERED},
}


# Each of these takes many seconds; the strict rules add only the flushes of directories to the other runs.
LONG = {
    "compaction", "compaction beside what is held", "checkpoint", "reclaim", "adopted and reclaimed",
    "adopted get and reclaimed", "groups, consumed and reclaimed",
}  # fmt: skip


def _is_slow(history: str, rules: Rules) -> bool:
    if history in LOSING:
        return rules not in LOSING[history]
    if rules in (Rules.ORDERED, Rules.NAMES_FOLLOW):
        return (history in OVERWRITES) is (rules is Rules.ORDERED)
    if rules is Rules.STRICT:
        return history in LONG
    return rules in (Rules.NEW_NAMES, Rules.LOG_TREE) and history not in SHORT


# Sizes of the slow tests, with --long and with --deep.
MANY = {
    "long": {"per_cut": 40, "again": 100, "per_recovery_cut": 4},
    "deep": {"per_cut": 200, "again": 25, "per_recovery_cut": 6},
}


@pytest.mark.parametrize(
    ("history", "rules"),
    [
        pytest.param(
            history,
            rules,
            id=f"{history.name}-{rules.value}",
            marks=[pytest.mark.slow] if _is_slow(history.name, rules) else [],
        )
        for history in HISTORIES
        for rules in Rules
    ],
)
@pytest.mark.every(20)
def test_x10_each_acknowledged_message_survives_every_power_cut(
    history: History, rules: Rules, stride: Stride, record_property
) -> None:
    """A default run cuts the power at some calls of each kind."""
    explorer = Explorer(history, rules, every=stride(6), per_cut=history.survivors, again=120)
    record(explorer.explore(), record_property)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_copy_of_another_users_file_is_settled_after_two_power_cuts(record_property) -> None:
    """A power cut ends the first intake, and another power cut ends the intake that finishes the work of the first."""
    (history,) = (history for history in HISTORIES if history.setup is files_of_another_user)
    record(Explorer(history, Rules.STRICT, per_cut=4, again=5, per_recovery_cut=4).explore(), record_property)


@pytest.mark.every(12)
@pytest.mark.parametrize("history", TAKEN_OVER, ids=str)
def test_a_live_process_takes_over_from_one_that_was_killed(history: History, stride: Stride, record_property) -> None:
    explorer = Explorer(history, Rules.ORDERED, every=stride(5), per_recovery_cut=1)
    record(explorer.explore_takeovers(), record_property)


@pytest.mark.timeout(7200)
@in_turn("history, rules", HISTORIES, tuple(Rules), long=2)
def test_many_more_survivors_of_every_power_cut(history: History, rules: Rules, record_property, depth: str) -> None:
    record(Explorer(history, rules, **MANY[depth], thorough=True).explore(), record_property)


@pytest.mark.timeout(7200)
@in_turn("history, rules", TAKEN_OVER, tuple(Rules), long=2, first=1)
def test_many_more_survivors_of_a_takeover(history: History, rules: Rules, record_property) -> None:
    record(Explorer(history, rules, per_recovery_cut=10, thorough=True).explore_takeovers(), record_property)


def record(tally: Tally, record_property, what: str = "crash tests") -> None:
    """How much was looked at, into the report of the tests and (with -s or -rP) onto the screen."""
    assert tally.states >= tally.cuts / 3, tally  # (where much is flushed, many cuts leave the same disk)
    for name, value in vars(tally).items():
        record_property(f"{what}: {name}", dict(value) if isinstance(value, Counter) else value)
    print(f"{tally.states} disks after {tally.cuts} cuts, {tally.recoveries} cut recoveries")
