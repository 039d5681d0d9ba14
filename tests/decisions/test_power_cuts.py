"""A power cut or a kill between any two calls of the disk: decisions are found if they were made, and remain found."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spool.decisions import LogContents, LogDirectory
from spool.decisions.directory import log_name
from spool.decisions.records import MAX_FILE_BYTES, unpack_log
from spool.disk.content import read_start
from tests.decisions.cuts import Cuts, end, recover
from tests.decisions.machines import Coordinator, Logs, Program, check, new_machine, simulation
from tests.simdisk import SimulatedDisk
from tests.strides import Stride
from tests.survivors import Rules, survivors

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


BY_RULES = pytest.mark.parametrize("rules", Rules, ids=lambda rules: rules.value)


# Programs and file systems of a default run; the others are slow.
DEFAULT: dict[Program, set[Rules]] = {
    all_branches_end: set(Rules),
    branches_remain: {Rules.LOG_TREE},
    threads_decide: {Rules.NAMES_FOLLOW, Rules.STRICT},
}


@pytest.mark.every(6)
@pytest.mark.parametrize(
    ("program", "rules"),
    [
        pytest.param(
            program, rules, id=f"{program.__name__}, {rules.value}", marks=() if rules in default else pytest.mark.slow
        )
        for program, default in DEFAULT.items()
        for rules in Rules
    ],
)
def test_x03_no_power_cut_loses_or_invents_a_decision(
    program: Program, rules: Rules, stride: Stride, record_property: Callable[[str, object], None]
) -> None:
    cuts = Cuts(program, rules, branches_remain, every=stride(3))
    cuts.explore()
    record_property("decision logs: disks", cuts.disks)


# -- programs of chance ----------------------------------------------------------------------------------------------

CALLS = st.lists(
    st.tuples(st.just("register"), st.sampled_from([SPACE, SHOP, OTHER]))
    | st.tuples(st.sampled_from(["decide", "together", "end oldest", "end newest"]), st.none()),
    max_size=14,
)
LAST = st.sampled_from(["close", "remove", "die"])


def program_of(calls: list[tuple[str, str | None]], last: str) -> Program:
    def program(process: Coordinator) -> None:
        process.open()
        told, serial = process.told, 0
        for call, resource in calls:
            outstanding = sorted(told.decided - told.ended)
            if call == "register" and resource is not None:
                process.register(resource)
            elif call == "decide" and len(outstanding) < 4:
                process.decide(serial := serial + 1)
            elif call == "together" and len(outstanding) < 3:
                process.decide_together(serial + 1, serial + 2)
                serial += 2
            elif call.startswith("end") and outstanding:
                process.end(outstanding[0 if call == "end oldest" else -1])
        if last != "die":
            process.close(remove=last == "remove")

    return program


@pytest.mark.slow
@pytest.mark.timeout(3600)
@BY_RULES
@settings(max_examples=60)
@given(CALLS, LAST)
def test_x03_no_power_cut_in_any_program_loses_or_invents_a_decision(
    rules: Rules, calls: list[tuple[str, str | None]], last: str
) -> None:
    Cuts(program_of(calls, last), rules, branches_remain).explore()


# -- two processes create the directory ------------------------------------------------------------------------------


class Overtaken(SimulatedDisk):
    """Another process runs a program before the call of this number, unless this process has the directory locked."""

    calls = 0
    at = 0
    other: Callable[[], None]
    was_overtaken = False

    def _step(self, call: str, *args: object) -> None:
        self.calls += 1
        if self.calls == self.at and not self.machine.root.locks:
            self.was_overtaken = True
            self.other()
        super()._step(call, *args)


@pytest.mark.every(2)
@BY_RULES
def test_x03_two_programs_create_the_directory_at_once(rules: Rules) -> None:
    overtaken = 0
    for at in range(1, 1000):
        machine = new_machine(rules)
        disk = Overtaken(machine)
        first, second = Coordinator(disk), Coordinator(SimulatedDisk(machine))
        disk.at, disk.other = at, lambda second=second: branches_remain(second)  # type: ignore[misc]
        with simulation(1):
            branches_remain(first)
        overtaken += disk.was_overtaken
        if disk.calls < at:
            break
        if not disk.was_overtaken:
            continue
        assert second.directory.id == first.directory.id
        assert first.told.coordinator != second.told.coordinator
        end(machine, disk)
        end(machine, second.disk)
        for survivor in survivors(machine, rules, limit=8):
            logs: Logs = {}
            recover(SimulatedDisk(new_machine(rules, survivor.image, boot=2)), logs)
            check(logs, first.told, second.told)
    assert overtaken > 20


# -- bugs that these tests would notice ------------------------------------------------------------------------------


class NeverFlushesDecisions(SimulatedDisk):
    def flush(self, handle: int, *, data_only: bool = False) -> None:
        if not data_only:
            super().flush(handle, data_only=data_only)


class NeverFlushesFiles(SimulatedDisk):
    def flush(self, handle: int, *, data_only: bool = False) -> None:
        if data_only or handle in self._directories_opened:
            super().flush(handle, data_only=data_only)


class NeverFlushesTheDirectory(SimulatedDisk):
    def flush(self, handle: int, *, data_only: bool = False) -> None:
        if handle not in self._directories_opened:
            super().flush(handle, data_only=data_only)


def read_from_the_page_cache(directory: LogDirectory, coordinator: bytes) -> LogContents | None:
    with suppress(FileNotFoundError):
        return unpack_log(read_start(directory.disk, log_name(coordinator), MAX_FILE_BYTES))
    return None


@pytest.mark.every(4)
@pytest.mark.parametrize(
    ("rules", "how"),
    [
        pytest.param(Rules.ORDERED, {"disk": NeverFlushesDecisions}, id="decisions are not flushed"),
        pytest.param(Rules.ORDERED, {"disk": NeverFlushesFiles}, id="new logs are not flushed"),
        pytest.param(Rules.STRICT, {"disk": NeverFlushesTheDirectory}, id="the names of logs are not flushed"),
        pytest.param(Rules.LOG_TREE, {"later_disk": NeverFlushesTheDirectory}, id="a found directory is not flushed"),
    ],
)
def test_x03_a_missing_flush_is_noticed(rules: Rules, how: Any) -> None:
    with pytest.raises((AssertionError, Exception)) as noticed:
        Cuts(all_branches_end, rules, branches_remain, **how).explore()
    assert "power cut" in "".join(noticed.value.__notes__)


@pytest.mark.slow
def test_x03_a_recovery_that_trusts_the_page_cache_is_noticed() -> None:
    with (
        pytest.raises(AssertionError, match="a recovery has read"),
        mock.patch.object(LogDirectory, "read_dead", read_from_the_page_cache),
    ):
        Cuts(all_branches_end, Rules.STRICT, branches_remain).explore()
