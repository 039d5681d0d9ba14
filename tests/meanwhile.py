"""Processes of a simulated machine to which something happens just before a call: another one acts, or they die."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import spool
from spool.model import layout
from spool.model.xid import Xid
from spool.runtime import call_guard
from spool.transactions import two_phase
from tests import door
from tests.at_once import AT_ONCE
from tests.machine import NO_FILES, Machine, PowerCut
from tests.simdisk import SimulatedDisk

XID = Xid(7, b"one", b"")


@contextmanager
def elsewhere() -> Iterator[None]:
    """Act for another process or thread in this thread, which is in the middle of a call."""
    busy = dict(call_guard._busy)
    call_guard._busy.clear()
    try:
        yield
    finally:
        call_guard._busy.update(busy)


def prepare(space: spool.Space, xid: Xid = XID, *, queue: str = "orders", take: bool = False) -> None:
    """A branch that puts a message, and takes one if asked to."""
    branch = door.branch(space, xid=xid, timeout=30.0)
    branch.put(queue, "new")
    if take:
        branch.get(queue)
    branch.prepare()


def commit(space: spool.Space, *, told: bool = True) -> int:
    return space.engine.commit_branch(XID, vote_known=told)


def rollback(space: spool.Space) -> None:
    two_phase.rollback_prepared(door.store(space), XID, door.deadline(space))


class Meanwhile(SimulatedDisk):
    """One process's disk."""

    def before(self, call: str, action: Callable[[], object], about: str = "", *, spare: int = 0) -> None:
        """Before the next such call of ``about`` (how one of its names begins), an action takes place, once.
        ``spare``: how many of those calls go by before."""
        inner = getattr(super(), call)
        left = spare

        def watched(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            if any(isinstance(name, str) and name.startswith(about) for name in (*args, "")):
                left -= 1
                if left < 0:
                    delattr(self, call)
                    with elsewhere():
                        action()
            return inner(*args, **kwargs)

        setattr(self, call, watched)

    def waits_for(self, call: str) -> bool:
        """Return whether the action before that call has not taken place yet."""
        return call in vars(self)

    def damage(self, name: str, offset: int = -1) -> None:
        """Flip bits of one byte; a negative offset counts from the end."""
        handle = self.open(name, write=True)
        offset += self.handle_identity(handle).size if offset < 0 else 0
        self.write_at(handle, offset, bytes([self.read_at(handle, offset, 1)[0] ^ 0xFF]))
        self.close(handle)

    def die(self) -> None:
        """Kill the process. Its later calls, as it unwinds, change nothing."""
        self.machine.kill(self)

    def dies_before(self, call: str, step: Callable[[], object], about: str = "") -> None:
        """The process dies in this step, just before that call."""
        self.before(call, self.die, about)
        try:
            step()
        except PowerCut:
            return
        raise AssertionError(f"it did not come to {call} {about}")


Watched = tuple[spool.Space, Meanwhile]


class Processes:
    """The processes that have opened one space, with the queue *orders*."""

    def __init__(self, *, ordered: bool = True) -> None:
        self.machine = Machine(NO_FILES, ordered=ordered)
        with spool.create(SimulatedDisk(self.machine), defaults=AT_ONCE) as space:
            space.create_queue("orders")

    def open(self) -> tuple[spool.Space, Meanwhile]:
        disk = Meanwhile(self.machine)
        return spool.open(disk), disk

    def lose_a_writer(self) -> None:
        """Let a process die after its commit has a number, but before the flush."""
        self._doomed, disk = self.open()
        disk.dies_before("make_durable", lambda: self._doomed.put("orders", "one"), layout.COMMITTED)

    def newest(self) -> int:
        """The highest number in committed/."""
        found = (layout.parse_committed(name) for name in SimulatedDisk(self.machine).names(layout.COMMITTED))
        return max(one.number for one in found if one is not None)

    def disk(self) -> Meanwhile:
        """Return a new process's disk, for a test that reads the files."""
        return Meanwhile(self.machine)

    def space(self) -> spool.Space:
        return self.open()[0]
