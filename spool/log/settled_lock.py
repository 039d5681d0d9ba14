"""Decisions under the number lock, once every issued commit is applied (Rule 5). The lock is held only briefly.

A commit may have millions of messages, and a process needs seconds to apply it. If the process did so under the number
lock, no process could commit meanwhile. So a process first applies the commits without the lock. If large commits, or
many commits, were issued before the process got the lock, it releases the lock, applies these commits and begins again.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from spool.coordination.counters import CounterPage
from spool.coordination.locks import NUMBER
from spool.format.commands import addressing
from spool.log.sequence import settle_all, with_number_lock
from spool.log.visibility import catch_up, list_prepared
from spool.runtime.clock import Deadline, LockTimeout, WaitExpired
from spool.store.store import Store

# The most commits that are applied under the number lock, and the most messages that they put, remove or change.
MOST_COMMITS, MOST_MESSAGES = 64, 1_024
# After this many rounds, a decision applies all commits under the lock. Otherwise the decision might never be made
# while other processes commit large transactions all the time.
_MOST_ROUNDS = 8
Applied = Callable[[], object]


class Overtaken(Exception):
    """Other processes changed the subject of a maintenance commit, or commit too fast. Nothing was done; the next round
    of the maintenance tries again."""


def settle_and_catch_up(store: Store, deadline: Deadline, *, lists: bool = True) -> None:
    """Apply every issued commit, and list the prepared branches if ``lists`` is true. The view is exact if the caller
    holds the number lock.

    Raises LockTimeout if another process does not publish its number in time.
    """
    try:
        page = settle_all(store, deadline)
        catch_up(store, list_prepared(store, page) if lists else page)
    except WaitExpired as error:
        raise LockTimeout(f"{error}; the transaction was rolled back") from None


def lock_settled(
    store: Store, seconds: float | None, *, insists: bool = True, lists: bool = True, on_applied: Applied = lambda: None
) -> None:
    """Take the number lock once every issued commit is applied; the caller releases the lock.

    Args:
        seconds: the limit of all waits together, or None without a limit.
        on_applied: called without the lock each time after commits were applied, for the caller's work that grows with
            the number of commits.
        insists: whether to apply all remaining commits under the lock in the end, as a decision does. If False, as in
            maintenance, the call gives up.
        lists: whether the decision depends on all prepared branches, e.g. on the room that they need in a queue.

    Raises:
        LockTimeout: the lock, or an earlier number, does not become free in time.
        Overtaken: ``insists`` is False, and other processes commit too fast.
    """
    control, left, deadline = store.shared.control, _MOST_ROUNDS, None
    locked = control.try_lock(NUMBER)  # most often few commits are left to apply, and all are published
    while True:
        if not locked:
            deadline = deadline or store.deadline(seconds)  # (made only if it is needed)
            settle_and_catch_up(store, deadline, lists=lists)
            on_applied()
            with_number_lock(control, deadline)
            left -= 1
        try:
            page = store.shared.counters.read()
            if locked and page.issued == page.published and _is_near(store, page, lists):
                catch_up(store, page)
                return
            if deadline is not None and (_is_near(store, page, lists) or (insists and not left)):
                settle_and_catch_up(store, deadline, lists=lists)
                return
        except BaseException:
            control.unlock(NUMBER)
            raise
        control.unlock(NUMBER)
        locked = False
        if not left:
            raise Overtaken


@contextmanager
def settled(store: Store, deadline: Deadline) -> Iterator[None]:
    """Hold the number lock while the body runs, with every issued commit applied: see ``lock_settled``."""
    lock_settled(store, deadline.seconds)
    try:
        yield
    finally:
        store.shared.control.unlock(NUMBER)


def _is_near(store: Store, page: CounterPage, lists: bool) -> bool:
    """Return whether few and small commits remain to be applied. The caller holds the number lock, and has read the
    counters."""
    applied, own = store.view.index.applied, store.view.own_commits
    if page.issued - applied > MOST_COMMITS or (lists and page.prepared != store.view.prepared.version):
        return False
    messages = 0
    for number in range(applied + 1, page.issued + 1):
        if number not in own:  # (this process keeps only its small commits for later)
            if (commit := store.shared.feed.commit(number)) is None:
                return False  # the commit is too large for the feed
            for table in (table for file in commit.files for table in file.contents.tables):
                messages += len(table.lengths) + sum(command.length for command in addressing(table.commands))
    return messages <= MOST_MESSAGES
