"""Wait for messages: attempt a claim whenever a message may have become free.

If several threads of a process wait for the head of one queue, only one of them attempts claims at a time. A thread
that waits for a message by id or correlation id sleeps until it is woken. One of these threads listens for all of them
(``spool.store.sought``).
"""

import logging
import threading
from collections.abc import Callable, Collection
from functools import partial
from typing import TypeVar

from spool.coordination.locks import GroupLocks
from spool.log.visibility import catch_up
from spool.model.position import PositionRanges
from spool.runtime import calls
from spool.runtime.clock import POLL_MIN_SECONDS, Clock, Deadline, LockTimeout, WaitExpired
from spool.runtime.greenlets import check_threads
from spool.runtime.tearing import only_waits
from spool.store.parts import View
from spool.store.sought import Sought
from spool.store.store import Store
from spool.transactions.claiming import Wanted, is_there
from spool.transactions.two_phase import resolve_orphans

log = logging.getLogger("spool")

T = TypeVar("T")

# The longest time for which a waiting thread relies on notifications. Ctrl-C or a close can be delayed by this time.
IDLE_SECONDS = 0.1
# The same for a thread that sleeps on shared memory and was not notified for a time; it then attempts a claim after so
# many of these waits. So a holder that died is noticed within a second.
LONGEST_SECONDS, _MOST_WAITS = 0.25, 4
# The shortest time between two attempts of a thread that was notified and claimed nothing.
BUSY_SECONDS = 0.002


def wait_for(
    store: Store, wanted: Wanted, begun: float, look: Callable[[], PositionRanges], groups: GroupLocks,
    check: Callable[[], object],
) -> PositionRanges:  # fmt: skip
    """Repeat the claim ``look`` until it gets messages or the time of the get is over.

    If several threads of this process wait for one queue, one of them holds the queue's poll lock and repeats its
    attempts. The others wait for the lock, so that a commit wakes one thread and not all.

    Args:
        begun: the time when the get began, by the monotonic clock.
        check: a function that raises if waiting has become pointless. It is called during the wait.
    """
    at = None if wanted.timeout is None else begun + wanted.timeout
    deadline = Deadline(store.clock, wanted.timeout, at, check)
    got = _attempt(look, deadline) or []
    if got or deadline.remaining() <= 0:
        return got
    check_threads()  # they may have been replaced after the opening
    if wanted.by_key:
        held = partial(is_there, store.view, store.clock, wanted)
        return repeat_when_arrived(store, (wanted.sought,), held, look, deadline) or []
    deadline = deadline._replace(check=partial(_check_waiting, check))
    if groups.names:  # only this transaction can take more messages of its groups, so it needs no poll lock
        return _repeat(store, wanted, look, deadline)
    polling = store.view.poll_locks.setdefault(wanted.queue, threading.RLock())
    while not polling.acquire(timeout=min(IDLE_SECONDS, deadline.remaining())):
        _check_waiting(check)
        if deadline.remaining() <= 0:
            return look()
    try:
        return _repeat(store, wanted, look, deadline)
    finally:
        polling.release()


def _check_waiting(check: Callable[[], object]) -> None:
    """Run the handlers of pending signals, because this call only waits; then call ``check``."""
    calls.deliver_pending_signals()
    check()


@only_waits
def _sleep(store: Store, seconds: float) -> None:
    store.clock.sleep(seconds)


@only_waits
def _wait(store: Store, woken: Callable[[float], bool], seconds: float) -> bool:
    return store.clock.wait(woken, seconds)


def _repeat(store: Store, wanted: Wanted, look: Callable[[], PositionRanges], deadline: Deadline) -> PositionRanges:
    """Attempt a claim after each notification, and now and then without a notification."""
    await_messages, notified = _waiting(store, wanted.queue), False
    unheard = (_Unheard if store.shared.counters.arrivals.wakes else _Polled)(store, wanted)

    def pause_for(short: float) -> bool:
        nonlocal notified
        if notified:  # but nothing was free: in a busy space, a waiter does not attempt a claim after every commit
            _sleep(store, min(BUSY_SECONDS, deadline.remaining()))
        notified = await_messages(min(unheard.seconds(short), deadline.remaining()), short)
        return notified

    for _ in deadline.polls(pause_for=pause_for):
        if notified or unheard.is_due() or deadline.remaining() <= 0:
            got = _attempt(look, deadline)
            if got:
                return got
            unheard.failed(notified)
    return []


def _attempt(look: Callable[[], T], deadline: Deadline) -> T | None:
    """Attempt a claim; return None if a lock of the space did not become free, and the caller waits longer than that.

    Nothing happened then.
    """
    try:
        return look()
    except (LockTimeout, WaitExpired) as error:
        if deadline.remaining() <= 0:
            raise
        log.warning("waiting for a message: %s", error)
        return None


class _Polled:
    """The attempts of a thread that no commit wakes for messages of its queue alone."""

    def __init__(self, store: Store, wanted: Wanted) -> None:
        self.store = store
        self.wanted = wanted

    def is_due(self) -> bool:
        return True

    def seconds(self, short: float) -> float:
        return pause_seconds(self.store.view, self.store.clock, self.wanted, short)

    def failed(self, notified: bool) -> None:
        """Note that an attempt claimed nothing."""


