"""An intake works beside another intake that lives or died, and beside programs that drop files: each file becomes a
message once, and whole."""

from collections import Counter
from contextlib import suppress

import pytest

import spool
from spool.intake import Intake
from spool.intake.directories import CapturedFile
from spool.model import layout
from spool.runtime.clock import WaitExpired
from tests.meanwhile import Processes
from tests.simdisk import SimulatedDisk
from tests.survivors import Rules, survivors

BY_ORDER = pytest.mark.parametrize("processes", [True, False], ids=["ordered", "strict"], indirect=True)


@pytest.fixture
def processes(request: pytest.FixtureRequest) -> Processes:
    return Processes(ordered=getattr(request, "param", True))


def drop(processes: Processes, *names: str) -> None:
    disk = SimulatedDisk(processes.machine)
    for name in names:
        handle = disk.create(f"{layout.DROP}/orders/{name}")
        disk.write_at(handle, 0, name.encode())
        disk.close(handle)


def take_in(space: spool.Space) -> None:
    Intake(space).run(once=True)


def found(space: spool.Space) -> Counter[bytes]:
    return Counter(message.body for message in space.browse("orders"))


EACH_ONCE = Counter([b"a", b"b"])

# A call of an intake, and how a name that it is about begins.
STEPS = [
    pytest.param("flush_directory", layout.ACTIVE, id="it has a directory"),
    pytest.param("flush_directory", f"{layout.DROP}/orders", id="it has captured the files"),
    pytest.param("open", f"{layout.ACTIVE}/{layout.CAPTURE_PREFIX}", id="it has taken the files"),
    pytest.param("make_durable", "committed", id="its commit has a number"),
    pytest.param("unlink", f"{layout.ACTIVE}/{layout.CAPTURE_PREFIX}", id="its commit is there"),
]


@BY_ORDER
@pytest.mark.parametrize(("call", "about"), STEPS)
def test_another_intake_does_not_take_the_files_of_a_live_intake(processes: Processes, call: str, about: str) -> None:
    drop(processes, "a", "b")
    living, disk = processes.open()
    other = processes.space()

    def come_too() -> None:
        with suppress(WaitExpired):  # if renames are not ordered, no intake looks while a file gets its second name
            take_in(other)

    disk.before(call, come_too, about)
    take_in(living)
    assert not disk.waits_for(call)
    assert found(other) == EACH_ONCE


@BY_ORDER
@pytest.mark.parametrize(("call", "about"), STEPS)
def test_a_file_captured_by_a_dead_intake_is_taken_once(processes: Processes, call: str, about: str) -> None:
    drop(processes, "a", "b")
    other = processes.space()
    doomed, disk = processes.open()
    disk.dies_before(call, lambda: take_in(doomed), about)
    take_in(other)
    assert found(other) == EACH_ONCE
    assert found(processes.space()) == EACH_ONCE


def test_a_file_that_is_being_written_stays_where_its_writer_put_it(processes: Processes) -> None:
    drop(processes, "a")
    writer = processes.disk()
    handle = writer.open(f"{layout.DROP}/orders/a", write=True)
    space = processes.space()
    take_in(space)
    assert writer.exists(f"{layout.DROP}/orders/a")
    writer.close(handle)
    take_in(space)
    assert found(space) == Counter([b"a"])


@BY_ORDER
def test_a_file_opened_by_a_writer_during_the_capture_waits_for_the_writer(processes: Processes) -> None:
    drop(processes, "a")
    writer = processes.disk()
    handles: list[int] = []
    space, disk = processes.open()
    disk.before(
        "rename_new" if processes.machine.ordered else "link",
        lambda: handles.append(writer.open(f"{layout.DROP}/orders/a", write=True)),
        layout.DROP,
    )
    take_in(space)
    assert found(space) == Counter()
    writer.write_at(handles[0], 1, b"b")
    writer.close(handles[0])
    take_in(space)
    assert found(space) == Counter([b"ab"])


FIRST = f"{layout.DROP}/orders/a"


def dies_with_both_names(processes: Processes, name: str = "a") -> None:
    """An intake that has linked the file and not yet removed its first name."""
    doomed, disk = processes.open()
    disk.dies_before("rename_new", lambda: take_in(doomed), f"{layout.DROP}/orders/{name}")


