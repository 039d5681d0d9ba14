"""``shared`` returns one open space for each process and directory, whatever the threads, signals and forks."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import spool
from spool import sharing
from spool.runtime.async_exceptions import Reentrant
from tests import children, door
from tests.held import PATIENT_SECONDS


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    for space in sharing._spaces.values():
        space.close()
    sharing._spaces.clear()


def test_a_missing_space_is_created_and_each_path_to_it_leads_to_one_object(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = spool.shared(path)
    space.create_queue("orders")
    (tmp_path / "link").symlink_to("space")
    monkeypatch.chdir(tmp_path)
    for other in (path, str(path), "space", "./space/", "link", f"{path}/../space"):
        assert spool.shared(other) is space
    assert spool.shared(tmp_path / "another") is not space


def test_the_options_of_each_call_must_equal_those_of_the_space(path: Path) -> None:
    space = spool.shared(path, max_headers=3)
    assert spool.shared(path) is spool.shared(path, max_headers=3) is space
    with pytest.raises(spool.SpaceExists, match="max_headers is 3, not 4"):
        spool.shared(path, max_headers=4)
    with pytest.raises(spool.InvalidArgument, match="max_headers"):
        spool.shared(path, max_headers="four")  # type: ignore[arg-type]
    settings = path / "space.toml"
    with spool.open(path) as other:  # as another process
        settings.write_text(settings.read_text().replace("max_headers = 3", "max_headers = 4"))
        other.create_queue("orders")
        assert spool.shared(path, max_headers=4) is space
        settings.write_text(settings.read_text().replace("max_headers = 4", "max_headers = 3"))
        other.create_queue("mail")
    space.close()
    with pytest.raises(spool.SpaceExists, match="max_headers is 3, not 4"):
        spool.shared(path, max_headers=4)
    assert spool.shared(path) is not space


def test_threads_that_come_at_once_share_one_opening(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[spool.Space] = []
    create, barrier = sharing.create, threading.Barrier(16)

    def counted(*args: Any, **options: Any) -> spool.Space:
        opened.append(create(*args, **options))
        return opened[-1]

    def open_() -> spool.Space:
        barrier.wait(PATIENT_SECONDS)
        return spool.shared(path)

    monkeypatch.setattr(sharing, "create", counted)
    for _ in range(20):
        opened.clear()
        with ThreadPoolExecutor(16) as pool:
            found = {future.result(PATIENT_SECONDS) for future in [pool.submit(open_) for _ in range(16)]}
        assert list(found) == opened
        opened[0].close()


def test_a_space_that_was_closed_or_torn_is_opened_again(path: Path) -> None:
    space = spool.shared(path)
    space.create_queue("orders")
    space.put("orders", "one")
    space.close()
    again = spool.shared(path)
    assert again is not space
    door.store(again).guard.tear(RuntimeError("in the middle"))
    with pytest.raises(spool.NotOpen):
        again.put("orders", "two")
    assert spool.shared(path).get("orders").body == "one"


def test_a_space_that_has_stopped_is_opened_again_once_every_process_has_closed_it(path: Path) -> None:
    space = spool.shared(path)
    space.create_queue("orders")
    space.put("orders", "one")
    with spool.open(path) as other:  # as another process
        door.store(space).stop()
        for _ in range(2):
            with pytest.raises(spool.SpaceStopped):
                spool.shared(path)
        with pytest.raises(spool.NotOpen):
            space.get("orders")
        with pytest.raises(spool.SpaceStopped):
            other.get("orders")
    assert spool.shared(path).get("orders").body == "one"


def test_an_opening_that_fails_leaves_nothing(path: Path) -> None:
    path.write_text("a file")
    with pytest.raises(spool.NotASpace):
        spool.shared(path)
    path.unlink()
    assert spool.shared(path).queues() == {}


class Stop(Exception):
    """A signal handler raised this."""


def test_a_signal_in_the_middle_of_an_opening_comes_after_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise Stop

    create = sharing.create

    def interrupted(*args: Any, **options: Any) -> spool.Space:
        signal.raise_signal(signal.SIGUSR1)
        space = create(*args, **options)
        signal.raise_signal(signal.SIGUSR1)
        return space

    before = signal.signal(signal.SIGUSR1, stop)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(sharing, "create", interrupted)
            with pytest.raises(Stop):
                spool.shared(path)
        [space] = sharing._spaces.values()
        assert spool.shared(path) is space
        assert space.queues() == {}
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_finalizer_in_the_middle_of_an_opening_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create = sharing.create

    def finalized(*args: Any, **options: Any) -> spool.Space:
        with pytest.raises(Reentrant):
            spool.shared(path)
        return create(*args, **options)

    monkeypatch.setattr(sharing, "create", finalized)
    assert spool.shared(path).queues() == {}


# -- forks ------------------------------------------------------------------------------------------------------------


def test_a_forked_child_opens_a_space_of_its_own(path: Path) -> None:
    space = spool.shared(path)
    space.create_queue("orders")
    with space.transaction() as tx:
        space.put("orders", "the parent's")

        def act() -> None:
            own = spool.shared(path)
            assert own is not space
            assert spool.shared(path) is own
            own.put("orders", "the child's")

        assert children.exit_code_of(act) == 0
        tx.commit()
    assert spool.shared(path) is space
    assert [message.body for message in space.browse("orders")] == ["the child's", "the parent's"]


def test_a_fork_while_another_thread_opens_leaves_no_lock_in_the_child(path: Path, monkeypatch: pytest.MonkeyPatch):
    inside, go_on, create = threading.Event(), threading.Event(), sharing.create

    def held(*args: Any, **options: Any) -> spool.Space:
        inside.set()
        assert go_on.wait(PATIENT_SECONDS)
        return create(*args, **options)

    def act() -> None:
        monkeypatch.undo()
        signal.alarm(PATIENT_SECONDS)
        assert spool.shared(path).queues() == {}

    monkeypatch.setattr(sharing, "create", held)
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(spool.shared, path)
        assert inside.wait(PATIENT_SECONDS)
        assert children.exit_code_of(act) == 0
        go_on.set()
        assert opening.result(PATIENT_SECONDS).queues() == {}


def test_children_that_are_forked_all_the_while_open_their_own(path: Path) -> None:
    """While a thread opens and closes the space, many children are forked at any moment of it."""
    spool.shared(path).create_queue("orders")
    stop = threading.Event()

    def open_and_close() -> None:
        while not stop.is_set():
            with suppress(spool.NotOpen):
                spool.shared(path).put("orders", "the parent's")
            spool.shared(path).close()

    def act() -> None:
        signal.alarm(PATIENT_SECONDS)
        spool.shared(path).put("orders", "a child's")

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(open_and_close)
        try:
            assert {children.exit_code_of(act) for _ in range(50)} == {0}
        finally:
            stop.set()
        done.result(PATIENT_SECONDS)
    assert sum(message.body == "a child's" for message in spool.shared(path).browse("orders")) == 50


# -- the end of the program -------------------------------------------------------------------------------------------

ENDS = """
import atexit, sys
spaces = []
atexit.register(lambda: print([repr(space).endswith("(closed)>") for space in spaces]))
import spool
space = spool.shared(sys.argv[1])
spaces.append(space)
space.create_queue("orders")
space.submit("orders", "submitted")
"""


def test_the_end_of_the_program_closes_the_space_after_its_submitted_messages(path: Path) -> None:
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    command = [sys.executable, "-c", ENDS, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[True]\n", "")
    assert spool.shared(path).get("orders").body == "submitted"
