"""The flushes of decisions: one for each decision, one for all that wait for another flush, none after a failure."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from spool.decisions import DecisionLog, LogDirectory
from spool.decisions.directory import log_name
from spool.decisions.records import SLOTS, unpack_log
from spool.disk.disk import Disk, FlushFailed
from spool.errors import CommitUnknown, CorruptedFile, NotOpen, SystemFailure
from tests.decisions.waiting import HeldDisk, announced, ended, found_after_the_end, read_dead

THREADS = 5
BLOCK_BYTES, SLOT_BYTES = 4096, 32


@pytest.fixture
def disk(memory: Path) -> HeldDisk:
    (memory / "log").mkdir()
    return HeldDisk(str(memory / "log"))


@pytest.fixture
def log(disk: HeldDisk) -> Iterator[DecisionLog]:
    found = DecisionLog(LogDirectory(disk))
    disk.calls.clear()
    yield found
    disk.go_on.set()
    found.close(remove=False)


def log_file(log: DecisionLog) -> Path:
    return Path(log.directory.disk.path(log_name(log.coordinator)))


def on_disk(log: DecisionLog) -> set[int]:
    return set(unpack_log(log_file(log).read_bytes()).committed)


def failed() -> FlushFailed:
    return FlushFailed(errno.EIO, f"fdatasync: {os.strerror(errno.EIO)}")


def test_x03_a_decision_takes_one_flush(disk: HeldDisk, log: DecisionLog) -> None:
    for serial in range(1, 11):
        log.record(serial)
        assert disk.calls == ["flush"] * serial
    log.end(3)
    assert len(disk.calls) == 10, "the end of a transaction takes no flush"
    assert found_after_the_end(log).committed >= {1, 2, *range(4, 11)}


def test_x03_a_resource_that_is_registered_again_takes_no_flush(disk: HeldDisk, log: DecisionLog) -> None:
    log.register("space /a")
    disk.calls.clear()
    log.register("space /a")
    assert disk.calls == []


def test_x03_decisions_that_wait_share_the_next_flush(disk: HeldDisk, log: DecisionLog) -> None:
    """The flush in progress is not enough: their slots may have been written after it has read the page."""
    with disk.holding("flush", by=lambda: log.record(1)) as first, announced(log) as arrivals:
        others = arrivals.starting(*(lambda serial=serial: log.record(serial) for serial in range(2, 2 + THREADS)))
        assert disk.calls == ["flush"]
    ended(*others)
    assert [caller.error for caller in (first, *others)] == [None] * (1 + THREADS)
    assert disk.calls == ["flush"] * 2
    assert found_after_the_end(log).committed == set(range(1, 2 + THREADS))


def test_x03_a_decision_needs_no_flush_if_the_log_was_written_again_meanwhile(
    disk: HeldDisk, log: DecisionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new file has the decision, and was flushed before it got its name."""
    flush, calls = log._flush, list[str]()

    def written_again_before(generation: int, place: int) -> None:
        log.register("space /a")
        calls.extend(disk.calls)
        flush(generation, place)

    log.record(1)
    log.end(1)
    monkeypatch.setattr(log, "_flush", written_again_before)
    log.record(2)
    assert disk.calls == calls
    assert on_disk(log) == {2}


def test_x03_a_slot_counts_the_slots_that_were_durable_before(disk: HeldDisk, log: DecisionLog) -> None:
    """Slots that share a flush may reach the disk in any order, so none of them may call another one durable."""
    log.record(1)
    with disk.holding("flush", by=lambda: log.record(2)), announced(log) as arrivals:
        others = arrivals.starting(lambda: log.record(3), lambda: log.record(4))
        data = log_file(log).read_bytes()
    ended(*others)
    slots = data[BLOCK_BYTES:]
    for lost in [{1}, {2}, {3}, {1, 2}, {1, 3}, {2, 3}]:
        left = b"".join(
            bytes(SLOT_BYTES) if place in lost else slots[place * SLOT_BYTES : (place + 1) * SLOT_BYTES]
            for place in range(SLOTS)
        )
        found = unpack_log(data[:BLOCK_BYTES] + left).committed
        assert len(found) == 4 - len(lost)
        assert 1 in found


