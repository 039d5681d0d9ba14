"""The consumers of this process: the queues whose messages its programs take. The meters show them to other processes.

A worker, a route and arrivals serve a queue from their begin to their end. A get serves a queue while it waits, and for
``_KEPT_SECONDS`` afterwards, because most programs handle the message and then wait again. A get that does not wait
notes nothing, so it costs nothing.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from spool.format.writer import writer_name
from spool.runtime.clock import Clock

CONSUMER = "consumer"
"""The name of the state of a consumer. Its labels are the queue, the process, the program, and the time of the begin in
whole seconds since the epoch. Its value is the number of threads, tasks and calls that serve the queue."""

_KEPT_SECONDS = 30.0


@dataclass(slots=True)
class _Service:
    """A queue that this process serves.

    threads: of workers, routes and arrivals. waiting: the number of waiting gets. since: when the service began, in
    seconds since the epoch. seen: when the last get waited, in seconds of the monotonic clock.
    """

    since: float
    threads: int = 0
    waiting: int = 0
    seen: float = float("-inf")


class Consumers:
    """The consumers of this process in one open space. Any thread may call any method."""

    def __init__(self, clock: Clock, share: Callable[[], None]) -> None:
        """``share``: called after a begin or an end, to show the consumers to other processes."""
        self._clock, self._share = clock, share
        self._served: dict[str, _Service] = {}
        self._mutex = threading.Lock()

    def serve(self, queues: Iterable[str], threads: int) -> None:
        """Begin to serve queues with so many threads; with a negative number, end this."""
        with self._mutex:
            for queue in queues:
                self._service(queue).threads += threads
        self._share()

    @contextmanager
    def waiting(self, queue: str) -> Iterator[None]:
        """Serve a queue while a get waits in the block. Other processes see this within seconds."""
        with self._mutex:
            self._service(queue).waiting += 1
        try:
            yield
        finally:
            with self._mutex:
                service = self._service(queue)
                service.waiting -= 1
                service.seen = self._clock.monotonic()

    def _service(self, queue: str) -> _Service:
        """Return the service of a queue. Caller holds the mutex."""
        if (found := self._served.get(queue)) is None:
            found = self._served[queue] = _Service(self._clock.now())
        return found

    def states(self) -> dict[tuple[str, ...], int]:
        """Return the states of the consumers, and forget the services that have ended."""
        writer, after = writer_name(), self._clock.monotonic() - _KEPT_SECONDS
        labels = str(writer["pid"]), str(writer["program"])
        with self._mutex:
            self._served = {
                queue: each
                for queue, each in self._served.items()
                if each.threads > 0 or each.waiting > 0 or each.seen > after
            }
            return {
                (CONSUMER, queue, *labels, f"{each.since:.0f}"): max(1, each.threads or each.waiting)
                for queue, each in self._served.items()
            }

    def disown(self) -> None:
        """Forget the consumers of the parent in a forked child. Another thread of the parent may have held the
        mutex."""
        self._mutex, self._served = threading.Lock(), {}
