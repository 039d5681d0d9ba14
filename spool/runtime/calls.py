"""The calls of an open space: they end before its descriptors do, and SIGINT comes between two of them.

``with guard:`` is one call. A closed guard lets no call begin, and tells those that wait inside to leave. The files are
closed by the last call that ends, so no thread ever uses a descriptor's number that belongs to another file by then.
No lock guards the table of calls: a thread that begins one writes itself down and then looks whether the guard is
closed; a thread that closes it says so and then looks which calls are inside.
"""

import inspect
import logging
import threading
from collections.abc import Callable
from functools import wraps
from typing import NoReturn, ParamSpec, Protocol, TypeVar

from spool.errors import NotOpen
from spool.runtime import interrupts
from spool.runtime.interrupts import is_torn_by, uninterruptible

log = logging.getLogger("spool")

P = ParamSpec("P")
T = TypeVar("T")


class CallGuard:
    """Which threads are inside a call of an open space. ``shut`` is called once: when the guard is closed and no thread
    is inside."""

    def __init__(self, shut: Callable[[], None]) -> None:
        self.closed = False
        self.abandoned = False  # not even the calls inside can do anything more
        self.because = "the space is closed: open it again"
        self._shut = shut
        self._inside: dict[int, int] = {}
        self._once = threading.Lock()
        self._is_shut = threading.Event()

    def check(self) -> None:
        """Raise NotOpen if the space is closed: for calls that begin, and for those that wait inside."""
        if self.closed:
            raise NotOpen(self.because)

    @uninterruptible
    def __enter__(self) -> None:
        me = threading.get_ident()
        depth = self._inside.get(me)
        if depth:
            self._inside[me] = depth + 1
            return
        if self.closed:
            self.check()
        interrupts.enter()
        self._inside[me] = 1
        if self.closed:  # since the look before
            self.__exit__(None, None, None)
            self.check()

    @uninterruptible
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        me = threading.get_ident()
        depth = self._inside.get(me, 0)
        if depth > 1:
            self._inside[me] = depth - 1
            return
        try:
            if depth:
                if error is not None and is_torn_by(error):
                    self._tear(error)
                self._inside.pop(me, None)
                if self.closed:
                    self._shut_if_last()
            elif error is None or isinstance(error, Exception):  # a child that was forked inside a call
                raise NotOpen(self.because) from error
        finally:
            interrupts.leave()

    def _tear(self, error: BaseException) -> None:
        if not self.closed:
            self.because = f"{type(error).__name__} interrupted a call: open the space again, which recovers it"
            self.closed = True
            log.error("%s", self.because)

    def end(self) -> None:
        """Let no call begin any more."""
        self.closed = True
        self._shut_if_last()

    def close(self) -> None:
        """Let no call begin any more, and wait for those inside; a thread that is inside itself does not wait."""
        self.end()
        if threading.get_ident() not in self._inside:
            self._is_shut.wait()

    def close_at_once(self, because: str) -> None:
        """Close in a forked child, where no thread is inside any more."""
        if not self._is_shut.is_set():
            self.because = because
            self.closed = self.abandoned = True
            self._inside.clear()
            self._once = threading.Lock()
            self._is_shut = threading.Event()
            self._shut_if_last()

    @uninterruptible
    def _shut_if_last(self) -> None:
        if self.closed and not self._inside and self._once.acquire(blocking=False):
            try:
                self._shut()
            finally:
                self._is_shut.set()


class GuardedStore(Protocol):
    """An open space, as far as the calls of its objects know it."""

    guard: CallGuard

    def fail(self, doing: str, error: OSError) -> NoReturn:
        """Raise the operating system's error as the caller is to see it."""


class PartOfSpace(Protocol):
    """An object of an open space: a transaction, say."""

    _store: GuardedStore


def public_call(doing: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a method that applications call, of an object with a ``_store``.

    During the call the space is not closed and SIGINT is deferred; an error of the operating system is raised as the
    library's own.

    ``doing``: begins the error's text; names in braces are arguments of the call.
    """

    def around(method: Callable[P, T]) -> Callable[P, T]:
        @wraps(method)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            owner: PartOfSpace = args[0]  # type: ignore[assignment]
            store = owner._store
            if threading.get_ident() in store.guard._inside:  # it is part of another call
                try:
                    return method(*args, **kwargs)
                except OSError as error:
                    store.fail(_filled(doing, method, args, kwargs), error)
            with store.guard:
                try:
                    return method(*args, **kwargs)
                except OSError as error:
                    store.fail(_filled(doing, method, args, kwargs), error)

        return call

    return around


def _filled(doing: str, method: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> str:
    return doing.format_map(inspect.signature(method).bind(*args, **kwargs).arguments)
