"""With a mirror, both disks lose power at the same moment, each with its own losses. Every acknowledged message is
whole on either disk alone, and no taken message comes back (A05)."""

from dataclasses import replace
from itertools import product

import pytest

from spool.recovery import mirrored, numbers
from spool.store import mirror
from tests.crash.by_rules import in_turn
from tests.crash.harness import Explorer, Violation
from tests.crash.mirrors import MirrorLast
from tests.crash.planted import Bug, planted
from tests.crash.test_every_crash_point import record
from tests.histories.table import HISTORIES
from tests.simdisk import SimulatedDisk
from tests.strides import Stride
from tests.survivors import Rules

# (No mirror has what is no commit: a file in drop/, a time that is not due yet, the settings of a new queue.)
MIRRORED = {
    history.name: replace(history, name=f"mirrored: {history.name}", mirrored=True)
    for history in HISTORIES
    if not history.name.startswith(("intake", "a due message", "create a queue", "retries"))
}
SIDES = {"mirror first": SimulatedDisk, "mirror last": MirrorLast}
# A default run also cuts the recovery of every n-th disk (0: of none).
FEW = {
    "put": 50,
    "get": 0,
    "prepare": 0,
    "two-phase commit": 200,
    "two-phase rollback": 0,
    "a group of branches": 0,
    "adopted get and reclaimed": 0,
}
RULES = (
    (Rules.ORDERED, "mirror first"),
    (Rules.STRICT, "mirror last"),
    (Rules.LOG_TREE, "mirror last"),
    (Rules.NEW_NAMES, "mirror first"),
)
WITH_A_MIRROR = "crash tests with a mirror"
LONGEST = "adopted get and reclaimed"
# Sizes of the slow tests, with --long and with --deep.
MANY = {"long": {"per_cut": 16, "again": 100}, "deep": {"per_cut": 50, "again": 50}}

BY_NAME = pytest.mark.parametrize("name", MIRRORED)


@pytest.mark.parametrize(
    ("name", "rules", "side"),
    [
        pytest.param(name, rules, side, id=f"{name}-{rules.value}-{side}")
        for name in FEW
        for rules, side in (RULES[:2] if name == LONGEST else RULES)
    ],
)
@pytest.mark.every(17)
def test_either_disk_is_enough_after_every_power_cut(
    name: str, rules: Rules, side: str, stride: Stride, record_property
) -> None:
    explorer = Explorer(MIRRORED[name], rules, every=stride(8), per_cut=1, again=FEW[name], disk=SIDES[side])
    record(explorer.explore(), record_property, WITH_A_MIRROR)


class CutsOfTheMirror(Explorer):
    """Power cuts only where the mirror's names are flushed, of the history and of the recovery."""

    def _is_cut(self, call: str, args: tuple[object, ...]) -> bool:
        return (call, args) == ("flush", ("mirror", ""))


@pytest.mark.every(2)
@pytest.mark.parametrize(("name", "per_cut"), [("adoption", 1), ("adopted get and reclaimed", 1)])
def test_either_disk_is_enough_after_a_power_cut_while_the_mirror_is_updated(
    name: str, per_cut: int, stride: Stride, record_property
) -> None:
    """Files that only the mirror has are removed there; files of an unfinished reclaim return. Heads are first."""
    explorer = CutsOfTheMirror(MIRRORED[name], Rules.ORDERED, per_cut=per_cut, again=stride(4))
    record(explorer.explore(), record_property, WITH_A_MIRROR)


BROKEN = (
    (Bug("what the mirror alone has is not given back", numbers.NumberedFiles.with_mirrored,
         (("if not headers:", "if True:"),), "put"), "a backup of the space is put back"),
    (Bug("every mirror that has more is refused", mirrored.look_at_mirror,
         (("if proof:", "if last > newest:"),), "put"), "MirrorMismatch"),
    (Bug("a vote is not in the mirror", mirror.Mirror.flush_vote,
         (("if self.keeps_vote(xid):", "if False:"),), "prepare"), "of the mirror alone"),
    (Bug("a vote that the mirror lacks is not copied", mirror.Mirror.keep_votes,
         (("self.copy_vote(xid)", "pass"),), "prepare"), "of the mirror alone"),
    (Bug("a vote is removed from the mirror before its commit is there", mirror.Mirror.copy,
         (("branches = [(", "[self.forget_vote(one.xid) for one in adopts]; branches = [("),),
         "two-phase commit"), "of the mirror alone"),
)  # fmt: skip


@pytest.mark.every(5)
@pytest.mark.parametrize(("bug", "told"), BROKEN, ids=[bug.what for bug, _ in BROKEN])
def test_a_part_of_rule_17_that_is_left_out_is_missed(bug: Bug, told: str, record_property) -> None:
    record_property("planted bugs", 1)
    with planted(bug), pytest.raises(Violation, match=told):
        Explorer(MIRRORED[bug.noticed_by], Rules.ORDERED, per_cut=1).explore()


@BY_NAME
def test_the_first_messages_of_a_history_are_on_its_mirror(name: str) -> None:
    explorer = Explorer(MIRRORED[name], Rules.ORDERED)
    explorer._expect_of_mirror(explorer._set_up(), frozenset([MIRRORED[name].begin]))


@pytest.mark.every(4)
@pytest.mark.parametrize("name", ["two-phase rollback", "put", "two-phase commit", "adopted get and reclaimed"])
def test_a_commit_that_a_live_process_finishes_reaches_the_mirror(name: str, record_property) -> None:
    record(
        Explorer(MIRRORED[name], Rules.ORDERED, per_recovery_cut=1).explore_takeovers(), record_property, WITH_A_MIRROR
    )


@pytest.mark.timeout(7200)
@in_turn("name, disks", tuple(MIRRORED), tuple(product(Rules, SIDES)), long=2)
def test_either_disk_is_enough_after_many_more_power_cuts(
    name: str, disks: tuple[Rules, str], record_property, depth: str
) -> None:
    rules, side = disks
    explorer = Explorer(MIRRORED[name], rules, **MANY[depth], per_recovery_cut=4, disk=SIDES[side])
    record(explorer.explore(), record_property, WITH_A_MIRROR)


@pytest.mark.timeout(7200)
@in_turn("name, rules", tuple(MIRRORED), tuple(Rules), long=2, first=1)
def test_each_commit_that_a_live_process_finishes_reaches_the_mirror(name: str, rules: Rules, record_property) -> None:
    record(Explorer(MIRRORED[name], rules, per_recovery_cut=4).explore_takeovers(), record_property, WITH_A_MIRROR)
