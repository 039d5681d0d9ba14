"""Histories of files that other programs drop."""

import spool
from spool.intake import Intake
from spool.model import layout
from tests import door
from tests.histories.contents import EMPTY
from tests.histories.history import Expectation, History
from tests.machine import OF_ANOTHER


def drop(space: spool.Space, files: dict[str, bytes]) -> None:
    """Another program drops files into the folder of queue a."""
    for name, data in files.items():
        handle = door.disk(space).create(f"{layout.DROP}/a/{name}")
        door.disk(space).write_at(handle, 0, data)
        door.disk(space).flush(handle)
        door.disk(space).flush_directory(f"{layout.DROP}/a")
        door.disk(space).close(handle)


def two_files(space: spool.Space) -> None:
    """Another program drops files before the space is used."""
    drop(space, {"one": b"one", "two": b"two"})


def _marked_files(space: spool.Space) -> None:
    """Another program drops files with their markers. The file without a marker must never be taken."""
    space.change_queue("a", drop_marker=".ok")
    drop(space, {"one": b"one", "one.ok": b"", "two": b"two", "two.ok": b"", "unmarked": b"unmarked"})


def files_of_another_user(space: spool.Space) -> None:
    """Drop files of another user: the kernel does not tell whether these files have a writer, and they get no second
    name."""
    drop(space, {f"{OF_ANOTHER}-1": b"one", f"{OF_ANOTHER}-2": b"two"})


TAKEN_IN = EMPTY.put("a", "b'one'", "b'two'")


def taken_in(space: spool.Space, expected: Expectation) -> None:
    """The next intake finishes the work of an interrupted one: each file becomes one message. A file that a dead intake
    had taken comes when its work is finished."""
    *others, one, two = expected.contents.queues[0]
    expected.allowed |= {expected.contents.ordered("a", *others, two, one)}
    take_in(space)


def take_in(space: spool.Space) -> None:
    Intake(space).run(once=True)


def _take_in_and_look_later(space: spool.Space) -> None:
    """A second intake checks the committed file that may still have a writer, and removes it. No simulated time passes
    after the file's last change, but the file counts as old enough."""
    for _ in range(2):
        take_in(space)


DROPPED = (
    History("intake", two_files, TAKEN_IN, taken_in, finish=take_in),
    History("intake of marked files", _marked_files, TAKEN_IN, taken_in, finish=take_in),
    History(
        "intake of another user's files", files_of_another_user, TAKEN_IN, taken_in, finish=_take_in_and_look_later
    ),
)