@pytest.mark.parametrize("place", range(5))
def test_x03_a_damaged_decision_is_told_unless_no_later_flush_counts_it(log: DecisionLog, place: int) -> None:
    for serial in range(5):
        log.record(serial)
    log.close(remove=False)
    data = log_file(log).read_bytes()
    at = BLOCK_BYTES + place * SLOT_BYTES + 20
    log_file(log).write_bytes(data[:at] + b"\xff" + data[at + 1 :])
    directory = LogDirectory(Disk(log.directory.disk.root))
    if place < 4:
        with pytest.raises(CorruptedFile, match=f"slot {place} "):
            directory.read_dead(log.coordinator)
    else:  # (a decision that was never flushed looks the same)
        assert read_dead(directory, log.coordinator).committed == set(range(4))


# -- failed flushes --------------------------------------------------------------------------------------------------


def test_x03_after_a_failed_flush_the_log_takes_no_decisions(disk: HeldDisk, log: DecisionLog) -> None:
    log.record(1)
    disk.fails = failed()
    with disk.holding("flush", by=lambda: log.record(2)) as caller:
        pass
    assert isinstance(caller.error, CommitUnknown)
    assert "remain prepared" in str(caller.error)
    calls = disk.calls.copy()
    for call in (log.check, lambda: log.record(3), lambda: log.register("space /a")):
        with pytest.raises(SystemFailure, match="close this transaction manager"):
            call()
    assert disk.calls == calls, "a failed flush is not repeated"
    assert {1} <= found_after_the_end(log).committed <= {1, 2}


def test_x03_threads_that_wait_for_a_failed_flush_do_not_know_their_outcome(disk: HeldDisk, log: DecisionLog) -> None:
    disk.fails = failed()
    with disk.holding("flush", by=lambda: log.record(1)) as first, announced(log) as arrivals:
        others = arrivals.starting(*(lambda serial=serial: log.record(serial) for serial in range(2, 2 + THREADS)))
    ended(*others)
    for caller in (first, *others):
        assert isinstance(caller.error, CommitUnknown)
    assert disk.calls == ["flush"], "the kernel would report success the second time"
    with pytest.raises(SystemFailure):
        log.record(99)
    assert 99 not in found_after_the_end(log).committed


def test_x03_a_thread_that_waits_to_register_learns_of_a_failed_flush(disk: HeldDisk, log: DecisionLog) -> None:
    disk.fails = failed()
    with disk.holding("flush", by=lambda: log.record(1)), announced(log) as arrivals:
        others = arrivals.starting(lambda: log.register("space /a"))
    ended(*others)
    assert isinstance(others[0].error, SystemFailure)


def test_x03_a_slot_that_cannot_be_written_stops_the_log(disk: HeldDisk, log: DecisionLog) -> None:
    def write_at(handle: int, offset: int, data: bytes) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    disk.write_at = write_at  # type: ignore[method-assign]
    with pytest.raises(CommitUnknown):
        log.record(1)
    with pytest.raises(SystemFailure):
        log.record(2)
    assert found_after_the_end(log).committed == set()


def test_x03_the_next_manager_on_the_directory_goes_on(disk: HeldDisk, log: DecisionLog, memory: Path) -> None:
    disk.fails = failed()
    with disk.holding("flush", by=lambda: log.record(1)):
        pass
    log.close(remove=True)
    following = DecisionLog(LogDirectory(Disk(str(memory / "log"))))
    assert log.coordinator in following.directory.coordinators(), "the outcome of its transaction is unknown"
    assert following.directory.read_dead(log.coordinator) is not None
    following.record(1)
    following.close(remove=False)


# -- a log that is written again -------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["flush", "rename"])
def test_x03_a_file_that_fails_before_its_name_changes_nothing(disk: HeldDisk, log: DecisionLog, call: str) -> None:
    log.record(1)
    disk.fails = failed()
    before = os.listdir("/proc/self/fd")
    with disk.holding(call, by=lambda: log.register("space /a")) as caller:
        pass
    assert isinstance(caller.error, OSError)
    assert os.listdir("/proc/self/fd") == before
    log.record(2)
    assert on_disk(log) == {1, 2}
    log.register("space /a")
    assert on_disk(log) == {1, 2}


def test_x03_a_new_file_that_fails_after_it_has_the_name_stops_the_log(disk: HeldDisk, log: DecisionLog) -> None:
    """Later decisions would go to the old file, which no recovery finds."""
    log.record(1)
    disk.fails = failed()
    rename = disk.rename

    def rename_and_hold(source: str, target: str) -> None:
        rename(source, target)
        disk.held = "flush"

    disk.rename = rename_and_hold  # type: ignore[method-assign]
    disk.go_on.set()
    with pytest.raises(FlushFailed):
        log.register("space /a")
    with pytest.raises(SystemFailure):
        log.record(2)
    others = LogDirectory(Disk(disk.root))
    assert others.is_alive(log.coordinator), "it still ends the branches of its first transaction"
    assert on_disk(log) == {1}
    log.end(1)
    log.close(remove=True)
    assert not others.is_alive(log.coordinator)
    assert others.coordinators() == [log.coordinator], "a recovery decides about a log that has stopped"


