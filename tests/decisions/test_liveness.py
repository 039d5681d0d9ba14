"""Whether a coordinator lives: its log is locked until its process closes the log or ends. No other proof counts."""

import errno
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spool.decisions import COORDINATOR_BYTES, DecisionLog, LogDirectory
from spool.decisions.directory import log_name
from spool.disk.disk import Disk
from spool.errors import CorruptedFile, NotOpen
from tests.children import exit_code, exit_code_of, start
from tests.decisions.cuts import end
from tests.decisions.machines import Coordinator, new_machine, simulation
from tests.decisions.waiting import HeldDisk, read_dead
from tests.simdisk import Machine, SimulatedDisk
from tests.survivors import Rules


@pytest.fixture
def path(memory: Path) -> Path:
    return memory / "log"


@pytest.fixture
def others(path: Path) -> LogDirectory:
    """The directory as another program sees it."""
    return LogDirectory(Disk(str(path)))


@pytest.fixture
def log(others: LogDirectory, path: Path) -> Iterator[DecisionLog]:
    found = DecisionLog(LogDirectory(Disk(str(path))))
    yield found
    found.close(remove=False)


class Ends:
    """Two pipes between this process and its children: a child tells its coordinator, and waits until it may end."""

    def __init__(self) -> None:
        self._told, self._go_on = os.pipe(), os.pipe()

    def tell(self, coordinator: bytes) -> None:
        os.write(self._told[1], coordinator)

    def coordinator(self) -> bytes:
        """Wait until a child has told its coordinator."""
        os.close(self._told[1])
        with os.fdopen(self._told[0], "rb", buffering=0) as pipe:
            return pipe.read(COORDINATOR_BYTES) or b""

    def wait(self) -> None:
        os.close(self._go_on[1])
        os.read(self._go_on[0], 1)

    def go_on(self) -> None:
        for descriptor in self._go_on:
            os.close(descriptor)


@contextmanager
def child(act: Callable[[Ends], None]) -> Iterator[tuple[int, Ends]]:
    """Run a function in a child, which is killed at the end if it still runs."""
    ends = Ends()
    process = start(lambda: act(ends))
    try:
        yield process, ends
    finally:
        os.kill(process, signal.SIGKILL)
        exit_code(process)
        ends.go_on()


def coordinates(path: Path) -> Callable[[Ends], None]:
    def act(ends: Ends) -> None:
        log = DecisionLog(LogDirectory(Disk(str(path))))
        log.record(1)
        ends.tell(log.coordinator)
        ends.wait()

    return act


def kill(process: int) -> None:
    """Kill a child, and wait for its end without reaping it."""
    os.kill(process, signal.SIGKILL)
    os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)


# -- alive and dead --------------------------------------------------------------------------------------------------


def test_x03_a_coordinator_lives_until_it_closes_its_log(log: DecisionLog, others: LogDirectory) -> None:
    assert others.coordinators() == [log.coordinator]
    assert others.is_alive(log.coordinator)
    assert log.directory.is_alive(log.coordinator), "it sees itself alive"
    acts: list[Callable[[], None]] = [lambda: log.register("space /a"), lambda: log.record(1), lambda: log.end(1)]
    for act in acts:
        act()
        assert others.is_alive(log.coordinator)
    log.close(remove=False)
    assert not others.is_alive(log.coordinator)
    assert others.coordinators() == [log.coordinator]


def test_x03_a_coordinator_without_a_log_is_dead(others: LogDirectory) -> None:
    assert not others.is_alive(bytes(12))
    assert others.read_dead(bytes(12)) is None


def test_x03_two_coordinators_of_one_process_live_apart(log: DecisionLog, others: LogDirectory, path: Path) -> None:
    second = DecisionLog(LogDirectory(Disk(str(path))))
    assert others.coordinators() == sorted([log.coordinator, second.coordinator])
    second.close(remove=False)
    assert others.is_alive(log.coordinator)
    assert not others.is_alive(second.coordinator)


