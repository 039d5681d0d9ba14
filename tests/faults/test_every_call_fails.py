"""Each call of the disk fails in each way: its caller gets one clear error or success; the space tells the truth.

A caller gets an error of spool or X/Open, never a raw one. Acknowledged calls have happened; calls that raised have
not, unless the error says that the outcome is unknown. No claim, lock or descriptor remains, and the process can go on.
After a failed flush every process gets SpaceStopped once, and no file is flushed again.
"""

import errno
from collections.abc import Callable

import pytest

from tests.crash.by_rules import TWO_RULES, in_turn
from tests.faults.cuts import FailedFlushes
from tests.faults.harness import Faults, Tally
from tests.faults.openings import Leftovers, Openings, creating
from tests.faults.plan import FLUSHES, HITS, Plan, Spread
from tests.histories.history import History
from tests.histories.overwriting import OVERWRITING
from tests.histories.table import HISTORIES
from tests.strides import Stride
from tests.survivors import Rules

FAILING = tuple(history for history in (*HISTORIES, *OVERWRITING) if not history.loses)
BY_NAME = pytest.mark.parametrize("history", FAILING, ids=str)
ALL_FAULTS = [(code, spread) for code in HITS for spread in (Spread.ONCE, Spread.KIND, Spread.ALL)]
A_FEW = [(errno.EIO, Spread.ONCE), (errno.ENOSPC, Spread.ALL)]
MORE = [*A_FEW, (errno.EIO, Spread.ALL)]


@pytest.fixture(autouse=True)
def _small_and_quiet(monkeypatch: pytest.MonkeyPatch, quiet) -> None:
    """A section is full after a few bytes, so that large transactions stream; logging is off."""
    monkeypatch.setattr("spool.log.write_set.SECTION_BYTES", 8)


def _every(
    attempt: Callable[[Plan], bool], code: int, spread: Spread, hits: frozenset[str] = frozenset(), *, step: int = 1
) -> None:
    """The first call fails, then the next one, … until there is none left to fail. ``step``: every so-manieth call."""
    begin = 1
    while attempt(Plan(code, begin, spread, hits)):
        begin += step


def _record(tally: Tally, record_property) -> None:
    for name, value in vars(tally).items():
        record_property(f"faults: {name}", value)
    print(tally)


@pytest.mark.every(8, first=1)
@BY_NAME
def test_each_call_of_each_history_fails(history: History, stride: Stride, record_property) -> None:
    faults = Faults(history, follow=history in OVERWRITING)
    for code, spread in A_FEW:
        _every(faults.one, code, spread, step=stride(7))
    _every(faults.one, errno.EIO, Spread.READ_ONLY, FLUSHES)
    assert faults.tally.faults > 0
    _record(faults.tally, record_property)


@pytest.mark.parametrize(
    "boot", [pytest.param(1, id="same boot", marks=pytest.mark.slow), pytest.param(2, id="after a power cut")]
)
def test_each_call_of_opening_a_space_full_of_leftovers_fails(boot: int, stride: Stride, record_property) -> None:
    openings = Openings(Leftovers().image, boot=boot)
    for code, spread in (*MORE, (errno.EMFILE, Spread.ONCE)):
        _every(openings.one, code, spread, step=stride(11))
    assert openings.tally.raised > 0
    _record(openings.tally, record_property)


def test_each_call_of_creating_a_space_fails(stride: Stride, record_property) -> None:
    tally = Tally()
    for code, spread in MORE:
        _every(lambda plan: creating(plan, tally), code, spread, step=stride(4))
    assert tally.raised > 0
    _record(tally, record_property)


@pytest.mark.every(28)
@TWO_RULES
@BY_NAME
def test_a_flush_fails_and_then_the_power(history: History, rules: Rules, stride: Stride, record_property) -> None:
    _cut(history, rules, 6 // stride(2), record_property)


def _cut(history: History, rules: Rules, limit: int, record_property) -> None:
    faults = FailedFlushes(history, **rules.told)
    disks = sum(faults.each(rules, spread, limit=limit) for spread in (Spread.ONCE, Spread.READ_ONLY))
    record_property("faults: disks", disks)
    _record(faults.tally, record_property)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@in_turn("history, rules", FAILING, (Rules.ORDERED, Rules.STRICT, Rules.NAMES_FOLLOW), long=2)
def test_every_errno_at_every_call(history: History, rules: Rules, record_property) -> None:
    faults = Faults(history, **rules.told)
    for code, spread in ALL_FAULTS:
        _every(faults.one, code, spread)
    _every(faults.one, errno.EIO, Spread.READ_ONLY)
    _record(faults.tally, record_property)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("boot", [1, 2], ids=["same boot", "after a power cut"])
@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "strict"])
def test_every_errno_at_every_call_of_opening(boot: int, ordered: bool, record_property) -> None:
    openings = Openings(Leftovers(ordered=ordered).image, boot=boot, ordered=ordered)
    for code, spread in ALL_FAULTS:
        _every(openings.one, code, spread)
    _record(openings.tally, record_property)


@pytest.mark.timeout(3600)
@in_turn("history, rules", FAILING, tuple(Rules), long=2)
def test_a_flush_fails_and_then_the_power_many_survivors(history: History, rules: Rules, record_property) -> None:
    _cut(history, rules, 300, record_property)
