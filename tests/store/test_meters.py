"""X13: the counts of all processes add up, outlive their processes, and never disturb a commit."""

import errno
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

import spool
from spool.coordination.locks import LockFile
from spool.disk import Disk
from spool.model import layout
from spool.runtime.call_guard import CallGuard
from spool.store import meters, run_files
from spool.store.meters import Meters, Reading, duration_keys
from tests.children import exit_code_of, let_die


@pytest.fixture
def root(tmp_path: Path) -> str:
    (tmp_path / "run").mkdir()
    (tmp_path / layout.CONTROL).touch()
    return str(tmp_path)


@pytest.fixture
def disks(root: str) -> Iterator[list[Disk]]:
    """Open descriptions of the same space, like those of several processes."""
    made = [Disk(root) for _ in range(layout.METERS_FILES + 2)]
    yield made
    for disk in made:
        disk.close_all()


def meters_of(disk: Disk) -> Meters:
    """The meters of a process, which ends at ``disk.close_all()``."""
    return Meters(LockFile(disk, layout.CONTROL, make=False), CallGuard(disk.close_all))


def counting(disk: Disk, number: int) -> Meters:
    found = meters_of(disk)
    found.add("a", "x", number=number)
    found.share()
    return found


def test_x13_the_counts_of_all_processes_add_up(disks: list[Disk]) -> None:
    first, second = counting(disks[0], 3), counting(disks[1], 4)
    first.add("a", "x", number=10)
    second.add("b")
    second.share()
    assert first.read() == second.read() == Reading({("a", "x"): 17, ("b",): 1}, {})


def test_x13_a_count_never_decreases_when_its_process_ends(disks: list[Disk]) -> None:
    watcher = meters_of(disks[0])
    counting(disks[1], 3)
    disks[1].close_all()
    assert watcher.read().counts == {("a", "x"): 3}
    counting(disks[2], 4)  # takes the file of the ended process
    assert watcher.read().counts == {("a", "x"): 7}
    assert set(os.listdir(f"{disks[0].root}/run")) == {"control", "meters-00"}


def test_x13_a_state_ends_with_its_process(disks: list[Disk]) -> None:
    watcher, worker = meters_of(disks[0]), meters_of(disks[1])
    worker.change("route_down", "orders", by=1)
    assert watcher.read().states == {("route_down", "orders"): 1}
    disks[1].close_all()
    assert watcher.read().states == {}
    counting(disks[2], 1)
    assert watcher.read().states == {}  # (its next owner does not report the state)


def test_x13_a_state_that_returns_to_zero_is_not_reported(disks: list[Disk]) -> None:
    worker = meters_of(disks[0])
    worker.change("workers", "orders", by=4)
    worker.change("workers", "orders", by=-4)
    assert worker.read().states == meters_of(disks[1]).read().states == {}


def test_x13_a_killed_process_loses_no_shared_count(root: str) -> None:
    let_die(lambda: counting(Disk(root), 5))
    watcher = Disk(root)
    assert meters_of(watcher).read().counts == {("a", "x"): 5}
    watcher.close_all()


def test_x13_processes_without_a_file_count_for_themselves(disks: list[Disk]) -> None:
    all_meters = [counting(disk, 1) for disk in disks]
    assert all_meters[0].read().counts == {("a", "x"): layout.METERS_FILES}
    assert all_meters[-1].read().counts == {("a", "x"): layout.METERS_FILES + 1}


def test_x13_durations_are_counted_in_buckets(disks: list[Disk]) -> None:
    own, keys = meters_of(disks[0]), duration_keys("commit_seconds")
    own.record(durations=[(keys, 0.0004), (keys, 0.0005), (keys, 0.2), (keys, 60.0)])
    assert own.read().counts == {
        ("commit_seconds", "0.0005"): 2, ("commit_seconds", "0.25"): 1, ("commit_seconds", "inf"): 1,
        ("commit_seconds", "total"): 60_200_900_000,
    }  # fmt: skip