def test_x03_a_stopped_coordinator_lives(path: Path, others: LogDirectory) -> None:
    with child(coordinates(path)) as (process, ends):
        coordinator = ends.coordinator()
        os.kill(process, signal.SIGSTOP)
        os.waitid(os.P_PID, process, os.WSTOPPED | os.WNOWAIT)
        assert others.is_alive(coordinator)
        os.kill(process, signal.SIGCONT)
        assert others.is_alive(coordinator)


def test_x03_a_file_system_that_does_not_answer_proves_no_death(log: DecisionLog, path: Path) -> None:
    class Broken(Disk):
        def open(self, name: str, *, write: bool = False) -> int:
            raise OSError(errno.EIO, os.strerror(errno.EIO), name)

    directory = LogDirectory(Disk(str(path)))
    directory.disk = Broken(str(path))
    with pytest.raises(OSError, match="Input/output"):
        directory.is_alive(log.coordinator)


# -- while the log is written again ----------------------------------------------------------------------------------


class Interrupted(SimulatedDisk):
    """Something else happens before the call of this number."""

    calls = 0
    at = 0
    meanwhile: Callable[[], None]

    def _step(self, call: str, *args: object) -> None:
        self.calls += 1
        if self.calls == self.at:
            self.meanwhile()
        super()._step(call, *args)


def each_moment(act: Callable[[int], Interrupted]) -> int:
    """Interrupt an action before each of its calls; return the number of calls."""
    at = 1
    while act(at).calls >= at:
        at += 1
    return at - 1


@pytest.mark.parametrize("rules", Rules, ids=lambda rules: rules.value)
def test_x03_a_coordinator_lives_at_each_moment_of_a_rewrite(rules: Rules) -> None:
    def rewrite(at: int) -> Interrupted:
        machine = new_machine(rules)
        disk = Interrupted(machine)
        process, observer = Coordinator(disk), SimulatedDisk(machine)
        process.open()
        directory = LogDirectory(observer)
        alive = []
        disk.meanwhile = lambda: alive.append(directory.is_alive(process.log.coordinator))
        disk.calls, disk.at = 0, at
        process.register("space /a")
        assert all(alive)
        return disk

    with simulation(1):
        assert each_moment(rewrite) >= 12


def asking(rules: Rules, at: int) -> tuple[Machine, Interrupted, Coordinator, LogDirectory]:
    """A process that asks about a coordinator, and is interrupted at a call."""
    machine = new_machine(rules)
    disk, process = Interrupted(machine), Coordinator(SimulatedDisk(machine))
    process.open()
    directory = LogDirectory(disk)
    disk.calls, disk.at = 0, at
    return machine, disk, process, directory


@pytest.mark.parametrize("rules", Rules, ids=lambda rules: rules.value)
def test_x03_a_rewrite_at_each_moment_of_the_question_hides_no_coordinator(rules: Rules) -> None:
    def ask(at: int) -> Interrupted:
        _, disk, process, directory = asking(rules, at)
        disk.meanwhile = lambda: process.register("space /a")
        assert directory.is_alive(process.log.coordinator)
        return disk

    with simulation(1):
        assert each_moment(ask) >= 3


def test_x03_a_death_at_each_moment_of_the_question_is_noticed_by_the_next(path: Path) -> None:
    def ask(at: int) -> Interrupted:
        machine, disk, process, directory = asking(Rules.ORDERED, at)
        disk.meanwhile = lambda: end(machine, process.disk)
        directory.is_alive(process.log.coordinator)
        found = disk.calls
        end(machine, process.disk)
        assert not directory.is_alive(process.log.coordinator)
        disk.calls = found
        return disk

    with simulation(1):
        assert each_moment(ask) >= 3


