"""The coordinator of a write: a lock that outlives the process that began the write, and nothing else."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

import spool
from forwarder.dataframes.coordination import write_coordinator
from forwarder.dataframes.coordination.write_coordinator import WriteCoordinator, address_of, start
from spool.coordination.locks import coordinator_byte
from spool.errors import SystemFailure
from spool.store.store import Store
from tests import door
from tests.users import OWNER, in_a_process_of


def is_locked(store: Store, which: WriteCoordinator) -> bool:
    return not store.shared.xids.is_free(coordinator_byte(which.id))


def wait_until_free(store: Store, which: WriteCoordinator) -> None:
    byte = coordinator_byte(which.id)
    store.shared.xids.lock(byte, store.deadline(), "the coordinator")
    store.shared.xids.unlock(byte)


@pytest.fixture
def parent(monkeypatch: pytest.MonkeyPatch) -> Iterator["subprocess.Popen[bytes]"]:
    """The process that a holder ends with: Spark's daemon in earnest."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        monkeypatch.setattr(os, "getppid", lambda: process.pid)
        yield process
        process.kill()


def test_the_lock_outlives_the_space_that_was_open_and_ends_when_it_is_told(
    space: spool.Space, parent: "subprocess.Popen[bytes]"
) -> None:
    with spool.open(space.path) as opened:
        which = start(opened)
    assert is_locked(door.store(space), which)
    assert which.end()
    assert not is_locked(door.store(space), which)
    assert which.end(), "it has ended before"


def test_no_process_is_alone_in_a_space_that_is_written(space: spool.Space, parent: "subprocess.Popen[bytes]") -> None:
    """An opener that takes itself for the first one would recover the space while the tasks write."""
    which = start(space)
    space.close()
    with spool.open(space.path) as other:
        assert not other.recovery.alone
    which.end()
    with spool.open(space.path) as alone:
        assert alone.recovery.alone


def test_the_lock_outlives_the_process_that_began_it(space: spool.Space, parent: "subprocess.Popen[bytes]") -> None:
    program = f"""
import os, spool
from forwarder.dataframes.coordination.write_coordinator import start

with spool.open({space.path!r}) as space:
    os.getppid = lambda: {parent.pid}
    which = start(space)
print(which.id.hex(), which.address[1:])
"""
    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    which = WriteCoordinator(bytes.fromhex(said[0]), "\0" + said[1])
    assert is_locked(door.store(space), which)
    assert which.end()
    assert not is_locked(door.store(space), which)


def test_the_lock_ends_with_the_process_that_writes(space: spool.Space, parent: "subprocess.Popen[bytes]") -> None:
    """The process may end in any way: the daemon of a killed driver ends, too."""
    which = start(space)
    parent.send_signal(signal.SIGKILL)
    wait_until_free(door.store(space), which)


def test_the_next_batch_of_a_stream_ends_the_coordinator_of_the_one_before(
    space: spool.Space, parent: "subprocess.Popen[bytes]"
) -> None:
    first = start(space, "checkpoint /a")
    other = start(space, "checkpoint /b")
    second = start(space, "checkpoint /a")
    assert not is_locked(door.store(space), first)
    assert is_locked(door.store(space), second)
    assert is_locked(door.store(space), other)
    assert first.address == second.address == address_of(space.path, "checkpoint /a")
    assert second.end()
    assert other.end()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_does_not_end_a_write(space: spool.Space, parent: "subprocess.Popen[bytes]") -> None:
    which = start(space)

    def connect() -> None:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(which.address)
            assert connection.recv(1) == b"", "it is let in, and told nothing"

    in_a_process_of(OWNER, connect)
    assert is_locked(door.store(space), which)
    assert which.end()


def test_an_address_that_another_program_has_is_told(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch, parent: "subprocess.Popen[bytes]"
) -> None:
    monkeypatch.setattr(write_coordinator, "_END_SECONDS", 0.01)
    address = address_of(space.path, "taken")
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(address)
        taken.listen()
        with pytest.raises(SystemFailure, match="coordinates the write"):
            start(space, "taken")
        assert not WriteCoordinator(b"", address).end()
