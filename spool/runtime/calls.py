"""The calls of an open space: they end before its descriptors do, and SIGINT comes between two of them.

``with guard:`` is one call. A closed guard lets no call begin, and tells those that wait inside to leave. The files are
closed by the last call that ends, so no thread ever uses a descriptor's number that belongs to another file by then.
No lock guards the table of calls: a thread that begins one writes itself down and then looks whether the guard is
closed; a thread that closes it says so and then looks which calls are inside.

SIGINT waits while the main thread is inside a call, or inside ``deferred``. Python raises KeyboardInterrupt between any
two instructions of the main thread, also between taking a lock and noting it. So while the main thread is inside a
call, SIGINT is only noted, and its handler, whatever it is, runs when the call ends, or when the call comes to a place
where it may be given up. A second one is not held back: if its handler raises, the call is torn, and the space closes
itself as if the process had died. Where Python knows no handler of its own (SIG_DFL, SIG_IGN), nothing is deferred, and
neither are other signals.
"""

# The C half of ``signal``: its Python half takes ten times as long, to tell numbers from names.
import _signal as raw  # type: ignore[import-not-found]
import inspect
import logging
import os
import signal
import threading
from collections.abc import Callable
from functools import wraps
from threading import get_ident
from types import CodeType, FrameType
from typing import Any, NoReturn, ParamSpec, Protocol, TypeVar

from spool.errors import NotOpen

log = logging.getLogger("spool")

_DELIVERED = "_xaspool_delivered"
_NONE_OF_PYTHON = (None, signal.SIG_DFL, signal.SIG_IGN)  # as handlers
_uninterruptible: set[CodeType] = set()

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
T = TypeVar("T")


def uninterruptible(function: F) -> F:
    """Mark a function that not even a second signal interrupts: calls begin and end in these."""
    _uninterruptible.add(function.__code__)
    return function


class _Deferral:
    """Holds SIGINT back while the main thread is inside a call, and hands it to its handler afterwards.

    main: that thread. depth: how many of its calls are one inside the other. noted: signals that came meanwhile.
    handler: the one that is there between calls. note: the one that is there during a call.
    """

    def __init__(self) -> None:
        self.main = threading.main_thread().ident
        self.depth = 0
        self.noted = 0
        self.handler: Callable[[int, FrameType | None], Any] = signal.default_int_handler
        self.note = self._note  # bound once, to be known again

    @uninterruptible
    def end(self) -> None:
        """End a call of the main thread: give the handler back, and let it handle what was noted."""
        if self.depth > 1:
            self.depth -= 1
            return
        # First the handler is back, then what was noted is looked at: what comes in between finds the handler.
        self.depth = 0
        try:
            there = raw.signal(signal.SIGINT, self.handler)
        except BaseException:  # the handler's own, of a signal that came just now
            raw.signal(signal.SIGINT, self.handler)
            raise
        if there is not self.note and there is not None:  # it was set to another one from inside the call
            raw.signal(signal.SIGINT, there)
        if self.noted:
            self._deliver()

    def deliver_pending_signals(self) -> None:
        """Handle the signals that were noted, at a place where the call may be given up."""
        if self.noted and get_ident() == self.main:
            try:
                self._deliver()
            except BaseException as error:
                error.__dict__[_DELIVERED] = True
                raise

    def _deliver(self) -> None:
        """Hand each signal that was noted to the handler, once."""
        noted, self.noted = self.noted, 0
        for _ in range(noted):
            self.handler(signal.SIGINT, None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.noted += 1
        if self.noted > 1:
            while frame is not None and frame.f_code not in _uninterruptible:
                frame = frame.f_back
            if frame is None:
                self._deliver()

    def forget(self) -> None:
        """Begin anew in a forked child: the thread that was in a call may not exist here, and its signals were for the
        parent."""
        self.main = threading.main_thread().ident
        if self.depth:
            self.depth, self.noted = 1, 0
            self.end()


_deferral = _Deferral()
deliver_pending_signals = _deferral.deliver_pending_signals
os.register_at_fork(after_in_child=_deferral.forget)


def is_deferred() -> bool:
    """Whether the main thread is inside a call, which an exception from another signal's handler would tear."""
    return _deferral.depth > 0


def is_torn_by(error: BaseException) -> bool:
    """Whether an exception came from outside into the middle of a call, so that what is half done is unknown."""
    return not isinstance(error, Exception) and _DELIVERED not in error.__dict__


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
        me, inside, deferral = get_ident(), self._inside, _deferral
        if me in inside:
            inside[me] += 1
            return
        if self.closed:
            self.check()
        if me == deferral.main:
            if deferral.depth:
                deferral.depth += 1
            elif (found := raw.getsignal(signal.SIGINT)) not in _NONE_OF_PYTHON:
                if found is not deferral.note:  # (else an exception kept ``end`` from giving it back)
                    deferral.handler = found
                deferral.noted = 0
                try:
                    deferral.depth = 1
                    raw.signal(signal.SIGINT, deferral.note)
                except ValueError:  # another interpreter's thread, which handles no signals
                    deferral.depth = 0
                except BaseException:
                    deferral.end()
                    raise
        inside[me] = 1
        if self.closed:  # since the look before
            self.__exit__(None, None, None)
            self.check()

    @uninterruptible
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        me, inside = get_ident(), self._inside
        is_inside = me in inside
        if is_inside and inside[me] > 1:
            inside[me] -= 1
            return
        try:
            if is_inside:
                if error is not None and is_torn_by(error):
                    self._tear(error)
                del inside[me]
                if self.closed:
                    self._shut_if_last()
            elif error is None or isinstance(error, Exception):  # a child that was forked inside a call
                raise NotOpen(self.because) from error
        finally:
            if _deferral.depth and me == _deferral.main:
                _deferral.end()

    def _tear(self, error: BaseException) -> None:
        if not self.closed:
            self.because = f"{type(error).__name__} interrupted a call: open the space again, which recovers it"
            self.closed = True
            log.error("%s", self.because)

    @property
    def is_alone(self) -> bool:
        """Whether no other thread is inside a call."""
        return self._inside.keys() <= {get_ident()}

    def end(self) -> None:
        """Let no call begin any more."""
        self.closed = True
        self._shut_if_last()

    def close(self) -> None:
        """Let no call begin any more, and wait for those inside; a thread that is inside itself does not wait."""
        self.end()
        if get_ident() not in self._inside:
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


_outside = CallGuard(lambda: None)  # of what is done outside of any open space


class deferred:
    """Hold SIGINT back outside of any open space.

    ``undo``: called if an exception comes out, also an interrupt at the very end.
    """

    def __init__(self, undo: Callable[[], None] = lambda: None) -> None:
        self._undo = undo

    @uninterruptible
    def __enter__(self) -> None:
        _outside.__enter__()

    @uninterruptible
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            if error is not None:
                self._undo()
        finally:
            try:
                _outside.__exit__(None, None, None)
            except BaseException:
                if error is None:
                    self._undo()
                raise


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
            with store.guard:
                try:
                    return method(*args, **kwargs)
                except OSError as error:
                    store.fail(_filled(doing, method, args, kwargs), error)

        return call

    return around


def _filled(doing: str, method: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> str:
    return doing.format_map(inspect.signature(method).bind(*args, **kwargs).arguments)