@pytest.mark.parametrize("processes", [False], ids=["strict"], indirect=True)
def test_a_file_with_both_names_is_taken_once_by_an_intake_that_saw_no_dead_one(processes: Processes) -> None:
    drop(processes, "a")
    other, disk = processes.open()
    disk.before("names", lambda: dies_with_both_names(processes), f"{layout.DROP}/orders")
    take_in(other)
    assert not disk.waits_for("names")
    take_in(other)
    assert found(other) == Counter([b"a"])


@pytest.mark.parametrize("processes", [False], ids=["strict"], indirect=True)
def test_a_file_that_its_owner_linked_elsewhere_is_taken_beside_a_dead_intakes_of_that_name(processes: Processes):
    drop(processes, "a")
    other, disk = processes.open()

    def another_of_that_name() -> None:
        dies_with_both_names(processes)
        owner = processes.disk()
        owner.unlink(FIRST)
        drop(processes, "a")
        owner.link(FIRST, "elsewhere")

    disk.before("names", another_of_that_name, f"{layout.DROP}/orders")
    take_in(other)
    take_in(other)
    assert found(other) == Counter({b"a": 2})


@BY_ORDER
def test_a_new_file_under_the_name_of_one_that_a_dead_intake_took_is_another(processes: Processes) -> None:
    drop(processes, "a")
    doomed, disk = processes.open()
    disk.dies_before("open", lambda: take_in(doomed), f"{layout.ACTIVE}/{layout.CAPTURE_PREFIX}")
    drop(processes, "a")
    other = processes.space()
    take_in(other)
    take_in(other)
    assert found(other) == Counter({b"a": 2})


@pytest.mark.parametrize("processes", [False], ids=["strict"], indirect=True)
def test_a_dead_intakes_file_has_its_new_name_durably_before_the_first_is_removed(processes: Processes) -> None:
    """Otherwise a power cut could lose both names."""
    drop(processes, "a")
    dies_with_both_names(processes)
    other, disk = processes.open()
    flushed: list[str] = []
    flush = disk.flush_directory
    disk.flush_directory = lambda name: (flushed.append(name), flush(name))[1]  # type: ignore[method-assign]

    def look() -> None:
        (directory,) = (name for name in disk.names(layout.ACTIVE) if name.startswith(layout.CAPTURE_PREFIX))
        assert {layout.ACTIVE, f"{layout.ACTIVE}/{directory}"} <= {*flushed}
        flushed.append("looked")

    disk.before("rename_new", look, FIRST)
    take_in(other)
    assert "looked" in flushed
    assert found(other) == Counter([b"a"])


TAKEN = f"{layout.ACTIVE}/{layout.CAPTURE_PREFIX}"
STRICT = pytest.mark.parametrize("processes", [False], ids=["strict"], indirect=True)


def rename_in(processes: Processes, body: bytes) -> None:
    """Drop a program's next file of that name: write the file under another name, then rename it over any file of that
    name."""
    disk = processes.disk()
    handle = disk.create(f"{layout.DROP}/orders/.next")
    disk.write_at(handle, 0, body)
    disk.flush(handle)
    disk.close(handle)
    disk.rename(f"{layout.DROP}/orders/.next", FIRST)
    disk.flush_directory(f"{layout.DROP}/orders")


@STRICT
@pytest.mark.parametrize(("call", "about"), [("flush_directory", f"{TAKEN}orders"), ("rename_new", FIRST)])
def test_a_file_dropped_under_the_name_of_a_file_in_capture_is_taken_too(processes: Processes, call: str, about: str):
    """The second case: after the intake has compared the two files."""
    drop(processes, "a")
    space, disk = processes.open()
    # The directory itself is flushed first, when it is new.
    disk.before(call, lambda: rename_in(processes, b"next"), about, spare=int(call == "flush_directory"))
    take_in(space)
    assert not disk.waits_for(call)
    take_in(space)
    assert found(space) == Counter([b"a", b"next"])
    assert found(processes.space()) == Counter([b"a", b"next"])