class StoppedDisk(Disk):
    """Stops its process before a call while the log is written again."""

    def __init__(self, root: str, at: int) -> None:
        super().__init__(root)
        self.at = at
        self.calls = -1

    def __getattribute__(self, name: str) -> object:
        found = super().__getattribute__(name)
        if name in CALLS_OF_A_REWRITE and self.calls >= 0:
            self.calls += 1
            if self.calls == self.at:
                os.kill(os.getpid(), signal.SIGSTOP)
        return found


CALLS_OF_A_REWRITE = frozenset(
    ("flock", "unlink", "create", "lock", "write_at", "make_durable", "rename", "funlock", "close")
)


@pytest.mark.parametrize("at", range(1, 12))
def test_x03_a_coordinator_that_is_stopped_while_it_writes_its_log_again_lives(
    path: Path, others: LogDirectory, at: int
) -> None:
    def act(ends: Ends) -> None:
        disk = StoppedDisk(str(path), at)
        log = DecisionLog(LogDirectory(disk))
        log.record(1)
        ends.tell(log.coordinator)
        disk.calls = 0
        log.register("space /a")
        assert disk.calls >= at
        ends.wait()

    with child(act) as (process, ends):
        coordinator = ends.coordinator()
        os.waitid(os.P_PID, process, os.WSTOPPED)
        assert others.is_alive(coordinator)
        kill(process)
        assert not others.is_alive(coordinator)
    assert read_dead(others, coordinator).committed == {1}


# -- forks -----------------------------------------------------------------------------------------------------------


def expect_no_coordinator(log: DecisionLog) -> None:
    for call in (log.check, lambda: log.record(2), lambda: log.register("space /a"), lambda: log.register("space /b")):
        with pytest.raises(NotOpen, match="forked"):
            call()
    log.close(remove=True)


def test_x03_a_forked_child_is_no_coordinator(log: DecisionLog, others: LogDirectory) -> None:
    log.register("space /a")
    log.record(1)
    assert exit_code_of(lambda: expect_no_coordinator(log)) == 0
    assert others.is_alive(log.coordinator), "the child's close changes nothing"
    log.record(2)
    log.register("space /b")
    log.close(remove=False)
    assert read_dead(others, log.coordinator).committed == {1, 2}


def test_x03_a_fork_while_another_thread_writes_the_log_again_leaves_no_lock_in_the_child(path: Path) -> None:
    path.mkdir()
    disk = HeldDisk(str(path))
    log = DecisionLog(LogDirectory(disk))

    def act() -> None:
        signal.alarm(60)  # (ends a child that waits for a lock)
        expect_no_coordinator(log)

    with disk.holding("rename", by=lambda: log.register("space /a")) as caller:
        assert exit_code_of(act) == 0
    assert caller.error is None
    log.record(1)
    log.close(remove=False)


def test_x03_a_forked_child_becomes_a_coordinator_with_a_log_of_its_own(log: DecisionLog, others: LogDirectory) -> None:
    def act() -> None:
        own = DecisionLog(LogDirectory(Disk(log.directory.disk.root)))
        own.record(1)
        assert own.coordinator != log.coordinator
        own.close(remove=False)

    assert exit_code_of(act) == 0
    [other] = set(others.coordinators()) - {log.coordinator}
    assert not others.is_alive(other)
    assert others.is_alive(log.coordinator)


def with_a_child_that_remains(path: Path, when: str) -> Callable[[Ends], None]:
    """A coordinator that forks a child, which outlives it."""

    def fork(ends: Ends) -> None:
        read, write = os.pipe()
        if os.fork() == 0:
            try:
                os.write(write, b".")
                ends.wait()
            finally:
                os._exit(0)
        os.read(read, 1)  # (until the child has closed its copies, the coordinator seems to live)

    def act(ends: Ends) -> None:
        disk = Disk(str(path))
        directory = LogDirectory(disk)
        for name in (when,) if when else ():
            inner = getattr(disk, name)

            def forking(*args: object, inner: Callable[..., object] = inner, name: str = name) -> object:
                delattr(disk, name)
                found = inner(*args)
                thread = threading.Thread(target=fork, args=(ends,))
                thread.start()
                thread.join()
                return found

            setattr(disk, name, forking)
        log = DecisionLog(directory)
        if not when:
            fork(ends)
        log.record(1)
        ends.tell(log.coordinator)
        signal.pause()

    return act