def test_x13_too_many_counts_and_a_long_name_cost_only_other_processes_the_count(disks: list[Disk]) -> None:
    own = meters_of(disks[0])
    own.add("long" * 200)
    for number in range(meters._MOST_METERS + 10):
        own.add("many", str(number))
    assert len(own.read().counts) == meters._MOST_METERS + 11
    assert set(own.read().counts.values()) == {1}
    assert len(meters_of(disks[1]).read().counts) == meters._MOST_METERS


def test_x13_the_counts_of_an_ended_process_remain_beside_too_many_others(disks: list[Disk]) -> None:
    counting(disks[0], 1)
    disks[0].close_all()
    own = meters_of(disks[1])
    for number in range(meters._MOST_METERS + 10):
        own.add("many", str(number))
    own.share()
    assert meters_of(disks[2]).read().counts["a", "x"] == 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EACCES, errno.EMFILE])
def test_x13_a_disk_that_refuses_the_file_costs_no_count_and_no_error(disks: list[Disk], number: int) -> None:
    with mock.patch.object(disks[0], "create", side_effect=OSError(number, os.strerror(number))):
        own = counting(disks[0], 3)
        own.add("a", "x")
        assert own.read().counts == {("a", "x"): 4}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.binary(), inner),
)


@given(st.dictionaries(st.sampled_from(["counts", "states", "x"]), VALUES))
def test_x13_a_foreign_file_does_no_harm(value: dict[str, object]) -> None:
    with tempfile.TemporaryDirectory() as root:
        disk = Disk(root)
        os.mkdir(f"{root}/run")
        os.mknod(f"{root}/run/control")
        run_files.write(disk, "run/meters-00", value)
        reading = meters_of(disk).read()
        assert all(isinstance(part, str) for key in (*reading.counts, *reading.states) for part in key)
        assert all(0 <= number <= meters._MOST for number in (*reading.counts.values(), *reading.states.values()))
        assert counting(disk, 3).read().counts["a", "x"] >= 3
        disk.close_all()


@pytest.mark.parametrize("make", ["directory", "fifo", "symlink", "short", "random", "huge", "other version"])
def test_x13_planted_files_are_passed_over(disks: list[Disk], make: str, root: str, monkeypatch: pytest.MonkeyPatch):
    path = Path(root, "run", "meters-00")
    match make:
        case "directory":
            path.mkdir()
        case "fifo":
            os.mkfifo(path)
        case "symlink":
            path.symlink_to("/etc/passwd")
        case "short":
            path.write_bytes(b"short")
        case "random":
            path.write_bytes(os.urandom(1 << 17))
        case "huge":
            run_files.write(disks[0], "run/meters-00", {"counts": {b"a\x1fx": 9}, "states": {}, "more": bytes(1 << 20)})
        case "other version":
            with monkeypatch.context() as patch:
                patch.setattr(run_files, "_VERSION", 2)
                run_files.write(disks[0], "run/meters-00", {"counts": {b"a\x1fx": 9}, "states": {}})
    planted = path.lstat()
    own = counting(disks[0], 3)
    own.add("a", "x")
    assert own.read().counts == meters_of(disks[1]).read().counts == {("a", "x"): 4}
    if make in ("directory", "fifo", "symlink"):
        assert path.lstat().st_ino == planted.st_ino, "the next recovery reports the file"


def test_x13_a_count_after_the_close_is_no_error_and_changes_no_file_of_others(tmp_path: Path) -> None:
    with spool.create(tmp_path / "space") as space:
        own = space.engine.meters
        own.change("routes", by=1)
    with spool.open(tmp_path / "space") as space:
        space.engine.meters.change("routes", by=1)
        own.add("late")
        own.change("routes", by=1)
        own.share()
        with spool.open(tmp_path / "space") as watcher:
            reading = watcher.engine.meters.read()
    assert reading.states == {("routes",): 1}
    assert ("late",) not in reading.counts


