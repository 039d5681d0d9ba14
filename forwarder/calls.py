"""The calls of a service by one task: side by side in threads, or one after the other in the task's own thread."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from types import TracebackType
from typing import Generic, TypeVar

from forwarder.services.service import MAX_REPLY, Caller, Request, Service
from spool.workers.outcome import Outcome, of_error

Key = TypeVar("Key")


def threads_of(service: Service) -> int:
    """Return the most calls of a service that one process may make at a time."""
    return service.threads if service.watched is None else 1


class ServiceThreads:
    """The threads in which a worker process calls one service, for all its tasks.

    Args:
        caller: the opened service.
        threads: the most calls at a time. If this is 1, the thread that begins a call also makes the call.
    """

    def __init__(self, caller: Caller, threads: int) -> None:
        self.caller = caller
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads, "spool-call") if threads > 1 else None

    def begin(self, request: Request, done: Callable[[Outcome | BaseException], object]) -> None:
        """Begin a call. The thread of the call later passes the outcome, or the exception, to `done`."""
        if self._pool is None:
            done(self._call(request))
        else:
            self._pool.submit(lambda: done(self._call(request)))

    def _call(self, request: Request) -> Outcome | BaseException:
        try:
            return self.caller(request)
        except KeyboardInterrupt as error:  # Ctrl-C also reaches this process, and ends the task
            return error
        except BaseException as error:  # also SystemExit, so that a service cannot end the task
            return of_error(error, MAX_REPLY)


class Calls(Generic[Key]):
    """The calls of one task. ``wait`` returns the calls in the order in which the calls end.

    The exit of the context manager waits for all calls, because a program cannot end a thread.

    Args:
        on_end: called with the key of a call as soon as the call has ended, in the thread of the call.

    under_way: the number of calls that `wait` has not yet returned.
    """

    def __init__(self, threads: ServiceThreads, on_end: Callable[[Key], object] = lambda key: None) -> None:
        self._threads = threads
        self._on_end = on_end
        self._ended: SimpleQueue[tuple[Key, Outcome | BaseException]] = SimpleQueue()
        self.under_way = 0

    @property
    def is_full(self) -> bool:
        """Whether a call has to end before another may begin."""
        return self.under_way >= self._threads.threads

    def begin(self, key: Key, request: Request) -> None:
        """Begin a call; ``wait`` later returns the key and the outcome of the call."""

        def end(ended: Outcome | BaseException) -> None:
            try:
                self._on_end(key)
            finally:  # otherwise `wait` would never return
                self._ended.put((key, ended))

        self._threads.begin(request, end)
        self.under_way += 1

    def wait(self) -> tuple[Key, Outcome]:
        """Wait until a call ends; return its key and outcome, or raise its exception."""
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