def test_x03_an_interrupt_while_the_log_is_written_again_loses_no_decision(disk: HeldDisk, log: DecisionLog) -> None:
    rename = disk.rename

    def interrupted(source: str, target: str) -> None:
        rename(source, target)
        raise KeyboardInterrupt

    disk.rename = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        log.register("space /a")
    with pytest.raises(SystemFailure):
        log.record(1)
    assert found_after_the_end(log).committed == set()


def test_x03_two_threads_register_a_resource_at_once(disk: HeldDisk, log: DecisionLog) -> None:
    """The second thread begins no work before the name is durable, even if the first thread's call fails."""
    disk.fails = failed()
    registered = []

    def register() -> None:
        log.register("space /a")
        registered.append(unpack_log(log_file(log).read_bytes()).resources)

    with disk.holding("rename", by=register) as first, announced(log) as arrivals:
        [second] = arrivals.starting(register)
        assert registered == []
    ended(second)
    assert isinstance(first.error, FlushFailed)
    assert second.error is None
    assert registered == [("space /a",)]


def test_x03_a_thread_that_waits_for_the_same_resource_writes_no_new_file(disk: HeldDisk, log: DecisionLog) -> None:
    with disk.holding("rename", by=lambda: log.register("space /a")) as first, announced(log) as arrivals:
        [second] = arrivals.starting(lambda: log.register("space /a"))
    ended(second)
    assert first.error is second.error is None
    assert disk.calls.count("rename") == 1


@pytest.mark.parametrize("has_name", [False, True], ids=["before it has the name", "after it has the name"])
def test_x03_a_log_that_cannot_be_created_keeps_no_coordinator_alive(disk: HeldDisk, has_name: bool) -> None:
    directory, others = LogDirectory(disk), LogDirectory(Disk(disk.root))
    rename = disk.rename

    def fail(source: str, target: str) -> None:
        if has_name:
            rename(source, target)
        raise failed()

    disk.rename = fail  # type: ignore[method-assign]
    with pytest.raises(FlushFailed):
        DecisionLog(directory)
    assert len(others.coordinators()) == has_name
    assert not any(map(others.is_alive, others.coordinators()))


# -- the end of the log ----------------------------------------------------------------------------------------------


def test_x03_a_decision_whose_log_is_closed_before_its_flush_is_unknown(
    disk: HeldDisk, log: DecisionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush = log._flush

    def closed_before(generation: int, place: int) -> None:
        log.close(remove=True)
        flush(generation, place)

    monkeypatch.setattr(log, "_flush", closed_before)
    with pytest.raises(CommitUnknown):
        log.record(1)
    with pytest.raises(NotOpen):
        log.record(2)
    assert on_disk(log) == {1}, "its log remains, because the branches of the transaction are prepared"


def test_x03_a_close_waits_for_the_flush_of_others(disk: HeldDisk, log: DecisionLog) -> None:
    with disk.holding("flush", by=lambda: log.record(1)) as first, announced(log) as arrivals:
        closers = arrivals.starting(lambda: log.close(remove=True), lambda: log.close(remove=True))
    ended(*closers)
    assert [caller.error for caller in (first, *closers)] == [None] * 3
    assert on_disk(log) == {1}, "the decision has branches that have not ended"


def test_x03_threads_that_decide_while_the_log_is_closed_are_told_the_truth(disk: HeldDisk, log: DecisionLog) -> None:
    serials = range(2, 2 + THREADS)
    with disk.holding("flush", by=lambda: log.record(1)), announced(log) as arrivals:
        half = THREADS // 2
        calls = [lambda serial=serial: log.record(serial) for serial in serials]
        callers = arrivals.starting(*calls[:half])
        closers = arrivals.starting(lambda: log.close(remove=True))
        callers += arrivals.starting(*calls[half:])
    ended(*callers, *closers)
    found = on_disk(log)
    for serial, caller in zip(serials, callers, strict=True):
        assert caller.error is None or isinstance(caller.error, CommitUnknown)
        assert serial in found
    assert 1 in found
