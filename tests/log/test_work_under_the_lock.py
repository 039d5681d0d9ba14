"""The work under the number lock does not grow with the messages of any commit, so no call waits for maintenance.

A test does the same work with a few messages and with several times as many. It counts the lines of Python and the
calls of C functions that run while this process holds the number lock, and compares the longest holds. The count does
not depend on the speed of the machine.
"""

import io
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import pytest

import spool
import xa
from spool.coordination import locks
from spool.coordination.locks import NUMBER, LockFile
from spool.disk import content
from spool.log import settled_lock
from spool.log.settled_lock import settle_and_catch_up
from spool.maintenance import compaction
from tests import door
from tests.at_once import AT_ONCE
from tests.branches import voting

FEW, MANY = 400, 1_600


class Work:
    """Counts lines and C calls between the moments at which this thread takes and releases the number lock.

    longest: the count of the longest hold so far.
    """

    def __init__(self) -> None:
        self.longest = 0
        self._count: int | None = None

    def begin(self) -> None:
        if self._count is None:
            self._count = 0
            sys.settrace(self._trace)
            sys.setprofile(self._profile)
            frame: FrameType | None = sys._getframe(2)
            while frame is not None:  # the callers go on under the lock, too
                frame.f_trace = self._trace
                frame = frame.f_back

    def end(self) -> None:
        if self._count is not None:
            sys.settrace(None)
            sys.setprofile(None)
            self.longest, self._count = max(self.longest, self._count), None

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line" and self._count is not None:
            self._count += 1
        return self._trace

    def _profile(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_call" and self._count is not None:
            self._count += 1


@contextmanager
def measured() -> Iterator[Work]:
    """Measure each hold of the number lock in the block."""
    work, try_lock, unlock, ours = Work(), LockFile.try_lock, LockFile.unlock, threading.get_ident()

    def taking(self: LockFile, byte: int, *, shared: bool = False) -> bool:
        got = try_lock(self, byte, shared=shared)
        if got and threading.get_ident() == ours and byte == NUMBER and self.name.endswith("control"):
            work.begin()
        return got

    def releasing(self: LockFile, byte: int) -> None:
        if threading.get_ident() == ours and byte == NUMBER and self.name.endswith("control"):
            work.end()
        unlock(self, byte)

    with mock.patch.object(LockFile, "try_lock", taking), mock.patch.object(LockFile, "unlock", releasing):
        try:
            yield work
        finally:
            work.end()


@contextmanager
def before_the_lock(act: Callable[[], None]) -> Iterator[None]:
    """Let another process act just before this process takes the number lock for the first time."""
    taking, left = locks.LockFile.try_lock, [act]

    def try_lock(self: LockFile, byte: int, *, shared: bool = False) -> bool:
        if byte == NUMBER and left and self.name.endswith("control"):
            acting = threading.Thread(target=left.pop())  # (a call inside a call of the same thread is refused)
            acting.start()
            acting.join()
        return taking(self, byte, shared=shared)

    with mock.patch.object(LockFile, "try_lock", try_lock):
        yield


def put_differing(space: spool.Space, many: int, queue: str = "orders") -> None:
    """Put so many messages in one commit. Each has other control fields, so each is an entry of its own."""
    with space.transaction(timeout=None) as tx:
        for n in range(many):
            tx.put(queue, b"x", correlation_id=f"c{n}")


def compact(space: spool.Space, many: int) -> None:
    put_differing(space, many)
    with measured_now():
        door.compact(space)


_work: list[Work] = []


@contextmanager
def measured_now() -> Iterator[None]:
    with measured() as work:
        yield
    _work.append(work)


def compact_into_two_files(space: spool.Space, many: int) -> None:
    """The messages that the first file moved are changes when the second file gets its number."""
    put_differing(space, many)
    with mock.patch.multiple(compaction, SEGMENT_MESSAGES=many // 2, _FILE_SEGMENTS=1), measured_now():
        door.compact(space)


def compact_beside_a_consumer(space: spool.Space, many: int) -> None:
    """Another process takes every second message after the compaction has copied the messages."""
    put_differing(space, many)
    with spool.open(space.path) as other:

        def take() -> None:
            messages = other.get_many("orders", many)
            other.put_many("others", [message.body for message in messages[::2]])

        with measured_now(), before_the_lock(take):
            door.compact(space)


def merge_tombstones(space: spool.Space, many: int) -> None:
    put_differing(space, many)
    door.compact(space)
    for _ in range(6):
        space.get_many("orders", many // 8)
    with mock.patch("spool.maintenance.tombstones.MERGED_COMMITS", 2), measured_now():
        door.compact(space)


def commit_many_removals(space: spool.Space, many: int) -> None:
    put_differing(space, many)
    with space.transaction(timeout=None) as tx:
        for n in range(many):
            if n % 2 == 0:
                tx.get("orders", correlation_id=f"c{n}")
        with measured_now():
            tx.commit()


def put_within_a_limit_beside_a_large_commit(space: spool.Space, many: int) -> None:
    space.change_queue("limited", max_messages=10)
    with spool.open(space.path) as other, measured_now(), before_the_lock(lambda: put_differing(other, many)):
        space.put("limited", b"x")


def put_many_within_a_limit(space: spool.Space, many: int) -> None:
    space.change_queue("orders", max_messages=10 * many)
    with measured_now():
        put_differing(space, many)


def register_a_subscription_beside_a_large_commit(space: spool.Space, many: int) -> None:

    with spool.open(space.path) as other, measured_now(), before_the_lock(lambda: put_differing(other, many)):
        space.engine.register_subscription("reader", ["orders"], 60.0)


def prepared(space: spool.Space, many: int) -> xa.Xid:
    manager, xid = xa.ResourceManager(space), xa.Xid(4711, b"order", b"%d" % many)
    with voting(manager, xid):
        for n in range(many):
            space.put("orders", b"x", correlation_id=f"c{n}")
    return xid


def commit_a_branch_of_another_process(space: spool.Space, many: int) -> None:
    with spool.open(space.path) as other:
        xid = prepared(other, many)
        with measured_now():
            xa.ResourceManager(space).commit(xid, xa.TMNOFLAGS)


def commit_a_branch_of_another_process_in_a_mirrored_space(space: spool.Space, many: int) -> None:
    """The mirror copies the vote, in chunks of 4 KiB here."""
    there = f"{space.path}-mirrored"
    with spool.create(there, mirror=f"{space.path}-mirror") as mirrored, spool.open(there) as other:
        mirrored.create_queue("orders")
        xid = prepared(other, many)
        with mock.patch.object(content, "_CHUNK_BYTES", 4096), measured_now():
            xa.ResourceManager(mirrored).commit(xid, xa.TMNOFLAGS)


def roll_a_branch_back_beside_a_large_commit(space: spool.Space, many: int) -> None:
    with spool.open(space.path) as other:
        xid = prepared(other, many)
        with measured_now(), before_the_lock(lambda: put_differing(other, many)):
            xa.ResourceManager(space).rollback(xid)


def put_within_a_limit_beside_a_branch_in_doubt(space: spool.Space, many: int) -> None:
    space.change_queue("orders", max_messages=10 * many)
    with spool.open(space.path) as other:
        prepared(other, many)
        with measured_now():
            space.put("orders", b"x")


def export(space: spool.Space, many: int) -> None:
    for n in range(many // 20):
        space.put("orders", b"%d" % n)
    with spool.open(space.path) as other, measured_now(), before_the_lock(lambda: put_differing(other, many)):
        space.export(io.BytesIO())


def delete_a_queue_beside_a_large_commit(space: spool.Space, many: int) -> None:
    with spool.open(space.path) as other, measured_now(), before_the_lock(lambda: put_differing(other, many)):
        space.delete_queue("others")


OPERATIONS = [
    compact, compact_into_two_files, compact_beside_a_consumer, merge_tombstones, commit_many_removals,
    put_within_a_limit_beside_a_large_commit, put_many_within_a_limit,
    register_a_subscription_beside_a_large_commit, commit_a_branch_of_another_process,
    commit_a_branch_of_another_process_in_a_mirrored_space, roll_a_branch_back_beside_a_large_commit,
    put_within_a_limit_beside_a_branch_in_doubt, export, delete_a_queue_beside_a_large_commit,
]  # fmt: skip


def longest_hold(directory: Path, operation: Callable[[spool.Space, int], None], many: int) -> int:
    with spool.create(directory, defaults=AT_ONCE) as space:
        for name in ("orders", "others", "limited"):
            space.create_queue(name)
        _work.clear()
        with mock.patch.object(settled_lock, "MOST_MESSAGES", 64), mock.patch("spool.log.write._LARGE_MESSAGES", 64):
            operation(space, many)
    assert _work, "nothing was measured"
    return _work[-1].longest


@pytest.mark.every(2)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
def test_the_number_lock_is_held_no_longer_for_more_messages(
    tmp_path: Path, operation: Callable[[spool.Space, int], None]
) -> None:
    few, many = (longest_hold(tmp_path / f"{many}", operation, many) for many in (FEW, MANY))
    assert 0 < many <= 1.25 * few + 100, f"{few} lines and calls for {FEW} messages, {many} for {MANY}"


def test_the_count_sees_work_that_grows_with_the_messages(tmp_path: Path) -> None:
    """If the messages of others are applied under the lock, the test above fails."""

    def apply_under_the_lock(space: spool.Space, many: int) -> None:
        with spool.open(space.path) as other:
            put_differing(other, many)
        with measured_now(), _locked(space):
            settle_and_catch_up(door.store(space), door.deadline(space))

    few, many = (longest_hold(tmp_path / f"{many}", apply_under_the_lock, many) for many in (FEW, MANY))
    assert many > 3 * few


@contextmanager
def _locked(space: spool.Space) -> Iterator[None]:
    control = door.store(space).shared.control
    assert control.try_lock(NUMBER)
    try:
        yield
    finally:
        control.unlock(NUMBER)
