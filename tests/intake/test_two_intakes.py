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
