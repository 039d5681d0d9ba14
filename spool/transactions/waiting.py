"""Wait for messages: attempt a claim whenever a message may have become free.

``pauses`` decides when a call attempts again. ``repeat`` carries the attempts and the pauses out in a thread, and
``spool.aio.receiver`` carries them out in a task.

If several threads of a process wait for the head of one queue, only one of them attempts claims at a time. It sleeps on
shared memory. A thread that waits for a message by id or correlation id sleeps until it is woken, and so does a thread
that cannot sleep on shared memory. One of these threads listens for all of them (``spool.store.awaited``).
"""

import logging
import threading
from collections.abc import Callable, Collection, Generator
from functools import partial
from typing import NamedTuple, TypeVar

from spool.log.visibility import catch_up
from spool.runtime import call_guard
from spool.runtime.async_exceptions import only_waits
from spool.runtime.clock import POLL_MAX_SECONDS, POLL_MIN_SECONDS, Deadline, LockTimeout, WaitExpired
from spool.store.awaited import Awaited
from spool.store.store import Store
from spool.transactions.two_phase import resolve_orphans

log = logging.getLogger("spool")

T = TypeVar("T")

# The longest time between two attempts of a call that relies on notifications of commits.
IDLE_SECONDS = 0.1
# The same for a thread that sleeps on shared memory and was not notified for a time. The times grow up to this one,
# because each attempt costs a process the work to apply all new commits. So a thread notices a dead holder within a
# second, even if it omits an attempt because another process has just polled (``wakeup.POLLED_MILLISECONDS``).
UNHEARD_SECONDS = 0.75
# The longest time for which a thread waits without a check. Ctrl-C or a close can be delayed by this time.
LONGEST_SECONDS = 0.25
# The shortest time between two attempts of a call that was notified and claimed nothing.
BUSY_SECONDS = 0.002


class Pause(NamedTuple):
    """The time between two attempts: ``deaf`` seconds, then up to ``seconds``, which an arrival ends.

    is_idle: whether the pause ends without a reason for an attempt, so that the attempt is only a poll.
    """

    deaf: float
    seconds: float
    is_idle: bool


Pauses = Generator[Pause, bool | None, None]


def pauses(
    store: Store,
    head: str | None,
    is_held: Callable[[], bool],
    deadline: Deadline,
    *,
    shortest: float = POLL_MIN_SECONDS,
    slowest: float = POLL_MAX_SECONDS,
    longest: float = IDLE_SECONDS,
) -> Pauses:
    """Yield the pause after each attempt that took nothing. ``send`` takes whether an arrival ended the pause.

    No pause is longer than the deadline allows. The caller attempts once more when the deadline has passed.

    A message that a claim or a prepared branch holds can become free without a notification, because its holder may die
    or release a claim. So the next attempt follows soon. A delayed message becomes due at a known time. Every other
    change is published, so the pause can be long.

    Args:
        head: the queue, for a get of its head. None, for a get that only the arrival of one message can end.
        is_held: a function that returns whether such a message exists. After an attempt that took nothing, a message
            that exists is held by another transaction.
        shortest: the first pause while a message is held. The later ones grow up to ``slowest``.
        longest: the limit of a pause for the head of a queue, up to which the pauses grow.
    """
    short, long, arrived = shortest, IDLE_SECONDS, None
    while True:
        left = deadline.remaining()
        if head is None:
            deaf, seconds = (short, 0.0) if is_held() else (0.0, left)
        else:  # in a busy space, a call does not attempt a claim after every commit
            deaf, seconds = BUSY_SECONDS if arrived else 0.0, short if is_held() else long
            with store.view.mutex:
                due = store.view.index.messages.queue(head).next_due()
            if due is not None:
                seconds = max(short, min(seconds, due - store.clock.now()))
        deaf = min(deaf, left)
        is_idle = head is not None and seconds == long < left - deaf
        arrived = yield Pause(deaf, min(seconds, left - deaf), is_idle)
        short = shortest if arrived else min(1.5 * short, slowest)
        long = IDLE_SECONDS if arrived else min(1.5 * long, longest)


