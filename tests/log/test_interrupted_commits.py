"""An exception at any line of a common commit, from its number on: each request is in one commit or told as unknown."""

import linecache
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import spool
from spool.errors import CommitUnknown, NotOpen
from spool.log import ring
from tests import door
from tests.at_once import AT_ONCE
from tests.held import PATIENT_SECONDS
from tests.log.test_combined import posted, slots_of
from tests.shown import bodies
from tests.strides import Stride

pytestmark = pytest.mark.unled("these tests play all processes")

EVERY = 17


class Interrupted(BaseException):
    """An exception that is no Exception, as KeyboardInterrupt."""


class Planted:
    """Raises an exception at one line of ``spool.log``, counted from the issue of the leader's number."""

    def __init__(self, space: spool.Space, place: int, error: BaseException) -> None:
        self._counters = door.store(space).shared.counters
        self._before = self._counters.read().issued
        self._place = place
        self._error = error
        self.lines = list[str]()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        if not frame.f_globals["__name__"].startswith("spool.log."):
            return None
        if event == "line" and self._is_after_issue(frame):
            self.lines.append(f"{frame.f_code.co_qualname} {frame.f_lineno}")
            if len(self.lines) == self._place:
                raise self._error
        return self

    def _is_after_issue(self, frame: FrameType) -> bool:
        """Return whether the commit has a number, and is not published or not answered.

        The line of a ``try`` runs no code, and no handler of Python 3.11 sees the exception of a trace function there.
        """
        page, code = self._counters.read(), frame.f_code
        if page.issued == self._before or linecache.getline(code.co_filename, frame.f_lineno).strip() == "try:":
            return False
        return page.published <= self._before or code.co_filename == ring.__file__


def put_as_leader(space: spool.Space, planted: Planted) -> str:
    sys.settrace(planted)
    try:
        return space.put("orders", "leader's")
    finally:
        sys.settrace(None)


class Case:
    """A process leads, and two others have posted a put."""

    def __init__(self, root: Path, place: int, error: BaseException) -> None:
        self.root = root
        with spool.create(root, defaults=AT_ONCE) as first:
            first.create_queue("orders")
        self.leader = spool.open(root)
        self.owners = [spool.open(root) for _ in range(2)]
        self.planted = Planted(self.leader, place, error)

    def run(self) -> tuple[Future[str], list[Future[str]]]:
        waits = list[Future[str]]()
        for space in (self.leader, *self.owners):
            door.expect_others(space, 64)

        def post_both() -> None:
            if not waits:
                waits.extend(pool.submit(owner.put, "orders", f"owner's {n}") for n, owner in enumerate(self.owners))
                posted(self.owners[0], 2)

        with ThreadPoolExecutor(3) as pool, door.before_step(self.leader, "join", post_both):
            leads = pool.submit(put_as_leader, self.leader, self.planted)
            leads.exception(PATIENT_SECONDS)
        return leads, waits

    def judge(self, leads: Future[str], waits: list[Future[str]]) -> None:
        """Each acknowledged message exists once, and no call waits for the leader any more."""
        failed = leads.exception()
        told = ["leader's"] if failed is None else []
        nothing_happened = isinstance(failed, Exception) and not isinstance(failed, CommitUnknown)
        for n, wait in enumerate(waits):
            wait.result(0)
            told.append(f"owner's {n}")
        self.owners[0].put("orders", "later")
        for owner in self.owners:
            found = bodies(owner)
            assert len(found) == len(set(found))
            assert {*told, "later"} <= {*found}
            assert not (nothing_happened and "leader's" in found)
        assert slots_of(self.owners[0]).standing() == []
        try:
            self.leader.put("orders", "by the leader again")
        except NotOpen:
            self.leader = spool.open(self.root)
            self.leader.put("orders", "by the leader again")
        for space in (*self.owners, self.leader):
            space.close()
        with spool.open(self.root) as again:
            assert {*told, "later", "by the leader again"} <= {*bodies(again)}
            assert again.check() == []


ERRORS = {
    "no memory": lambda: MemoryError("planted"),
    "an error of the disk": lambda: OSError(5, "planted"),
    "an interrupt": lambda: Interrupted("planted"),
}


@pytest.mark.parametrize("kind", ERRORS)
def test_an_exception_at_any_line_of_a_common_commit_doubles_and_loses_nothing(
    kind: str, memory: Path, stride: Stride, record_property: Callable[[str, object], None]
) -> None:
    whole = Case(memory / "whole", 0, ERRORS[kind]())
    whole.judge(*whole.run())
    assert len(whole.planted.lines) > 50
    every = stride(EVERY)
    places = range(1 + len(kind) % every, len(whole.planted.lines) + 1, every)
    for place in places:
        case = Case(memory / str(place), place, ERRORS[kind]())
        ends = case.run()
        try:
            case.judge(*ends)
        except Exception as error:
            raise AssertionError(f"{kind} at line {place}: {case.planted.lines[-1:]}: {ends}") from error
    record_property("exceptions in common commits", len(places))
