"""With a mirror, both disks lose power at the same moment and each keeps what it keeps: either one is enough (A05)."""

import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.crash.harness import Explorer
from tests.crash.mirrors import MirrorLast
from tests.crash.test_every_crash_point import HISTORIES, record
from tests.simdisk import SimulatedDisk
from tests.survivors import Rules


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


# (What is dropped from outside is no commit yet: no mirror has it.)
MIRRORED = {
    history.name: replace(history, name=f"mirrored: {history.name}", mirrored=True, survivors=1)
    for history in HISTORIES
    if history.name != "intake"
}
BY_NAME = pytest.mark.parametrize("name", MIRRORED)
BY_RULES = pytest.mark.parametrize("rules", Rules, ids=lambda rules: rules.value)
BY_SIDE = pytest.mark.parametrize("disk", [SimulatedDisk, MirrorLast], ids=["the mirror first", "the mirror last"])


@BY_SIDE
@BY_RULES
@BY_NAME
def test_all(name: str, rules: Rules, disk: type[SimulatedDisk], record_property) -> None:
    record(Explorer(MIRRORED[name], rules, per_cut=1, disk=disk).explore(), record_property)
