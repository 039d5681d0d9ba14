"""The calls of an open space: each ends before the files are closed, and SIGINT is handled between two calls.

``with guard:`` is one call. After the guard is closed, no call enters, and a call that waits inside raises NotOpen. The
last call to end closes the files, so no thread uses a descriptor's number after the number belongs to another file. No
lock guards the table of calls. A thread that enters adds itself to the table, then checks whether the guard is closed.
A thread that closes the guard marks it closed, then reads the table.

SIGINT waits while the main thread is inside a call, or inside ``deferred``. Python raises KeyboardInterrupt between any
two instructions of the main thread, even between taking a lock and recording that it is taken. So inside a call SIGINT
is only noted. The handler runs when the call ends, or earlier, at a point where the call can be abandoned. A second
SIGINT is handled at once. If its handler raises, the call is torn, and the space closes as if the process had died. If
no Python function handles SIGINT (SIG_DFL, SIG_IGN), it is not deferred. Other signals are never deferred.
"""

# This is the C module of ``signal``. The Python module converts numbers to names, and so takes ten times as long.
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
_NONE_OF_PYTHON = (None, signal.SIG_DFL, signal.SIG_IGN)  # handlers that are not Python functions
_uninterruptible: set[CodeType] = set()

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
T = TypeVar("T")


def uninterruptible(function: F) -> F:
    """Mark a function that even a second signal does not interrupt. Calls begin and end in such functions."""
    _uninterruptible.add(function.__code__)
    return function


class _Deferral:
    """Defers SIGINT while the main thread is inside a call, and calls the handler afterwards.

    main: the main thread. depth: the number of nested calls that the main thread is inside.
    noted: the number of deferred signals.
    handler: the handler between calls. note: the handler during a call.
    """

    def __init__(self) -> None:
        self.main = threading.main_thread().ident
        self.depth = 0
        self.noted = 0
        self.handler: Callable[[int, FrameType | None], Any] = signal.default_int_handler
        self.note = self._note  # bound once, so that ``is`` recognizes it

    @uninterruptible
    def end(self) -> None:
        """End a call of the main thread: restore the handler, and let it handle the noted signals."""
        if self.depth > 1:
            self.depth -= 1
            return
        # Restore the handler before reading the noted signals, so that a signal between the two steps reaches the
        # handler.
        self.depth = 0
        try:
            there = raw.signal(signal.SIGINT, self.handler)
        except BaseException:  # a signal arrived at this moment, and its handler raised
            raw.signal(signal.SIGINT, self.handler)
            raise
        if there is not self.note and there is not None:  # the call itself has set another handler
            raw.signal(signal.SIGINT, there)
        if self.noted:
            self._deliver()

    def deliver_pending_signals(self) -> None:
        """Handle the noted signals. The caller is at a point where its call can be abandoned."""
        if self.noted and get_ident() == self.main:
            try:
                self._deliver()
            except BaseException as error:
                error.__dict__[_DELIVERED] = True
                raise

    def _deliver(self) -> None:
        """Call the handler once for each noted signal."""
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
        """Reset the state in a forked child process: the thread inside the call may not exist here, and the noted
        signals were for the parent.
        """
        self.main = threading.main_thread().ident
        if self.depth:
            self.depth, self.noted = 1, 0
            self.end()


_deferral = _Deferral()
deliver_pending_signals = _deferral.deliver_pending_signals
os.register_at_fork(after_in_child=_deferral.forget)


def is_deferred() -> bool:
    """Return whether the main thread is inside a call.

    An exception in the handler of another signal would then tear the call.
    """
    return _deferral.depth > 0


def is_torn_by(error: BaseException) -> bool:
    """Return whether an exception interrupted a call at an unknown point, so that the call's effect is unknown."""
    return not isinstance(error, Exception) and _DELIVERED not in error.__dict__


class CallGuard:
    """The threads inside calls of an open space. ``shut`` is called once: when the guard is closed and no thread is
    inside."""

    def __init__(self, shut: Callable[[], None]) -> None:
        self.closed = False
        self.abandoned = False  # if True, even calls that have entered do nothing more
        self.because = "the space is closed: open it again"
        self._shut = shut
        self._inside: dict[int, int] = {}
        self._once = threading.Lock()
        self._is_shut = threading.Event()

    def check(self) -> None:
        """Raise NotOpen if the space is closed. Calls check this when they enter and while they wait inside."""
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
                if found is not deferral.note:  # (the same, if an exception kept ``end`` from restoring the handler)
                    deferral.handler = found
                deferral.noted = 0
                try:
                    deferral.depth = 1
                    raw.signal(signal.SIGINT, deferral.note)
                except ValueError:  # this thread belongs to another interpreter, and handles no signals
                    deferral.depth = 0
                except BaseException:
                    deferral.end()
                    raise
        inside[me] = 1
        if self.closed:  # another thread has closed the guard since the check above
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
                if error is not None and is_torn_by(error) and not self.closed:
                    self.because = f"{type(error).__name__} interrupted a call: open the space again, which recovers it"
                    self.closed = True
                    log.error("%s", self.because)
                del inside[me]
                if self.closed:
                    self._shut_if_last()
            elif error is None or isinstance(error, Exception):  # this child process was forked inside a call
                raise NotOpen(self.because) from error
        finally:
            if _deferral.depth and me == _deferral.main:
                _deferral.end()

    @property
    def is_alone(self) -> bool:
        """Return whether no other thread is inside a call."""
        return self._inside.keys() <= {get_ident()}

    def end(self) -> None:
        """Close the guard: no call enters any more."""
        self.closed = True
        self._shut_if_last()

    def close(self) -> None:
        """Close the guard, and wait for the calls inside. A thread that is itself inside does not wait."""
        self.end()
        if get_ident() not in self._inside:
            self._is_shut.wait()

    def close_at_once(self, because: str) -> None:
        """Close the guard in a forked child process, in which no thread is inside a call."""
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


_outside = CallGuard(lambda: None)  # for work outside of any open space


class deferred:
    """Defer SIGINT outside of any open space.

    ``undo``: a function that is called if the block raises, or if an interrupt arrives at the very end of the block.
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
    """The part of an open space that ``public_call`` needs."""

    guard: CallGuard

    def fail(self, doing: str, error: OSError) -> NoReturn:
        """Raise the operating system's error as an error of the library."""


class PartOfSpace(Protocol):
    """An object of an open space, e.g. a transaction."""

    _store: GuardedStore


def public_call(doing: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a method that applications call. The object of the method has the attribute ``_store``.

    During the call the space is not closed, and SIGINT is deferred. An error of the operating system is raised as an
    error of the library.

    ``doing``: the beginning of the error's text; names in braces are replaced by the arguments of the call.
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
                    arguments = inspect.signature(method).bind(*args, **kwargs).arguments
                    store.fail(doing.format_map(arguments), error)

        return call

    return around