def test_x13_every_commit_is_counted(tmp_path: Path) -> None:
    with spool.create(tmp_path / "space") as space:
        space.create_queue("orders")
        before = space.metrics().counts
        for number in range(5):
            space.put("orders", number)
        space.get_many("orders", 5)
        counts = {key: count - before.get(key, 0) for key, count in space.metrics().counts.items()}
    assert counts["commit_requests",] == 6
    for name in ("commit_seconds", "flush_seconds"):
        assert sum(count for key, count in counts.items() if key[0] == name and key[1] != "total") == 6
        assert counts[name, "total"] > 0


def test_x13_a_closed_space_leaves_its_counts_to_the_next_process(tmp_path: Path) -> None:
    with spool.create(tmp_path / "space") as space:
        space.create_queue("orders")
        space.put("orders", 1)
    with spool.open(tmp_path / "space") as space:
        assert space.metrics().counts["commit_requests",] >= 1


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63), 2**60, -1])
def test_x13_a_damaged_count_counts_as_none(disks: list[Disk], value: int) -> None:
    run_files.write(disks[0], "run/meters-00", {"counts": {b"a\x1fx": value}, "states": {}})
    own = counting(disks[1], 2)
    assert own.read().counts["a", "x"] == 2
    own.add("a", "x", number=2**62)
    own.share()
    assert meters_of(disks[0]).read().counts["a", "x"] == meters._MOST


def test_x13_a_full_disk_takes_no_file_from_others_and_revives_no_state(disks: list[Disk]) -> None:
    meters_of(disks[0]).change("route_down", "orders", by=1)
    disks[0].close_all()
    with mock.patch.object(disks[1], "write_at", side_effect=OSError(errno.ENOSPC, "full")):
        own = counting(disks[1], 1)
        own.share()
    assert meters_of(disks[2]).read() == Reading({}, {})
    assert counting(disks[3], 2).read().counts == {("a", "x"): 2}
    own.share()
    assert meters_of(disks[2]).read().counts == {("a", "x"): 3}


def test_x13_meters_without_a_change_are_not_written_again(disks: list[Disk], root: str) -> None:
    own, path = counting(disks[0], 1), Path(root, "run", "meters-00")
    before = path.stat()
    own.share()
    assert path.stat() == before
    own.add("a", "x")
    own.share()
    assert path.stat() != before


def test_x13_the_work_of_a_closing_space_is_counted(tmp_path: Path) -> None:
    with spool.create(tmp_path / "space") as space:
        space.create_queue("orders")
        for number in range(200):
            space.put("orders", number)
        space.get_many("orders", 200)
        assert ("reclaims",) not in space.metrics().counts
    with spool.open(tmp_path / "space") as space:
        assert space.metrics().counts["reclaims",] == 1


def test_x13_a_forked_child_neither_blocks_nor_counts_for_its_parent(tmp_path: Path) -> None:
    """The child is forked while another thread counts."""
    with spool.create(tmp_path / "space") as space:
        own = space.engine.meters
        own.change("routes", by=1)

        def child() -> None:
            signal.alarm(30)  # ends a child that blocks
            own.change("routes", by=-1)
            own.add("a", "x")
            own.share()

        with own._mutex:
            code = exit_code_of(child)
        assert code == 0
        found = own.read()
        assert found.states["routes",] == 1
        assert ("a", "x") not in found.counts


def test_x13_the_counts_of_a_removed_file_go_on_in_another_one(root: str, disks: list[Disk]) -> None:
    owner, watcher = counting(disks[0], 3), meters_of(disks[1])
    owner.change("workers", "orders", by=1)
    os.unlink(f"{root}/run/meters-00")
    owner.share()
    assert watcher.read() == Reading({("a", "x"): 3}, {("workers", "orders"): 1})
    os.unlink(f"{root}/run/meters-00")
    other = counting(disks[2], 5)
    owner.add("a", "x")
    owner.share()
    assert watcher.read() == Reading({("a", "x"): 9}, {("workers", "orders"): 1})
    owner.share()
    other.share()
    assert watcher.read().counts == {("a", "x"): 9}