def repeat(
    store: Store, steps: Pauses, look: Callable[[bool], T], deadline: Deadline, listen: Callable[[float], bool]
) -> T | None:
    """Repeat the attempt ``look`` in this thread until it returns something or the time is over; return the last
    result.

    Args:
        look: a function with the argument ``is_poll``: whether the attempt has no reason, e.g. an arrival.
        listen: a function that waits for an arrival, for so many seconds, and returns whether a message arrived.
    """
    arrived, is_poll = None, False
    while not (got := attempt(partial(look, is_poll), deadline)) and deadline.remaining() > 0:
        pause = steps.send(arrived)
        if pause.deaf:
            _sleep(store, pause.deaf)
        check_waiting(deadline)
        until, arrived = store.deadline(pause.seconds), False
        while not arrived and (left := until.remaining()) > 0:
            arrived = bool(attempt(partial(listen, min(left, LONGEST_SECONDS)), deadline))
            check_waiting(deadline)
        is_poll = pause.is_idle and not arrived
    return got


def attempt(look: Callable[[], T], deadline: Deadline) -> T | None:
    """Attempt a claim, or listen. Return None if a lock of the space did not become free, and the caller waits longer
    than that. Nothing happened then."""
    try:
        return look()
    except (LockTimeout, WaitExpired) as error:
        if deadline.remaining() <= 0:
            raise
        log.warning("waiting for a message: %s", error)
        return None


def check_waiting(deadline: Deadline) -> None:
    """Run the handlers of pending signals, because this call only waits. Raise if waiting has become pointless."""
    call_guard.deliver_pending_signals()
    if deadline.check is not None:
        deadline.check()


_sleep: Callable[[Store, float], None] = only_waits(lambda store, seconds: store.clock.sleep(seconds))


@only_waits
def wait(store: Store, woken: Callable[[float], bool], seconds: float) -> bool:
    return store.clock.wait(woken, seconds)


def repeat_when_arrived(
    store: Store,
    awaited: Collection[Awaited],
    is_held: Callable[[], bool],
    look: Callable[[], T],
    deadline: Deadline,
    head: str | None = None,
) -> T | None:
    """Repeat the attempt ``look`` until it returns something or the time is over; return the last result.

    An attempt follows each arrival of a message that ``awaited`` names. ``head``: as for ``pauses``.
    """
    arrived = threading.Event()
    with store.view.awaited.entered(awaited, arrived.set):
        steps = pauses(store, head, is_held, deadline)
        return repeat(store, steps, lambda _: look(), deadline, partial(listen_for_all, store, arrived))


def listen_for_all(store: Store, arrived: threading.Event, seconds: float) -> bool:
    """Wait until ``AwaitedMessages`` sets ``arrived`` or the time is over; return whether it was set, and clear it.

    If no other thread listens, this thread wakes the calls whose messages arrive meanwhile.
    """
    awaited, notifier, pause = store.view.awaited, store.shared.notifier, POLL_MIN_SECONDS
    if awaited.listener.acquire(blocking=False):
        try:
            until = store.deadline(seconds)
            while not arrived.is_set() and (left := until.remaining()) > 0:
                notified = notifier.wait(awaited.heard, left)
                awaited.heard = notifier.generation
                if wake_arrived(store, thorough=until.remaining() <= 0):
                    pause = POLL_MIN_SECONDS
                elif notified:  # in a busy space, not every commit is worth a check
                    store.clock.sleep(min(pause, until.remaining()))
                    pause = min(2 * pause, BUSY_SECONDS)
        finally:
            awaited.listener.release()
    else:
        wait(store, arrived.wait, seconds)
    if not arrived.is_set():
        return False
    arrived.clear()
    return True


def wake_arrived(store: Store, *, thorough: bool) -> bool:
    """Catch up, and wake the calls whose messages have arrived; returns whether any call was woken.

    ``thorough``: whether to resolve prepared branches whose coordinator died, since messages may then arrive. A
    thorough call also checks that this process and the others use the same files in ``run/``.
    """
    page = store.shared.counters.read()
    settings = store.settings.current(page)
    catch_up(store, page)
    if thorough:
        resolve_orphans(store, store.deadline())
        store.shared.control.verify()
    with store.view.mutex:
        return store.view.awaited.wake(store.view.index.messages, settings.config.queues)