@pytest.mark.parametrize("when", ["", "flock", "lock", "rename"], ids=lambda when: when or "later")
def test_x03_a_forked_child_does_not_keep_its_parent_alive(path: Path, others: LogDirectory, when: str) -> None:
    """Also if a thread forks while another thread creates the log."""
    with child(with_a_child_that_remains(path, when)) as (process, ends):
        coordinator = ends.coordinator()
        assert others.is_alive(coordinator)
        kill(process)
        assert not others.is_alive(coordinator)
        assert read_dead(others, coordinator).committed == {1}  # (the directory is not locked any more)


# -- logs that another program moves ---------------------------------------------------------------------------------


def test_x03_a_coordinator_whose_log_was_removed_is_dead_until_it_writes_its_log_again(
    log: DecisionLog, others: LogDirectory, path: Path
) -> None:
    log.record(1)
    os.unlink(path / log_name(log.coordinator))
    assert not others.is_alive(log.coordinator)
    assert others.coordinators() == []
    log.register("space /a")
    assert others.is_alive(log.coordinator)
    log.close(remove=False)
    assert read_dead(others, log.coordinator).committed == {1}


def test_x03_a_log_replaced_by_a_copy_proves_no_life(log: DecisionLog, others: LogDirectory, path: Path) -> None:
    name = log_name(log.coordinator)
    shutil.copy(path / name, path / "copy")
    os.replace(path / "copy", path / name)
    assert not others.is_alive(log.coordinator)
    log.close(remove=True)
    assert others.coordinators() == []


def test_x03_a_log_under_the_name_of_another_coordinator_is_damaged(log: DecisionLog, others: LogDirectory, path: Path):
    """It must not replace the log of the first coordinator, which lives."""
    log.record(1)
    other = bytes(12)
    shutil.copy(path / log_name(log.coordinator), path / log_name(other))
    assert not others.is_alive(other)
    with pytest.raises(CorruptedFile, match="another coordinator"):
        others.read_dead(other)
    assert others.is_alive(log.coordinator)
    log.record(2)


def test_x03_a_damaged_log_is_told_and_kept(log: DecisionLog, others: LogDirectory, path: Path) -> None:
    log.close(remove=False)
    file = path / log_name(log.coordinator)
    damaged = file.read_bytes()[:-1]
    file.write_bytes(damaged)
    with pytest.raises(CorruptedFile, match=r"is damaged: .* decide them with spool-admin transaction"):
        others.read_dead(log.coordinator)
    assert file.read_bytes() == damaged
    assert not others.is_alive(log.coordinator)


@pytest.mark.parametrize("kind", ["directory", "symlink", "fifo"])
def test_x03_a_log_that_is_no_plain_file_is_an_error(others: LogDirectory, path: Path, kind: str) -> None:
    name = path / log_name(bytes(12))
    if kind == "directory":
        name.mkdir()
    elif kind == "symlink":
        name.symlink_to("manager")
    else:
        os.mkfifo(name)
    with pytest.raises(OSError):
        others.is_alive(bytes(12))
    with pytest.raises(OSError):
        others.read_dead(bytes(12))


def test_x03_a_listing_of_coordinators_locks_out_writers_of_logs(log: DecisionLog, path: Path) -> None:
    """Some file systems list a file that is renamed meanwhile twice or not at all."""
    asked = []

    class Asking(Disk):
        def names(self, directory: str) -> list[str]:
            other = Disk(self.root)
            handle = other.open_directory("")
            asked.append(other.flock(handle))
            other.close_all()
            return super().names(directory)

    assert LogDirectory(Asking(str(path))).coordinators() == [log.coordinator]
    assert asked == [False]
