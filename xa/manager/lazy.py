"""Lazy commits: decided branches that are not urgent are committed together, up to 10 ms after their decision.

A branch is not urgent if it only takes messages. Other callers see the same queues before and after the commit of such
a branch, because the prepared branch holds its messages until the commit removes them. However, a branch that takes
messages of a group is urgent, because the group's next message waits for the commit. In a space whose queues have
limits, every branch is urgent, because the commit makes room in a full queue.

The commits of many transactions become one commit, with one file and one flush. After a crash, a recovery commits the
branches.
"""

import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from spool import Space
from spool.engine import Clock
from xa.manager.space_branch import SpaceBranch

_MOST_BRANCHES = 64
_LONGEST_SECONDS = 0.01


class _Waiting(NamedTuple):
    """A branch that waits for its commit. ``done`` gets None, or the error of the commit."""

    branch: SpaceBranch
    done: Callable[[BaseException | None], object]


class LazyCommits:
    """The branches that wait for their commit. Many threads may use it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: list[_Waiting] = []
        self._known: weakref.WeakSet[Space] = weakref.WeakSet()  # spaces that commit their branches before they close
        self._mutex = threading.Lock()
        self._committing = threading.Lock()
        self._begun, self._is_full = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, branch: SpaceBranch, done: Callable[[BaseException | None], object]) -> None:
        """Commit a prepared branch soon. ``done`` must neither wait nor raise."""
        with self._mutex:
            self._waiting.append(_Waiting(branch, done))
            count = len(self._waiting)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="xaspool lazy commits", daemon=True)
                self._thread.start()
            is_new = branch.space not in self._known
            self._known.add(branch.space)
        if is_new:
            branch.space.engine.before_close(self.commit_all)
        if count == 1:
            self._begun.set()
        elif count == _MOST_BRANCHES:
            self._is_full.set()
        if self._closed:
            self.commit_all()

    def commit_all(self) -> None:
        """Commit the waiting branches now."""
        with self._committing:
            with self._mutex:
                waiting, self._waiting = self._waiting, []
                self._begun.clear()
                self._is_full.clear()
            by_space: dict[int, list[_Waiting]] = {}
            for one in waiting:
                by_space.setdefault(id(one.branch.space), []).append(one)
            for group in by_space.values():
                _commit(group[0].branch.space, group)

    def close(self) -> None:
        """Commit the waiting branches, and end the thread."""
        self._closed = True
        self.commit_all()
        self._begun.set()

    def _run(self) -> None:
        while not self._closed:
            self._begun.wait()
            self._clock.wait(self._is_full.wait, _LONGEST_SECONDS)
            self.commit_all()


def _commit(space: Space, group: list[_Waiting]) -> None:
    """Commit branches as one commit; after a failure, one by one."""
    are_committed = False
    with suppress(Exception):
        space.engine.commit_together([one.branch.xid for one in group])
        are_committed = True
    for one in group:
        failure = None
        try:
            if not are_committed:
                one.branch.commit()
        except Exception as error:
            failure = error
        one.done(failure)