@STRICT
def test_a_file_that_came_under_the_name_of_another_is_taken_durably(processes: Processes) -> None:
    drop(processes, "a")
    doomed, disk = processes.open()
    disk.before("rename_new", lambda: rename_in(processes, b"next"), FIRST)
    disk.dies_before("open", lambda: take_in(doomed), TAKEN)
    for survivor in survivors(processes.machine, Rules.STRICT, limit=50, seed=1):
        assert b"next" in [data for _, _, data in survivor.image.files], survivor.story


@STRICT
@pytest.mark.parametrize("call", ["unlink", "make_durable"])
def test_a_file_moved_for_comparison_by_a_dead_intake_is_taken_once(processes: Processes, call: str) -> None:
    """*unlink*: it is the taken file. *make_durable*: it is another one, that is to be taken, too."""
    drop(processes, "a")
    doomed, disk = processes.open()
    disk.before("rename_new", lambda: rename_in(processes, b"next") if call == "make_durable" else None, FIRST)
    disk.dies_before(call, lambda: take_in(doomed), TAKEN if call == "unlink" else layout.COMMITTED)
    other = processes.space()
    take_in(other)
    assert found(other) == (Counter([b"a"]) if call == "unlink" else Counter([b"a", b"next"]))
    assert processes.disk().names(f"{layout.DROP}/orders") == []


@STRICT
def test_a_new_file_under_the_name_of_one_that_a_dead_intake_took_waits_for_its_writer(processes: Processes) -> None:
    """The intake meets the dead one's directory by a file that has both its names."""
    living, disk = processes.open()
    intake = Intake(living)
    drop(processes, "a", "b")
    dies_with_both_names(processes, "b")
    handle = disk.create(FIRST)
    disk.write_at(handle, 0, b"half")
    intake.take_all()
    assert disk.exists(FIRST)
    disk.write_at(handle, 0, b"the whole file")
    disk.close(handle)
    intake.take_all()
    assert found(living) == Counter([b"a", b"b", b"the whole file"])


@BY_ORDER
def test_a_directory_of_taken_files_that_cannot_be_finished_is_let_go_of(processes: Processes) -> None:
    drop(processes, "a")
    doomed, disk = processes.open()
    disk.dies_before("open", lambda: take_in(doomed), TAKEN)
    space, disk = processes.open()

    def fails() -> None:
        raise OSError(24, "Too many open files")

    disk.before("names", fails, TAKEN)
    with pytest.raises(spool.SpoolError):
        take_in(space)
    take_in(space)
    assert found(space) == Counter([b"a"])


@BY_ORDER
def test_an_intake_that_runs_on_leaves_directories_to_which_it_takes_no_more(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spool.intake.directories._MOST_NAMES", 2)
    space, disk = processes.open()
    intake = Intake(space)
    for name in ("a", "a", "b", "c", "d", "e"):
        drop(processes, name)
        intake.take_all()
    assert found(space) == Counter([b"a", b"a", b"b", b"c", b"d", b"e"])
    assert len([name for name in disk.names(layout.ACTIVE) if name.startswith(layout.CAPTURE_PREFIX)]) <= 2
    assert sum(map(len, intake._capture._directories._used.values())) <= 2


def test_files_that_wait_for_a_full_queue_are_not_compared_with_one_another(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the time of each look at the files would grow with the square of their number."""
    space = processes.space()
    space.change_queue("orders", max_messages=0)
    drop(processes, *map(str, range(40)))
    intake = Intake(space)
    intake.take_all()
    compared: list[object] = []
    monkeypatch.setattr(CapturedFile, "__eq__", lambda one, other: compared.append(one) or one.record == other.record)
    intake.take_all()
    assert len(intake._waiting) == 40
    assert len(compared) <= 40


def test_a_running_intake_forgets_the_names_of_removed_files(processes: Processes) -> None:
    space, disk = processes.open()
    intake = Intake(space)
    disk.make_directory(FIRST)
    intake.take_all()
    intake._begin_look()
    assert intake._reported == {FIRST}, "it is reported once while it is left"
    disk.remove_directory(FIRST)
    intake.take_all()
    intake._begin_look()
    assert intake._reported == set()
