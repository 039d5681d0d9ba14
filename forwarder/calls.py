"""The calls of a service that are under way at a time: each in a thread, or one after the other in the caller's own."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from types import TracebackType
from typing import Generic, TypeVar

from forwarder.services.service import MAX_REPLY, Caller, Request, Service
from spool.workers.outcome import Outcome, of_error

Key = TypeVar("Key")


def threads_of(service: Service) -> int:
    """Return how many calls of a service one process may have under way at a time."""
    return service.threads if service.watched is None else 1


class ServiceThreads:
    """The threads in which a worker process calls one service; they stay from task to task.

    Args:
        caller: the opened service.
        threads: how many calls may be under way at a time. With one, calls are made in the thread that begins them.
    """

    def __init__(self, caller: Caller, threads: int) -> None:
        self.caller = caller
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads, "spool-call") if threads > 1 else None

    def begin(self, request: Request, done: Callable[[Outcome | BaseException], object]) -> None:
        """Begin a call; `done` gets what it came to, or raised, when it has ended, in the thread that made the call."""
        if self._pool is None:
            done(self._call(request))
        else:
            self._pool.submit(lambda: done(self._call(request)))

    def _call(self, request: Request) -> Outcome | BaseException:
        try:
            return self.caller(request)
        except KeyboardInterrupt as error:  # Ctrl-C reaches this process, too: the task ends
            return error
        except BaseException as error:  # SystemExit, too: a service that gives up does not end the task
            return of_error(error, MAX_REPLY)


class Calls(Generic[Key]):
    """The calls of one task: begun one by one, and waited for in the order in which they end.

    As a context manager it ends when all calls have ended: a thread cannot be ended, and what it does counts.

    Args:
        on_end: called with a call's key as soon as the call has ended, in the thread that made it.

    under_way: the calls that were begun and whose end `wait` has not told.
    """

    def __init__(self, threads: ServiceThreads, on_end: Callable[[Key], object] = lambda key: None) -> None:
        self._threads = threads
        self._on_end = on_end
        self._ended: SimpleQueue[tuple[Key, Outcome | BaseException]] = SimpleQueue()
        self.under_way = 0

    @property
    def is_full(self) -> bool:
        """Whether a call has to end before the next one may begin."""
        return self.under_way >= self._threads.threads

    def begin(self, key: Key, request: Request) -> None:
        """Begin a call; `key` is what `wait` names it by."""

        def end(ended: Outcome | BaseException) -> None:
            try:
                self._on_end(key)
            finally:  # or `wait` would wait for ever
                self._ended.put((key, ended))

        self._threads.begin(request, end)
        self.under_way += 1

    def wait(self) -> tuple[Key, Outcome]:
        """Wait until a call ends; return its key and what it came to, or raise what it raised."""
        key, ended = self._ended.get()
        self.under_way -= 1
        if isinstance(ended, BaseException):
            raise ended
        return key, ended

    def __enter__(self) -> "Calls[Key]":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        while self.under_way:
            self._ended.get()
            self.under_way -= 1