class _Unheard(_Polled):
    """The attempts without a notification of a thread that sleeps on shared memory.

    Such an attempt is needed when a delayed message becomes due, and because a holder that dies notifies no thread. The
    times between these attempts grow, because each attempt costs a process the work to apply all new commits.
    """

    def __init__(self, store: Store, wanted: Wanted) -> None:
        super().__init__(store, wanted)
        self._pause, self._waits, self._left = IDLE_SECONDS, 0, 1
        self._due: float | None = None  # by the wall clock, which may be set

    def is_due(self) -> bool:
        self._left -= 1
        return self._left <= 0 or (self._due is not None and self.store.clock.now() >= self._due)

    def seconds(self, short: float) -> float:
        return self._pause if self._due is None else max(short, min(self._pause, self._due - self.store.clock.now()))

    def failed(self, notified: bool) -> None:
        self._pause = IDLE_SECONDS if notified else min(1.5 * self._pause, LONGEST_SECONDS)
        self._left = self._waits = 1 if notified else min(self._waits + 1, _MOST_WAITS)
        with self.store.view.mutex:
            self._due = self.store.view.index.messages.queue(self.wanted.queue).next_due()


def _waiting(store: Store, queue: str) -> Callable[[float, float], bool]:
    """Return a function that waits until messages for the queue are committed.

    The function misses no commit since this call, or since its last call. It takes the number of seconds to wait, and
    the number of seconds to wait if the kernel cannot notify this process. It returns whether it was notified.
    """
    arrivals, notifier = store.shared.counters.arrivals, store.shared.notifier
    if arrivals.wakes:
        woken = arrivals.expect(queue)
        return lambda seconds, _: _wait(store, woken, seconds)
    seen = notifier.generation

    def listen(seconds: float, short: float) -> bool:
        nonlocal seen
        notified = notifier.wait(seen, seconds, seconds_without_inotify=short)
        seen = notifier.generation
        return notified

    return listen


def pause_seconds(view: View, clock: Clock, wanted: Wanted, short: float) -> float:
    """Return the seconds to wait for a notification after an attempt that claimed nothing.

    A message that a claim or a prepared branch holds can become free without a notification, because its holder may die
    or release a claim. So the next attempt follows after ``short`` seconds. A delayed message becomes due at a known
    time. Every other change is published, so the wait can be long. The limit of the wait lets the thread notice a lost
    notification, Ctrl-C, or a closed space.
    """
    if is_there(view, clock, wanted):
        return short
    with view.mutex:
        due = view.index.messages.queue(wanted.queue).next_due()
    return IDLE_SECONDS if due is None else max(short, min(IDLE_SECONDS, due - clock.now()))


# -- one message, by its id or correlation id --------------------------------------------------------------------------


def repeat_when_arrived(
    store: Store, sought: Collection[Sought], is_held: Callable[[], bool], look: Callable[[], T], deadline: Deadline
) -> T | None:
    """Repeat the attempt ``look`` until it returns something or the time is over; returns the last result.

    An attempt follows each arrival of a message that ``sought`` names. While another transaction holds a sought
    message, attempts are frequent, because the holder may die, or release the message without a commit.
    """
    arrived = threading.Event()
    if deadline.check is not None:
        deadline = deadline._replace(check=partial(_check_waiting, deadline.check))

    def pause_for(short: float) -> bool:
        if is_held():
            _sleep(store, short)
            return False
        _await_arrival(store, arrived, deadline)
        arrived.clear()
        return True

    with store.view.sought.entered(sought, arrived.set):
        for _ in deadline.polls(pause_for=pause_for):
            got = _attempt(look, deadline)
            if got:
                break
        return got


def _await_arrival(store: Store, arrived: threading.Event, deadline: Deadline) -> None:
    """Wait until ``SoughtMessages`` sets ``arrived`` or the time is over; listen if no other thread listens."""
    listener = store.view.sought.listener
    while not arrived.is_set() and (left := deadline.remaining()) > 0:
        seconds = min(IDLE_SECONDS, left)
        if listener.acquire(blocking=False):
            try:
                _listen(store, arrived, seconds)
            finally:
                listener.release()
        else:
            _wait(store, arrived.wait, seconds)
        if deadline.check is not None:
            deadline.check()


def _listen(store: Store, arrived: threading.Event, seconds: float) -> None:
    """Wake the threads whose messages have arrived, until the time is over or ``arrived`` is set.

    The caller is the listener.
    """
    sought, notifier = store.view.sought, store.shared.notifier
    deadline = Deadline(store.clock, seconds, store.clock.monotonic() + seconds)
    pause = POLL_MIN_SECONDS
    while not arrived.is_set() and (left := deadline.remaining()) > 0:
        notified = notifier.wait(sought.heard, left, seconds_without_inotify=min(BUSY_SECONDS, left))
        sought.heard = notifier.generation
        if wake_arrived(store, thorough=deadline.remaining() <= 0):
            pause = POLL_MIN_SECONDS
        elif notified:  # in a busy space, not every commit is worth a check
            store.clock.sleep(min(pause, deadline.remaining()))
            pause = min(2 * pause, BUSY_SECONDS)


def wake_arrived(store: Store, *, thorough: bool) -> bool:
    """Catch up, and wake the calls whose messages have arrived; returns whether any call was woken.

    ``thorough``: whether to resolve prepared branches whose coordinator died, since messages may then arrive. A
    thorough call also checks that this process and the others use the same files in ``run/``.
    """
    page = store.check_usable()
    settings = store.settings.current(page)
    catch_up(store, page)
    if thorough:
        resolve_orphans(store, store.deadline())
        store.shared.control.verify()
    with store.view.mutex:
        return store.view.sought.wake(store.view.index.messages, settings.config.queues)
