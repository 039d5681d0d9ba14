"""Wait for messages: try to claim some whenever something was published, and from time to time."""

import threading
from collections.abc import Callable

from spool.coordination.locks import GroupLocks
from spool.model.position import PositionRanges
from spool.runtime import calls
from spool.runtime.clock import Clock, Deadline
from spool.store.parts import View
from spool.store.store import Store
from spool.transactions.claiming import Wanted, is_there

# The longest time that a waiting thread relies on notifications alone. Ctrl-C, and closing the space, wait as long.
IDLE_SECONDS = 0.1
# The shortest time between two attempts of a thread that was notified and found nothing.
BUSY_SECONDS = 0.002


def wait_for(
    store: Store, wanted: Wanted, begun: float, look: Callable[[], PositionRanges], groups: GroupLocks,
    check: Callable[[], object],
) -> PositionRanges:  # fmt: skip
    """Repeat a look until it claims something or the time that the get waits is over.

    Of the threads of this process that wait for one queue, one at a time repeats its attempts; the others wait for its
    lock, so that a commit wakes one thread and not all.

    Args:
        begun: when the get began, by the monotonic clock.
        check: called meanwhile; it raises if waiting has become pointless.
    """
    got = look()
    if got or wanted.timeout == 0:
        return got
    at = None if wanted.timeout is None else begun + wanted.timeout
    deadline = Deadline(store.clock, wanted.timeout, at, store.guard.check)
    if deadline.remaining() <= 0:
        return got
    if groups.names:  # what comes may be free for this transaction alone: it looks for itself
        return _repeat(store, wanted, look, deadline)
    polling = store.view.poll_locks.setdefault(wanted.queue, threading.Lock())
    while not polling.acquire(timeout=min(IDLE_SECONDS, deadline.remaining())):
        calls.deliver_pending_signals()
        check()
        if deadline.remaining() <= 0:
            return look()
    try:
        return _repeat(store, wanted, look, deadline)
    finally:
        polling.release()


def _repeat(store: Store, wanted: Wanted, look: Callable[[], PositionRanges], deadline: Deadline) -> PositionRanges:
    """Attempt when something was published, and now and then, since not every message that becomes free is published,
    and a notification may be lost."""
    notifier = store.shared.notifier
    seen, notified = notifier.generation, False

    def pause_for(short: float) -> bool:
        nonlocal seen, notified
        if notified:  # and nothing was free: in a busy space, not every commit is worth a look of every waiter
            store.clock.sleep(min(BUSY_SECONDS, deadline.remaining()))
        seconds = min(pause_seconds(store.view, store.clock, wanted, short), deadline.remaining())
        notified = notifier.wait(seen, seconds, seconds_without_inotify=short)
        seen = notifier.generation
        return notified

    for _ in deadline.polls(pause_for=pause_for):
        got = look()
        if got:
            return got
    return []


def pause_seconds(view: View, clock: Clock, wanted: Wanted, short: float) -> float:
    """Return how many seconds to wait for a notification after a look that claimed nothing.

    A message that is there, but held by a claim or a prepared branch, can become free without one: its holder dies, or
    releases what it has only looked at. So the next look comes after ``short`` seconds. A delayed message becomes
    due at a known time. Everything else is published: then the wait is long, and its end matters only for a lost
    notification, Ctrl-C and a closed space.
    """
    if is_there(view, clock, wanted):
        return short
    with view.mutex:
        due = None if wanted.by_key else view.index.messages.queue(wanted.queue).next_due()
    return IDLE_SECONDS if due is None else max(short, min(IDLE_SECONDS, due - clock.now()))
