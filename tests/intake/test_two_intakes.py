"""An intake beside another that lives or died, and beside those who drop files: each file comes once, and whole."""

from collections import Counter
from contextlib import suppress

import pytest

import spool
from spool import layout
from spool.clock import WaitExpired
from spool.intake import Intake
from tests.simdisk import SimulatedDisk
from tests.spool.meanwhile import Processes

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
    pytest.param("open", f"{layout.ACTIVE}/{layout.TAKEN_PREFIX}", id="it has taken the files"),
    pytest.param("make_durable", "committed", id="its commit has a number"),
    pytest.param("unlink", f"{layout.ACTIVE}/{layout.TAKEN_PREFIX}", id="its commit is there"),
]


@BY_ORDER
@pytest.mark.parametrize(("call", "about"), STEPS)
def test_what_a_live_intake_has_taken_is_its_own(processes: Processes, call: str, about: str) -> None:
    drop(processes, "a", "b")
    living, disk = processes.open()
    other = processes.space()

    def come_too() -> None:
        with suppress(WaitExpired):  # where renames are not ordered, nobody looks while a file gets its second name
            take_in(other)

    disk.before(call, come_too, about)
    take_in(living)
    assert not disk.waits_for(call)
    assert found(other) == EACH_ONCE


@BY_ORDER
@pytest.mark.parametrize(("call", "about"), STEPS)
def test_what_a_dead_intake_had_taken_comes_once(processes: Processes, call: str, about: str) -> None:
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
def test_a_file_whose_writer_comes_while_it_is_taken_waits_for_it(processes: Processes) -> None:
    drop(processes, "a")
    writer = processes.disk()
    handles: list[int] = []
    space, disk = processes.open()
    disk.before(
        "rename_new" if disk.ordered else "link",
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
    disk.dies_before("unlink", lambda: take_in(doomed), f"{layout.DROP}/orders/{name}")


@pytest.mark.parametrize("processes", [False], ids=["strict"], indirect=True)
def test_a_file_with_both_names_comes_once_to_who_saw_no_dead_intake_yet(processes: Processes) -> None:
    drop(processes, "a")
    other, disk = processes.open()
    disk.before("names", lambda: dies_with_both_names(processes), f"{layout.DROP}/orders")
    take_in(other)
    assert not disk.waits_for("names")
    take_in(other)
    assert found(other) == Counter([b"a"])


@pytest.mark.parametrize("processes", [False], ids=["strict"], indirect=True)
def test_a_file_that_its_owner_linked_elsewhere_is_taken_beside_a_dead_intakes_of_that_name(
    processes: Processes,
) -> None:
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
    disk.dies_before("open", lambda: take_in(doomed), f"{layout.ACTIVE}/{layout.TAKEN_PREFIX}")
    drop(processes, "a")
    other = processes.space()
    take_in(other)
    take_in(other)
    assert found(other) == Counter({b"a": 2})


@pytest.mark.parametrize("processes", [False], ids=["strict"], indirect=True)
def test_a_dead_intakes_file_has_its_new_name_durably_before_the_first_goes(processes: Processes) -> None:
    """Or a power cut could lose both."""
    drop(processes, "a")
    dies_with_both_names(processes)
    other, disk = processes.open()
    flushed: list[str] = []
    flush = disk.flush_directory
    disk.flush_directory = lambda name: (flushed.append(name), flush(name))[1]  # type: ignore[method-assign]

    def look() -> None:
        (directory,) = (name for name in disk.names(layout.ACTIVE) if name.startswith(layout.TAKEN_PREFIX))
        assert {layout.ACTIVE, f"{layout.ACTIVE}/{directory}"} <= {*flushed}
        flushed.append("looked")

    disk.before("unlink", look, FIRST)
    take_in(other)
    assert "looked" in flushed
    assert found(other) == Counter([b"a"])
