"""Arrivals for event loops: a descriptor that becomes readable when messages of some queues may have become free.

One thread of the process watches for all such descriptors of all open spaces, because the kernel limits the inotify
instances of a user. The kernel notifies the thread of each commit. The thread then compares the words of its queues in
shared memory, so only commits with messages of a queue make a descriptor readable. A released claim changes the word,
but notifies no thread, and a dead holder of a claim does neither. So while all messages of a queue are claimed, the
thread also checks ten times a second whether a claim is free. It does not know why a message became free: a get decides
whether the message can be taken.
"""

import logging
import os
import select
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from itertools import islice

from spool.disk import kernel
from spool.errors import Argument, InvalidArgument, NotOpen, SpaceStopped, SpoolError
from spool.log.visibility import catch_up
from spool.model.layout import COUNTERS
from spool.runtime import call_guard
from spool.runtime.call_guard import public_call
from spool.runtime.closing import Closing
from spool.runtime.greenlets import check_threads
from spool.runtime.pickling import refuse_pickling
from spool.store.store import Store
from spool.transactions.validation import check_queue
from spool.transactions.waiting import BUSY_SECONDS

_HELD_SECONDS = 0.1  # the time between two checks while all messages of a queue are claimed
_IDLE_SECONDS = 1.0  # the same while the queues have no message, since each commit ends this pause
_UNNOTIFIED_SECONDS = 0.02  # the same if the kernel cannot notify this process of commits
_MOST_CLAIMS = 256  # claims that one check of a queue examines; if all of them are held, a get examines the rest


log = logging.getLogger("spool")


