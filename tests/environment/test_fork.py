"""A forked child cannot use its parent's open space, and does the parent no harm, however it ends."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import spool
from tests import door
from tests.children import living
from tests.environment import pressed
from tests.histories.contents import AFTER
from tests.histories.history import Expectation, History
from tests.histories.messages import THREE
from tests.spaces import space_with
from tests.strides import Stride

space = space_with("orders")


def in_a_child(action: Callable[[], object]) -> str:
    """Return the result or the exception of the action in a forked child, as text."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            said = repr(action())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        said = file.read()
    os.waitpid(pid, 0)
    return said


@pytest.mark.parametrize(
    "call",
    [
        lambda space: space.put("orders", b"one"),
        lambda space: space.get("orders"),
        lambda space: space.transaction(),
        lambda space: space.stats(),
        lambda space: list(space.browse("orders")),
    ],
    ids=["put", "get", "transaction", "stats", "browse"],
)
def test_a_forked_child_is_told_to_open_the_space(space: spool.Space, call: Callable[[spool.Space], object]) -> None:
    said = in_a_child(lambda: call(space))
    assert said == "NotOpen: the space was opened before this process was forked: open it again in the child"


def test_a_transaction_that_was_open_at_the_fork_is_closed_in_the_child_only(space: spool.Space) -> None:
    space.put("orders", b"one")
    with space.transaction() as transaction:
        transaction.get("orders")
        assert in_a_child(transaction.commit).startswith("NotOpen: ")
        assert in_a_child(lambda: space.put("orders", b"two")).startswith("NotOpen: ")
        space.put("orders", b"three")
    assert [message.body for message in space.browse("orders")] == [b"three"]


def test_a_child_that_closes_the_space_does_not_release_its_parent_s_messages(space: spool.Space) -> None:
    space.put("orders", b"one")
    with spool.open(space.path) as other, space.transaction() as transaction:
        transaction.get("orders")
        in_a_child(space.close)
        with pytest.raises(spool.Empty):
            other.get("orders")
    assert space.stats("orders").dequeued == 1


def test_a_child_that_outlives_its_parents_claims_does_not_keep_them(space: spool.Space) -> None:
    space.put("orders", b"one")
    with spool.open(space.path) as other:
        transaction = other.transaction()
        transaction.get("orders")
        with living(lambda ready: ready()):
            other.close()
            assert space.get("orders").attempts == 1


def test_a_child_opens_the_space_for_itself(space: spool.Space) -> None:
    def put_in_the_child() -> str:
        with spool.open(space.path) as own:
            return own.put("orders", b"from the child")

    said = in_a_child(put_in_the_child)
    message = space.get("orders")
    assert (repr(message.id), message.body) == (said, b"from the child")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_child_closes_copies_of_every_space_though_one_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the child would keep the locks of the other spaces, and a space would look open after the parent has
    ended."""
    spaces = [spool.create(tmp_path / str(n)) for n in range(3)]
    for space in spaces:
        with monkeypatch.context() as patch:
            patch.setattr(door.disk(space), "disown", None)
            left = in_a_child(lambda: "".join(pressed.descriptors()))
        assert [other.path in left for other in spaces] == [other is space for other in spaces]
    for space in spaces:
        space.close()


def test_a_child_closes_the_descriptors_of_directories_that_other_threads_were_using(tmp_path: Path) -> None:
    """The frames of those threads are never cleared in the child, and keep a reference."""
    with spool.create(tmp_path / "space") as space:
        directories = door.disk(space)._directories
        used, go_on = threading.Event(), threading.Event()

        def use() -> None:
            held = list(directories.values())
            used.set()
            go_on.wait()
            held.clear()

        thread = threading.Thread(target=use)
        thread.start()
        used.wait()
        left = in_a_child(lambda: sorted(name for name in pressed.descriptors() if str(tmp_path) in name))
        go_on.set()
        thread.join()
    assert left == "[]"


# -- in the middle of a call ------------------------------------------------------------------------------------------


class Forked:
    """Forks where the disk calls it, and the child goes on with the call; ``said`` returns the child's report."""

    def __init__(self) -> None:
        self.pid = -1
        self._pipe = os.pipe()

    def __call__(self) -> None:
        self.pid = os.fork()

    @property
    def is_child(self) -> bool:
        return self.pid == 0

    def say(self, text: str) -> None:
        os.write(self._pipe[1], text.encode())

    def said(self) -> str:
        os.close(self._pipe[1])
        with os.fdopen(self._pipe[0]) as file:
            said = file.read()
        if self.pid > 0:
            assert os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]) == 0
        return said


