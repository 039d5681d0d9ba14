"""The limits of a log: decisions whose branches have not ended, and the names of resources."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from spool.decisions import DecisionLog, open_directory
from spool.decisions.records import MAX_FILE_BYTES, SLOTS
from spool.errors import InvalidArgument, SystemFailure
from tests.decisions.machines import short_logs
from tests.decisions.waiting import found_after_the_end

MOST_BYTES = MAX_FILE_BYTES // 4


@pytest.fixture
def log(memory: Path) -> Iterator[DecisionLog]:
    found = DecisionLog(open_directory(str(memory / "log")))
    yield found
    found.close(remove=False)


def test_x03_too_many_committed_transactions_with_branches_are_refused(log: DecisionLog) -> None:
    for serial in range(SLOTS):
        log.record(serial)
    for _ in range(2):
        with pytest.raises(SystemFailure, match=r"1,024 committed transactions .* give their resources to"):
            log.record(SLOTS)
    log.check()
    log.end(5)
    log.record(SLOTS)
    assert found_after_the_end(log).committed == set(range(SLOTS + 1)) - {5}, "a refused decision was not made"


def test_x03_a_full_log_keeps_the_decisions_that_are_needed(log: DecisionLog) -> None:
    """Also if each decision fills it again."""
    with short_logs(3):
        log.record(1)
        log.record(2)
        for serial in range(3, 50):
            log.record(serial)
            log.end(serial)
        contents = found_after_the_end(log)
        assert {1, 2} <= contents.committed <= set(range(1, 50))
        assert len(contents.committed) <= 3


def test_x03_a_log_takes_any_number_of_transactions_that_end(log: DecisionLog) -> None:
    size = (Path(log.directory.disk.root) / f"{log.coordinator.hex()}.log").stat().st_size
    for serial in range(1, 3 * SLOTS):
        log.record(serial)
        log.end(serial)
    log.record(2**63)
    assert found_after_the_end(log).committed > {2**63}
    assert (Path(log.directory.disk.root) / f"{log.coordinator.hex()}.log").stat().st_size == size


@pytest.mark.parametrize("letter", ["a", "é", "水", "🌊", "\udce9"], ids=ascii)
def test_x03_names_of_resources_have_a_limit_in_bytes(log: DecisionLog, letter: str) -> None:
    """A log beyond the limit of its file would be read without its last decisions."""
    log.record(1)
    log.register("first")
    most = (MOST_BYTES - len(b"first")) // len(letter.encode(errors="surrogateescape"))
    for _ in range(2):
        with pytest.raises(InvalidArgument, match="use several managers"):
            log.register(letter * (most + 1))
    log.record(2)
    log.register(letter * most)
    with pytest.raises(InvalidArgument):
        log.register("abcd")
    log.record(3)
    assert (Path(log.directory.disk.root) / f"{log.coordinator.hex()}.log").stat().st_size <= MAX_FILE_BYTES
    found = found_after_the_end(log)
    assert found.committed == {1, 2, 3}
    assert found.resources == ("first", letter * most)


def test_x03_resources_remain_registered_in_their_order(log: DecisionLog) -> None:
    names = [f"space /{number}" for number in range(30)]
    for name in names:
        log.register(name)
    log.register(names[3])
    assert found_after_the_end(log).resources == tuple(names)
