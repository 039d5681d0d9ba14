"""The messages for which calls of this process wait, each by its id, its correlation id, or as the head of a queue.

A call registers the message for which it waits, with a function that wakes the call. One of the waiting calls listens
for all of them. After each notification the listening call catches up and calls ``AwaitedMessages.wake``, which
searches the messages in memory. So a commit wakes only the calls whose messages may have arrived.
"""

import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from spool.index.lookup import MessageTable


class Awaited(NamedTuple):
    """One message of a queue, by its id (branch id and ordinal in the branch) or by its correlation id; or any message
    of the queue."""

    queue: str
    id: tuple[bytes, int] | None
    correlation_id: str | None = None


class AwaitedMessages:
    """The messages for which calls of one open space wait.

    mutex: the mutex of the view.
    listener: the lock of the one call that listens for all.
    heard: the generation of the notifier at the listener's last search.
    """

    def __init__(self, mutex: threading.RLock) -> None:
        self.listener = threading.Lock()
        self.heard = -1
        self._mutex = mutex
        self._wakes: dict[Awaited, list[Callable[[], object]]] = {}
        self._searched: Callable[[], MessageTable | None] = lambda: None
        self._segments_added = 0

    @contextmanager
    def entered(self, awaited: Collection[Awaited], wake: Callable[[], object]) -> Iterator[None]:
        """While the body runs, ``wake`` is called each time when one of these messages may have arrived.

        ``wake`` must not wait.
        """
        with self._mutex:
            for one in awaited:
                self._wakes.setdefault(one, []).append(wake)
        try:
            yield
        finally:
            with self._mutex:
                for one in awaited:
                    wakes = self._wakes[one]
                    wakes.remove(wake)
                    if not wakes:
                        del self._wakes[one]
                if not self.listener.locked():  # this call may have been the listener: another call takes its place
                    _call(next(iter(self._wakes.values()), [])[:1])

    def wake(self, messages: MessageTable, queues: Collection[str]) -> bool:
        """Wake each call whose message exists, or whose queue is not in ``queues``, the queues of the space.

        Caller holds the mutex. Returns whether any call was woken. A search of compacted messages would read their
        files, so after a compaction every call is woken to search once.
        """
        if self._searched() is not messages or self._segments_added != messages.segments_added:
            self._searched, self._segments_added = weakref.ref(messages), messages.segments_added
            self.wake_all()
            return bool(self._wakes)
        found = [
            wakes
            for awaited, wakes in self._wakes.items()
            if awaited.queue not in queues or messages.is_in_memory(awaited.queue, awaited.id, awaited.correlation_id)
        ]
        for wakes in found:
            _call(wakes)
        return bool(found)

    def wake_all(self) -> None:
        """Wake every call. Each call then searches by itself, and gets the error if no call can listen any more."""
        with self._mutex:
            for wakes in self._wakes.values():
                _call(wakes)


def _call(wakes: Iterable[Callable[[], object]]) -> None:
    for wake in wakes:
        wake()
