"""Claiming messages: choose what looks free, lock it, look again, and wait for messages that are to come.

The second look keeps rule 4 of docs/architecture.md: a claim counts only if the message is still free once everything
is known that was published, or prepared, before the claim was locked.
"""

import threading
from collections.abc import Callable

from spool.coordination.claims import Claims
from spool.coordination.counters import Page
from spool.errors import MessageInUse
from spool.log.visibility import catch_up, list_prepared, revalidate
from spool.model.position import PositionRanges, positions, subtract
from spool.policies.claim_journal import OrphanReaper
from spool.policies.expiry import expire
from spool.runtime import interrupts
from spool.runtime.clock import Clock, Deadline
from spool.store.parts import View
from spool.store.store import Store
from spool.transactions.resolution import resolve_orphans
from spool.transactions.selection import (
    GroupLocks,
    PositionSet,
    Wanted,
    candidates,
    groups_of,
    is_there,
    still_there,
)

# The longest time that a waiting thread relies on notifications alone. Ctrl-C, and closing the space, wait as long.
IDLE_SECONDS = 0.1
# The shortest time between two attempts of a thread that was notified and found nothing.
BUSY_SECONDS = 0.002


def claim(
    store: Store,
    reaper: OrphanReaper,
    wanted: Wanted,
    page: Page,
    deadline: Deadline,
    journal: Callable[[PositionRanges], None],
    groups: GroupLocks,
) -> PositionRanges:
    """Claim messages that are free, in the queue's order.

    Args:
        page: the counters, just read.
        journal: called with claims as soon as they are locked.
        groups: the group locks of the transaction; those of claimed messages stay locked.

    Returns:
        The claims; [] if there is nothing free now.

    Raises:
        MessageInUse: the message was asked for by id, and another transaction holds it.
    """
    store.view.follows = True
    catch_up(store, page)
    list_prepared(store, page)  # without it, messages of a branch that was rolled back since would look held
    queue = store.view.index.messages.queues.get(wanted.queue)
    if queue is not None and queue.expiring:
        expire(store, wanted.queue, deadline)
    skip: PositionSet = set(wanted.passed)
    before, kept = tuple(groups.names), PositionRanges()
    try:
        while not kept:
            got = _claim_free(store.shared.claims, store.view, store.clock, wanted, skip, groups)
            if got:
                kept = _confirm(store, reaper, wanted, got, deadline, journal, groups)
                continue
            seen = store.view.index.applied
            # Prepared branches of a coordinator that died held messages, or a commit came during the attempt.
            if resolve_orphans(store, deadline) or store.view.index.applied > seen:
                continue
            if wanted.message_id is not None and is_there(store.view, store.clock, wanted):
                raise MessageInUse(f"message {wanted.message_id} is held by another transaction: try again later")
            return []
        return kept
    finally:
        if groups.names:
            with store.view.mutex:
                groups.release(but={*before, *groups_of(store.view, kept)})


def _claim_free(
    claims: Claims, view: View, clock: Clock, wanted: Wanted, skip: PositionSet, groups: GroupLocks
) -> PositionRanges:
    """Lock at most as many messages as are wanted, past those that are held; add all that were tried to ``skip``."""
    got: PositionRanges = []
    missing = wanted.count
    try:
        with view.mutex:
            while missing and (tried := candidates(claims, view, clock, wanted, missing, skip, groups)):
                for number, first, count in tried:
                    locked = claims.claim(number, first, count)
                    got += [(number, piece, length) for piece, length in locked]
                    missing -= sum(length for _, length in locked)
                if missing:
                    skip.update(positions(tried))
    except BaseException:
        release(claims, got)
        raise
    return got


def _confirm(
    store: Store, reaper: OrphanReaper, wanted: Wanted, got: PositionRanges, deadline: Deadline,
    journal: Callable[[PositionRanges], None], groups: GroupLocks,
) -> PositionRanges:  # fmt: skip
    """Look again at locked messages (rule 4): return those that are free, release the others."""
    try:
        journal(got)
        for number in {number for number, _, _ in got}:
            reaper.count_orphans_tries(number, deadline)
        revalidate(store, deadline)
        with store.view.mutex:
            kept = still_there(store.view, store.clock, wanted, got, groups)
    except BaseException:
        release(store.shared.claims, got)
        raise
    if kept != got:
        release(store.shared.claims, subtract(got, kept))
    return kept


def release(claims: Claims, ranges: PositionRanges) -> None:
    """Release exactly these claims, and nothing that lies between them."""
    for number, first, count in ranges:
        claims.release(number, first, count)


# -- waiting ----------------------------------------------------------------------------------------------------------


def wait_for(
    store: Store, wanted: Wanted, attempt: Callable[[], PositionRanges], deadline: Deadline, groups: GroupLocks,
    check: Callable[[], object],
) -> PositionRanges:  # fmt: skip
    """Repeat an attempt until it claims something or the deadline passes.

    Of the threads of this process that wait for one queue, one at a time repeats its attempts; the others wait for its
    lock, so that a commit wakes one thread and not all. ``check`` is called meanwhile; it raises if waiting has become
    pointless.
    """
    got = attempt()
    if got or deadline.remaining() <= 0:
        return got
    if groups.names:  # what comes may be free for this transaction alone: it looks for itself
        return _repeat(store, wanted, attempt, deadline)
    polling = store.view.polling.setdefault(wanted.queue, threading.Lock())
    while not polling.acquire(timeout=min(IDLE_SECONDS, deadline.remaining())):
        interrupts.deliver_pending_signals()
        check()
        if deadline.remaining() <= 0:
            return attempt()
    try:
        return _repeat(store, wanted, attempt, deadline)
    finally:
        polling.release()


def _repeat(store: Store, wanted: Wanted, attempt: Callable[[], PositionRanges], deadline: Deadline) -> PositionRanges:
    """Attempt when something was published, and now and then, since not every message that becomes free is published,
    and a notification may be lost."""
    notifier = store.shared.notifier
    seen, notified = notifier.generation, False

    def pause_for(short: float) -> bool:
        nonlocal seen, notified
        if notified:  # and nothing was free: in a busy space, not every commit is worth an attempt of every waiter
            store.clock.sleep(min(BUSY_SECONDS, deadline.remaining()))
        seconds = min(pause_seconds(store.view, store.clock, wanted, short), deadline.remaining())
        notified = notifier.wait(seen, seconds, seconds_without_inotify=short)
        seen = notifier.generation
        return notified

    for _ in deadline.polls(pause_for=pause_for):
        got = attempt()
        if got:
            return got
    return []


def pause_seconds(view: View, clock: Clock, wanted: Wanted, short: float) -> float:
    """Return how many seconds to wait for a notification after an attempt that claimed nothing.

    A message that is there, but held by a claim or a prepared branch, can become free without one: its holder dies, or
    releases what it has only looked at. So the next attempt comes after ``short`` seconds. A delayed message becomes
    due at a known time. Everything else is published: then the wait is long, and its end matters only for a lost
    notification, Ctrl-C and a closed space.
    """
    if is_there(view, clock, wanted):
        return short
    with view.mutex:
        due = None if wanted.by_key else view.index.messages.queue(wanted.queue).next_due()
    return IDLE_SECONDS if due is None else max(short, min(IDLE_SECONDS, due - clock.now()))
