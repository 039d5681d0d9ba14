"""Who is inside a call of an open space: calls end before its descriptors do.

``with gate:`` is one step. A closed gate lets nobody in any more and tells those who wait inside to leave. The files
are closed by the last one out, so no thread ever uses a descriptor's number that belongs to another file by then.

No lock guards the table: who comes in writes himself down and then looks whether the gate is closed, who closes it says
so and then looks who is inside.
"""

import inspect
import logging
import threading
from collections.abc import Callable
from functools import wraps
from typing import NoReturn, ParamSpec, Protocol, TypeVar

from spool.errors import NotOpen
from spool.runtime import interrupts

log = logging.getLogger("spool")

P = ParamSpec("P")
T = TypeVar("T")


class Gate:
    """``shut`` is called once: when the gate is closed and nobody is inside."""

    def __init__(self, shut: Callable[[], None]) -> None:
        self.closed = False
        self.abandoned = False  # not even those inside can do anything more
        self.because = "the space is closed: open it again"
        self._shut = shut
        self._inside: dict[int, int] = {}
        self._once = threading.Lock()
        self._is_shut = threading.Event()

    def check(self) -> None:
        """NotOpen if the space is closed; for those who come, and for those who wait inside."""
        if self.closed:
            raise NotOpen(self.because)

    @interrupts.whole
    def __enter__(self) -> None:
        me = threading.get_ident()
        depth = self._inside.get(me)
        if depth:
            self._inside[me] = depth + 1
            return
        self.check()
        interrupts.enter()
        self._inside[me] = 1
        if self.closed:  # since the check
            self.__exit__(None, None, None)
            self.check()

    @interrupts.whole
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        me = threading.get_ident()
        depth = self._inside.get(me, 0)
        if depth > 1:
            self._inside[me] = depth - 1
            return
        try:
            if depth:
                self._leave(me, error)
            elif error is None or isinstance(error, Exception):  # a child that was forked inside a step
                raise NotOpen(self.because) from error
        finally:
            interrupts.leave()

    def _leave(self, me: int, error: BaseException | None) -> None:
        if interrupts.tears(error):
            self._tear(error)
        self._inside.pop(me, None)
        self._shut_if_last()

    def _tear(self, error: BaseException | None) -> None:
        if not self.closed:
            self.because = f"a step was torn by {type(error).__name__}: open the space again, which recovers it"
            self.closed = True
            log.error("%s", self.because)

    def end(self) -> None:
        """Let nobody in any more."""
        self.closed = True
        self._shut_if_last()

    def close(self) -> None:
        """Let nobody in any more, and wait for those inside; who is inside himself does not wait."""
        self.end()
        if threading.get_ident() not in self._inside:
            self._is_shut.wait()

    def close_at_once(self, because: str) -> None:
        """Nobody is inside who matters: in a forked child."""
        if not self._is_shut.is_set():
            self.because = because
            self.closed = self.abandoned = True
            self._inside.clear()
            self._once = threading.Lock()
            self._is_shut = threading.Event()
            self._shut_if_last()

    @interrupts.whole
    def _shut_if_last(self) -> None:
        if self.closed and not self._inside and self._once.acquire(blocking=False):
            try:
                self._shut()
            finally:
                self._is_shut.set()


class CalledStore(Protocol):
    """An open space, as far as the calls of its objects know it."""

    gate: Gate

    def fail(self, doing: str, error: OSError) -> NoReturn:
        """Raise the operating system's error as the caller is to see it."""


class Called(Protocol):
    """An object of an open space: a transaction, say."""

    _store: CalledStore


def public_call(doing: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """For what applications call of an object with a ``_store``: the space is not closed meanwhile, SIGINT waits until
    the call ends, and an error of the operating system is raised as the library's own.

    ``doing``: begins the error's text; names in braces are arguments of the call.
    """

    def around(method: Callable[P, T]) -> Callable[P, T]:
        @wraps(method)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            called: Called = args[0]  # type: ignore[assignment]
            store = called._store
            if threading.get_ident() in store.gate._inside:  # it is part of another call
                try:
                    return method(*args, **kwargs)
                except OSError as error:
                    store.fail(_told(doing, method, args, kwargs), error)
            with store.gate:
                try:
                    return method(*args, **kwargs)
                except OSError as error:
                    store.fail(_told(doing, method, args, kwargs), error)

        return call

    return around


def _told(doing: str, method: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> str:
    return doing.format_map(inspect.signature(method).bind(*args, **kwargs).arguments)