def tell_and_end(forked: Forked, space: spool.Space, path: Path, ended: str) -> None:
    """Report the end of the child's call, its open descriptors, and the end of its next call; then exit."""
    left = {name for name in pressed.descriptors() if str(path) in name}
    try:
        space.put(AFTER, "from the child")
        following = "returned"
    except BaseException as error:
        following = f"{type(error).__name__}: {error}"
    forked.say(f"{ended}\n{sorted(left)}\n{following}")
    os._exit(0)


TOLD = "the space was opened before this process was forked: open it again in the child"
ERRORS = (f"NotOpen: {TOLD}", f"XAError: XAER_RMFAIL: {TOLD}")


@pytest.mark.every(13, first=2)
@pressed.EACH_HISTORY
def test_at_each_call_of_the_disk_the_child_is_told_and_the_parent_goes_on(
    history: History, memory: Path, stride: Stride, record_property: Callable[[str, object], None]
) -> None:
    """The child closes its copies, unlocks and moves nothing, and gets one clear error, at whichever call it was
    forked."""
    *calls, _ = pressed.some_of(len(pressed.calls_of(history, memory / "calls")), few=4, stride=stride)
    before = pressed.descriptors(collect=True)
    for n in calls:
        path = memory / str(n)
        pressed.begin(path, history)
        space, disk = pressed.opened(path)
        disk.press = forked = Forked()
        disk.arm(n)
        ended, expected = "returned", Expectation(history.begin)
        try:
            history.run(space, expected)
        except BaseException as error:
            ended = f"{type(error).__name__}: {error}"
        if forked.is_child:
            tell_and_end(forked, space, path, ended)
        told, left, following = forked.said().splitlines()
        # (An intake that was done but for its return returns its counts, and the close of claims raises nothing. A task
        # may be opening the space.)
        assert told in ERRORS or history.by_task or history.name.startswith(("intake", "taken in", "claims"))
        assert left == "[]"
        assert following == f"NotOpen: {TOLD}"
        assert ended == "returned", "the parent noticed nothing"
        pressed.expect_whole(path, space, expected.after_kill, history)
        assert pressed.descriptors() == before
        shutil.rmtree(path)
    record_property("forks at a call of the disk", len(calls))


def test_while_the_space_is_opened_the_child_does_not_get_it(
    memory: Path, stride: Stride, record_property: Callable[[str, object], None]
) -> None:
    pressed.begin(memory / "calls")
    probe = pressed.PressedDisk(str(memory / "calls"))
    spool.open(probe).close()
    before = pressed.descriptors(collect=True)
    calls = range(5, len(probe.calls) - 5, stride(29))
    for n in calls:
        path = memory / str(n)
        pressed.begin(path)
        disk = pressed.PressedDisk(str(path))
        disk.press = forked = Forked()
        disk.arm(n)
        try:
            space = spool.open(disk)
            ended = "returned"
        except BaseException as error:
            ended = f"{type(error).__name__}: {error}"
        if forked.is_child:
            forked.say(f"{ended}\n{sorted(name for name in pressed.descriptors() if str(path) in name)}")
            os._exit(0)
        told, left = forked.said().splitlines()
        assert "opened" in told
        assert told.startswith(("NotOpen: ", "DiskFailure: "))
        assert left == "[]"
        assert ended == "returned"
        pressed.expect_whole(path, space, [THREE])
        assert pressed.descriptors() == before
    record_property("forks at a call of opening", len(calls))


_FORKS_DURING_AN_IMPORT = """
import os, signal, sys, threading
from spool.disk.kernel import file_locked
begun, forking = threading.Event(), threading.Event()
class Finder:
    find_spec = lambda self, name, *_: None if name != "filelock" else (begun.set(), forking.wait())[0]
sys.meta_path.insert(0, Finder())
threading.Thread(target=file_locked(os.open(sys.argv[1], 0), "lock", 0o600).__enter__).start()
begun.wait(), forking.set()
if (child := os.fork()) == 0:
    signal.alarm(60)
    import filelock
    os._exit(0)
sys.exit(os.waitpid(child, 0)[1])
"""


def test_a_child_can_lock_files_although_a_thread_imported_the_package_at_the_fork(tmp_path: Path) -> None:
    assert subprocess.run([sys.executable, "-c", _FORKS_DURING_AN_IMPORT, str(tmp_path)]).returncode == 0