class QueueArrivals(Closing):
    """A descriptor that is readable while messages of some queues may be free: see ``Space.arrivals``."""

    __reduce_ex__ = refuse_pickling
    _event = -1

    def __init__(self, store: Store, queues: Iterable[str]) -> None:
        """Applications call ``Space.arrivals`` instead. The caller is inside a public call."""
        check_threads()
        if isinstance(queues, str):
            raise InvalidArgument(Argument("queues"), f" are names of queues, e.g. [{queues!r}], not one text")
        self._store = store
        self._mutex = threading.Lock()
        self._ready = set(queues)
        if not self._ready:
            raise InvalidArgument(Argument("queues"), " names no queue: name at least one")
        page = store.check_usable()
        for queue in self._ready:
            check_queue(store.settings, queue, page)
        wakeups = store.shared.counters.wakeups
        self._words = {queue: wakeups.watch(queue) for queue in self._ready}
        self._published = page.published
        self._check_at = 0.0
        self._watch: int | None = None  # the number of the kernel's watch of this space, once the thread has one
        self._event = os.eventfd(1, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # readable: each queue may have messages now

    def fileno(self) -> int:
        """Return the descriptor, for ``select`` or an event loop. Only ``ready`` reads it.

        Raises NotOpen after ``close``, and in a forked child.
        """
        return self._opened()

    @public_call("waiting for messages")
    def ready(self) -> set[str]:
        """Return the queues that may have messages now, and clear the descriptor. The call does not wait.

        A get of a returned queue may find no message. But no message is missed: if a message becomes free after this
        call, the descriptor becomes readable again. The first call returns all queues.

        Raises:
            NotOpen, SpaceStopped: no message will arrive any more.
        """
        self._store.check_usable()
        with self._mutex:
            with suppress(BlockingIOError):
                os.eventfd_read(self._opened())
            found, self._ready = self._ready, set()
        return found

    @public_call("looking for delayed messages")
    def next_due(self) -> float | None:
        """Return the seconds until the next delayed message of the queues is due; None if no message is delayed.

        The descriptor becomes readable at that time, so no caller needs this number for its waits.
        """
        self._opened()
        catch_up(self._store)
        due = self._next_due()
        return None if due is None else max(0.0, due - self._store.clock.now())

    def wake(self) -> None:
        """Make the descriptor readable for all queues, e.g. because the program can take messages again.

        Any thread may call this method. It has no effect after ``close``, and in a forked child.
        """
        if len(self._ready) < len(self._words):  # (otherwise the descriptor is readable already)
            with call_guard.deferred():
                self._announce(set(self._words))

    def close(self) -> None:
        """Close the descriptor. Remove it from a loop before."""
        with call_guard.deferred(), self._mutex:
            self._close_event()
        _watcher.wake()

    def _close_event(self) -> None:
        event, self._event = self._event, -1
        if event >= 0:
            os.close(event)

    __del__ = _close_event  # (without the mutex, because Python may call this between any two instructions)

    def __repr__(self) -> str:
        return f"<arrivals in {', '.join(sorted(self._words))} of {self._store.files.disk.root}>"

    def _opened(self) -> int:
        if self._event < 0:
            raise NotOpen("the arrivals are closed: call arrivals of the space again")
        return self._event

    # -- for the thread that watches ----------------------------------------------------------------------------------

    def _disown(self) -> None:
        """Close the copy of the descriptor in a forked child. Another thread of the parent may have held the mutex."""
        self._mutex = threading.Lock()
        self._close_event()

    def _check_again(self) -> float:
        """Make the descriptor readable if messages may have become free; return the seconds until the next check."""
        try:
            return self._check()
        except Exception as error:  # (if the thread ended, no arrivals would be noticed any more)
            if not isinstance(error, NotOpen | SpaceStopped):
                log.warning("arrivals of messages could not be checked: %s", error)
            self._announce(set(self._words))  # the next call of ``ready``, or a get, raises the error
            return _IDLE_SECONDS

    @public_call("waiting for messages")
    def _check(self) -> float:
        page = self._store.shared.counters.read()
        changed = {queue for queue, has_changed in self._words.items() if has_changed()}
        is_new, self._published = page.published != self._published, page.published
        self._announce(changed)
        now = time.monotonic()
        if is_new or changed:  # (a process may die before it changes the words, or may share no memory)
            self._check_at = min(self._check_at, now + _HELD_SECONDS)
        if now >= self._check_at:
            self._check_at = now + self._look()
        return self._check_at - now

    def _look(self) -> float:
        """Announce messages that became free without a notification; return the seconds until the next check."""
        catch_up(self._store)
        free, held = set(), bool(self._ready)
        for queue in self._words.keys() - self._ready:
            found = self._is_free(queue)
            held |= found is not None
            if found:
                free.add(queue)
        self._announce(free)
        if held:
            return _HELD_SECONDS
        due = self._next_due()
        return _IDLE_SECONDS if due is None else max(0.0, min(_IDLE_SECONDS, due - self._store.clock.now()))

    def _is_free(self, queue: str) -> bool | None:
        """Return whether the queue has a message that no process has claimed; None if no message is due.

        A message of a prepared branch or of a locked group counts as free: a get examines it.
        """
        store = self._store
        with store.view.mutex:
            runs = store.view.index.messages.in_order(queue, store.clock.now())
            places = [*islice(((run.number, ordinal) for run in runs for ordinal in run.ordinals), _MOST_CLAIMS)]
        if not places:
            return None
        return len(places) == _MOST_CLAIMS or not all(store.shared.claims.is_claimed(*place) for place in places)

    def _next_due(self) -> float | None:
        """Return when the next delayed message is due, in seconds since the epoch."""
        with self._store.view.mutex:
            queues = self._store.view.index.messages.queues
            dues = [queues[queue].next_due() for queue in self._words if queue in queues]
        return min((due for due in dues if due is not None), default=None)

    def _announce(self, queues: set[str]) -> None:
        with self._mutex:
            if self._event >= 0 and not queues <= self._ready:
                self._ready |= queues
                os.eventfd_write(self._event, 1)


class _Watcher:
    """The thread that watches for all arrivals of this process. The thread ends when the last arrivals are closed."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._watched: list[tuple[weakref.ref[QueueArrivals], Callable[[], None]]] = []
        self._runs = False
        self._woken = -1
        self._notifier: int | None = None
        self._watches: set[int] = set()

    def add(self, arrivals: QueueArrivals) -> None:
        """Watch for these arrivals until they are closed or dropped, and show them as consumers. The caller is inside a
        public call."""
        queues, consumers = tuple(arrivals._words), arrivals._store.meters.consumers
        arrivals._store.at_end[self.wake] = None
        consumers.serve(queues, 1)
        with self._mutex:
            self._watched.append((weakref.ref(arrivals), partial(consumers.serve, queues, -1)))
            if not self._runs:
                self._woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
                threading.Thread(target=self._run, name="spool-arrivals", daemon=True).start()
                self._runs = True
        self.wake()

    def wake(self) -> None:
        """Let the thread check all arrivals now."""
        with call_guard.deferred(), self._mutex:
            if self._runs:
                os.eventfd_write(self._woken, 1)

    def disown(self) -> None:
        """Close the copies of all descriptors in a forked child, in which the thread does not exist."""
        for arrivals in filter(None, [reference() for reference, _ in self._watched]):
            arrivals._disown()
        self._close()

    def _run(self) -> None:
        notified = False
        while (seconds := self._check_all()) is not None:
            if notified:  # a process stores the number of its commit, which notifies this one, before it changes words
                time.sleep(BUSY_SECONDS)  # (in a busy space, not every commit is worth a check)
                notified = False
            else:
                notified = self._wait(seconds)

    def _wait(self, seconds: float) -> bool:
        """Wait until the kernel or another thread notifies this thread, or the time is over; return whether it did."""
        poll = select.poll()
        for handle in (self._woken, self._notifier):
            if handle is not None:
                poll.register(handle, select.POLLIN)
        found = poll.poll(1000 * seconds)
        for handle, _ in found:
            with suppress(BlockingIOError):
                os.read(handle, kernel.EVENTS_BYTES)
        return bool(found)

    def _check_all(self) -> float | None:
        """Check all arrivals; return the seconds until the next check, or None if no arrivals are left."""
        with self._mutex:
            found, kept, ended = [], [], []
            for reference, end in self._watched:
                if (arrivals := reference()) is not None and arrivals._event >= 0:
                    found.append(arrivals)
                    kept.append((reference, end))
                else:
                    ended.append(end)
            self._watched = kept
            if not found:
                self._runs = False
                self._close()
        for end in ended:
            end()
        if not found:
            return None
        has_all = self._follow(found)
        seconds = min(arrivals._check_again() for arrivals in found)
        return seconds if has_all else min(seconds, _UNNOTIFIED_SECONDS)

    def _follow(self, found: list[QueueArrivals]) -> bool:
        """Watch the spaces of these arrivals, and no others; return whether the kernel grants all watches."""
        with suppress(OSError):
            if self._notifier is None:
                self._notifier = kernel.new_notifier()
        for arrivals in found:
            if self._notifier is not None and arrivals._watch is None and not arrivals._store.closed:
                with suppress(OSError, SpoolError):
                    arrivals._watch = arrivals._store.files.disk.watch_with(self._notifier, COUNTERS)
        wanted = {arrivals._watch for arrivals in found if arrivals._watch is not None}
        if self._notifier is not None:
            for watch in self._watches - wanted:
                kernel.remove_watch(self._notifier, watch)
        self._watches = wanted
        return all(arrivals._watch is not None or arrivals._store.closed for arrivals in found)

    def _close(self) -> None:
        for handle in (self._woken, self._notifier):
            if handle is not None and handle >= 0:
                os.close(handle)
        self._woken, self._notifier, self._watches = -1, None, set()


_watcher = _Watcher()


def arrivals_in(store: Store, queues: Iterable[str]) -> QueueArrivals:
    """Return new arrivals, for which the thread of this process watches."""
    arrivals = QueueArrivals(store, queues)
    _watcher.add(arrivals)
    return arrivals


def _disown() -> None:
    global _watcher
    _watcher.disown()
    _watcher = _Watcher()


os.register_at_fork(after_in_child=_disown)
