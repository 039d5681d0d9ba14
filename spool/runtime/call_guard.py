"""The calls of an open space: the files are closed after the last call, and signal handlers wait for a call's end.

``with guard:`` is one call. After the guard is closed, no call enters, and a call that waits inside raises NotOpen. The
last call to end closes the files, so no thread uses the number of a descriptor that now belongs to another file. No
lock guards the table of calls. A thread that enters adds itself to the table, then checks whether the guard is closed.
A thread that closes the guard marks it closed, then reads the table. ``with guard.step:`` is a longer piece of work
that makes calls and keeps the files open, e.g. in an intake.

Python runs foreign code in the middle of a call:

- *Signal handlers.* Python runs them between any two instructions of the main thread. While the main thread is inside a
  call, a step or ``deferred``, each signal that has a Python function as its handler is only noted. The handlers run
  when the call ends, or earlier, while a get waits for messages. A second SIGINT is handled at once: if its handler
  raises, the call is torn. Signals without a Python function (SIG_DFL, SIG_IGN), and signals above 31 (real-time
  signals), are not deferred.
- *Finalizers, weak reference callbacks, log handlers, trace functions.* Such code runs in the thread of the call. If
  the code called a space, this second call could wait for a lock of its own thread, so the second call raises
  ProtocolError at once. ``submit`` and ``close`` are carried out when the call ends (``call_later``).
- *Exceptions that come at an unknown point* (``async_exceptions``). Such an exception tears the call, unless the call
  only waited. The space then closes as if the process had died: every lock is released, and the next opening recovers
  the space.
"""

# This is the C module of ``signal``. The Python module takes ten times as long, because it converts numbers to names.
import _signal as raw  # type: ignore[import-not-found]
import inspect
import logging
import os
import signal
import sys
import threading
import weakref
from _thread import start_new_thread
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial, wraps
from threading import get_ident
from types import CodeType, FrameType
from typing import Any, NoReturn, ParamSpec, Protocol, TypeVar

from spool.errors import NotOpen
from spool.runtime.async_exceptions import Reentrant, is_in_library, is_torn_by, mark_delivered, was_delivered

log = logging.getLogger("spool")

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
T = TypeVar("T")
Handler = Callable[[int, FrameType | None], Any]

# ``close`` looks for threads that have left their calls after this time.
_LOOK_SECONDS = 1.0
_entries: set[CodeType] = set()  # the functions that enter a guard
_uninterruptible: set[CodeType] = set()


def enters(function: F) -> F:
    """Mark a function that enters a guard."""
    _entries.add(function.__code__)
    return function


def uninterruptible(function: F) -> F:
    """Mark a function that even a second SIGINT does not interrupt. Calls begin and end in such functions."""
    _uninterruptible.add(function.__code__)
    return function


# -- signals ----------------------------------------------------------------------------------------------------------

_SIGNALS = [number for number in range(1, 32) if number not in (signal.SIGKILL, signal.SIGSTOP)]
_NONE_OF_PYTHON = (None, signal.SIG_DFL, signal.SIG_IGN)  # handlers that are not Python functions


class _Deferral:
    """Notes the signals that arrive while the main thread is inside a call, and calls their handlers afterwards.

    main: the main thread. depth: the number of nested calls that the main thread is inside.
    entrances: how often a call of the main thread has replaced the handlers.
    noted: the numbers of the deferred signals, in their order.
    note: the handler of each deferred signal during a call.
    found: the handlers of ``_SIGNALS`` at the last call. handlers: the Python functions among these handlers.
    """

    def __init__(self) -> None:
        self.main = threading.main_thread().ident
        self.depth = 0
        self.entrances = 0
        self.noted: list[int] = []
        self.note = self._note  # bound once, so that ``is`` recognizes it
        self.found: list[Any] = []
        self.handlers: Mapping[int, Handler] = {}

    def learn(self, found: list[Any]) -> None:
        """Remember the handlers of ``_SIGNALS``, which have changed since the last call."""
        before = self.handlers
        self.handlers = {
            # (``note`` is still the handler if an exception kept ``end`` from restoring the handler)
            number: before[number] if handler is self.note else handler
            for number, handler in zip(_SIGNALS, found, strict=True)
            if handler not in _NONE_OF_PYTHON
        }
        self.found = found  # last, so that an exception before this line changes nothing

    @uninterruptible
    def end(self) -> None:
        """End a call of the main thread: restore the handlers, and call them for the noted signals."""
        if self.depth > 1:
            self.depth -= 1
            return
        # Restore the handlers before reading the noted signals, so that a signal between the two steps reaches its
        # handler.
        self.depth = 0
        try:
            for number in self.handlers:
                there = raw.signal(number, self.handlers[number])
                if there is not self.note and there is not None:  # the call itself has set another handler
                    raw.signal(number, there)
        except BaseException:  # a signal arrived at this moment, and its handler raised
            for number, handler in self.handlers.items():
                if raw.getsignal(number) is self.note:
                    raw.signal(number, handler)
            raise
        finally:
            if self.noted:
                self.deliver()

    def deliver(self) -> None:
        """Call the handler of each noted signal. If a handler raises, the later handlers are called nevertheless."""
        number = self.noted.pop(0)
        try:
            if number in self.handlers:  # otherwise the program has set SIG_DFL or SIG_IGN meanwhile
                self.handlers[number](number, sys._getframe())
        finally:
            if self.noted:
                self.deliver()

    def raise_interrupt(self) -> None:
        """Raise KeyboardInterrupt if SIGINT was noted, and its handler only raises KeyboardInterrupt."""
        if signal.SIGINT in self.noted and self.handlers[signal.SIGINT] is signal.default_int_handler:
            self.noted.remove(signal.SIGINT)
            error = KeyboardInterrupt()
            mark_delivered(error)
            raise error

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT or number not in self.noted:  # (the kernel also merges waiting signals)
            self.noted.append(number)
        if number == signal.SIGINT and self.noted.count(number) > 1:
            at = frame
            while at is not None and at.f_code not in _uninterruptible:
                at = at.f_back
            if at is None:
                presses = self.noted.count(number)
                self.noted[:] = [other for other in self.noted if other != number]
                for _ in range(presses):
                    self.handlers[number](number, frame)

    def forget(self) -> None:
        """Reset the state in a forked child process: the thread inside the call may not exist here, and the noted
        signals were for the parent.
        """
        self.main = threading.main_thread().ident
        if self.depth:
            self.depth = 1
            self.noted.clear()
            self.end()


_deferral = _Deferral()
os.register_at_fork(after_in_child=_deferral.forget)


def deliver_pending_signals() -> None:
    """Run the handlers of noted signals, and the functions of ``call_later``, in the middle of a call that only waits.

    The call holds no lock here, so a handler may call the space, and an exception of a handler abandons the call.
    """
    me = get_ident()
    if me in _later or (_deferral.noted and me == _deferral.main):
        try:
            with outside_of_calls():
                _do_later(me)
                if _deferral.noted and me == _deferral.main:
                    _deferral.deliver()
        except BaseException as error:
            mark_delivered(error)
            raise


def raise_interrupt() -> None:
    """Raise KeyboardInterrupt after Ctrl-C, in a call that waits for a lock and can be abandoned.

    The call may hold other locks, so other signal handlers wait until the call ends.
    """
    if _deferral.noted and get_ident() == _deferral.main:
        _deferral.raise_interrupt()


# -- calls inside a call ----------------------------------------------------------------------------------------------

# The threads in the middle of a call of any space, each with the number of nested parts of its call. And for each
# thread, the functions that run once the thread's call has ended.
_busy: dict[int, int] = {}
_later: dict[int, list[Callable[[], object]]] = {}
os.register_at_fork(after_in_child=_busy.clear)


def is_in_a_call() -> bool:
    """Return whether this thread is in the middle of a call of a space."""
    me = get_ident()
    return me in _busy and _is_reentrant(me, 1)


def call_later(function: Callable[[], object]) -> None:
    """Call a function at the end of this thread's call of a space, or at once if this thread is in no call.

    ``function`` must not raise.
    """
    me = get_ident()
    if me in _busy:
        _later.setdefault(me, []).append(function)
    else:
        function()


@contextmanager
def outside_of_calls() -> Iterator[None]:
    """Let application functions call a space, in the middle of a call that can be abandoned at this point.

    The caller of the call gets an exception of such a function unchanged.
    """
    me = get_ident()
    busy = _busy.pop(me, 0)
    try:
        yield
    except BaseException as error:
        mark_delivered(error)
        raise
    finally:
        if busy:
            _busy[me] = busy


def _do_later(me: int) -> None:
    for function in _later.pop(me, ()):
        function()


def _is_reentrant(me: int, entries: int) -> bool:
    """Return whether this thread, which is marked as busy, is indeed in the middle of a call.

    An exception from another thread may have kept the end of an earlier call from removing the mark.

    ``entries``: the number of functions on the stack that have entered a guard, if the earlier call has not ended.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and entries:
        entries -= frame.f_code in _entries
        frame = frame.f_back
    if entries:
        del _busy[me]
    return not entries


# -- the guard --------------------------------------------------------------------------------------------------------


class _Entrance:
    """A way into a guard, as a context manager.

    is_call: True if a call begins: the thread is then in the middle of a call. False if a step begins, or a part of the
        thread's call.
    """

    def __init__(self, guard: "CallGuard", *, is_call: bool) -> None:
        self._guard = guard
        self._is_call = is_call

    @uninterruptible
    def __enter__(self) -> None:
        me, guard = get_ident(), self._guard
        inside = guard._inside
        if me in _busy:
            if not _is_reentrant(me, 1 + self._is_call):
                _forget_unended(me)
            elif self._is_call:
                raise Reentrant
            else:
                _busy[me] += 1
        if me in inside:
            inside[me] += 1
        else:
            if guard.closed:
                guard.check()
            if me == _deferral.main:
                if _deferral.depth:
                    _deferral.depth += 1
                else:  # (inline, because each call of the main thread runs these lines)
                    found = [*map(raw.getsignal, _SIGNALS)]
                    if found != _deferral.found:
                        _deferral.learn(found)
                    try:
                        # A signal may arrive before its handler is replaced. If its handler makes a call, the end of
                        # that call restores all handlers, so the handlers are replaced again. (Python runs no handler
                        # between the last comparison and the next line.)
                        entrances = -1
                        while entrances != _deferral.entrances:
                            entrances = _deferral.entrances = _deferral.entrances + 1
                            for number in _deferral.handlers:
                                raw.signal(number, _deferral.note)
                        _deferral.depth = 1
                    except ValueError:  # this thread belongs to another interpreter, and handles no signals
                        _deferral.depth = 0
                    except BaseException:  # a signal arrived before its handler was replaced, and the handler raised
                        _deferral.end()
                        raise
            inside[me] = 1
            if guard.closed:  # another thread has closed the guard since the check above
                self.__exit__(None, None, None)
                guard.check()
        if self._is_call:
            _busy[me] = 1

    @uninterruptible
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        me, guard = get_ident(), self._guard
        inside = guard._inside
        # (no calls of functions here: an exception could come after each of them)
        if me in _busy:
            if _busy[me] > 1:
                _busy[me] -= 1
            else:
                del _busy[me]
        count = inside[me] if me in inside else 0  # noqa: SIM401
        try:
            if error is not None and count and not guard.closed and is_torn_by(error):
                guard.tear(error)
        finally:
            if count > 1:
                inside[me] = count - 1
            else:
                if count:
                    del inside[me]
                try:
                    if guard.closed:
                        guard._leave_closed(error, count)
                finally:
                    if (depth := _deferral.depth) > 1 and me == _deferral.main:
                        _deferral.depth = depth - 1
                    elif depth and me == _deferral.main:
                        try:
                            _deferral.end()
                        except BaseException:
                            if _deferral.depth == depth:  # the exception came before the first line of ``end``
                                _deferral.end()
                            raise
            if me in _later and me not in _busy:
                _do_later(me)


class CallGuard(_Entrance):
    """The threads inside calls of an open space. ``shut`` is called once: when the guard is closed and no thread is
    inside.

    ``with guard:`` is a call. ``step``: a context manager for work that makes calls, or that is a part of a call.
    """

    def __init__(self, shut: Callable[[], None]) -> None:
        self.closed = False
        self.abandoned = False  # if True, even calls that have entered do nothing more
        self.because = "the space is closed: open it again"
        super().__init__(self, is_call=True)
        _guards.add(self)
        self.step = _Entrance(self, is_call=False)
        self._shut = shut
        self._inside: dict[int, int] = {}
        self._once = threading.Lock()
        self._is_shut = threading.Event()

    def check(self) -> None:
        """Raise NotOpen if the space is closed. Each call checks this at its begin and while it waits."""
        if self.closed:
            raise NotOpen(self.because)

    def _leave_closed(self, error: BaseException | None, count: int) -> None:
        if count:
            self._shut_if_last(error)
        elif error is None or isinstance(error, Exception):  # this child process was forked inside a call
            raise NotOpen(self.because) from error

    def tear(self, error: BaseException) -> None:
        """Close the guard, because an exception interrupted a call at an unknown point.

        For other processes, this process is then dead: the kernel releases its locks.
        """
        if not self.closed:
            self.because = f"{type(error).__name__} interrupted a call: open the space again, which recovers it"
            self.closed = True
            log.error("%s", self.because)

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
            while not self._is_shut.wait(_LOOK_SECONDS):
                self._forget_stale()

    def _forget_stale(self) -> None:
        """Forget threads that left a call without its end, because of an exception or because the thread died."""
        stacks = sys._current_frames()
        for thread in list(self._inside):
            if not is_in_library(stacks.get(thread)):
                self._inside.pop(thread, None)
        self._shut_if_last()

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
    def _shut_if_last(self, error: BaseException | None = None) -> None:
        if self.closed and not self._inside and self._once.acquire(blocking=False):
            try:
                if isinstance(error, RecursionError):  # this thread's stack is full, but a new thread's stack is not
                    start_new_thread(self._shut_now, ())
                else:
                    self._shut_now()
            except BaseException:
                self._once.release()  # (``close`` tries again, if an exception came before the first line)
                raise

    @uninterruptible
    def _shut_now(self) -> None:
        try:
            if not self._is_shut.is_set():
                self._shut()
        finally:
            self._is_shut.set()


def _forget_unended(me: int) -> None:
    """Forget an earlier call of this thread, if an exception kept the end of that call from removing the call.

    A thread that executes another function of the library may be inside a step, so the thread is not touched.
    """
    if not is_in_library(sys._getframe(2).f_back):
        for guard in list(_guards):
            guard._inside.pop(me, None)
        if _deferral.depth and me == _deferral.main:
            _deferral.depth = 1
            _deferral.end()


_guards: "weakref.WeakSet[CallGuard]" = weakref.WeakSet()
_outside = CallGuard(lambda: None)  # for work outside of any open space


class deferred(_Entrance):
    """Defer signals outside of any open space.

    ``undo``: a function that is called if the block raises, or if a handler raises at the very end of the block.
    """

    def __init__(self, undo: Callable[[], None] = lambda: None) -> None:
        self._guard, self._is_call = _outside, False
        self._undo = undo

    @uninterruptible
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            if error is not None:
                self._undo()
        finally:
            try:
                super().__exit__(None, None, None)
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

    During the call the space is not closed, and signals wait. An error of the operating system is raised as an error of
    the library.

    ``doing``: the beginning of the error's text; names in braces are replaced by the arguments of the call. The
    attribute ``decorate`` of the result decorates another method in the same way.
    """

    def around(method: Callable[P, T]) -> Callable[P, T]:
        @enters
        @wraps(method)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            owner: PartOfSpace = args[0]  # type: ignore[assignment]
            store = owner._store
            with store.guard:
                try:
                    return method(*args, **kwargs)
                except OSError as error:
                    _translate(store, doing, method, args, kwargs, error)

        call.decorate = around  # type: ignore[attr-defined]
        return call

    return around


def step(doing: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a method that does a piece of work with several calls, as ``public_call`` decorates one call."""

    def around(method: Callable[P, T]) -> Callable[P, T]:
        @wraps(method)
        def work(*args: P.args, **kwargs: P.kwargs) -> T:
            owner: PartOfSpace = args[0]  # type: ignore[assignment]
            store = owner._store
            with store.guard.step:
                try:
                    return method(*args, **kwargs)
                except OSError as error:
                    _translate(store, doing, method, args, kwargs, error)

        return work

    return around


def _translate(
    store: GuardedStore, doing: str, method: Callable[..., Any], args: Any, kwargs: Any, error: OSError
) -> NoReturn:
    if was_delivered(error):
        raise error
    store.fail(doing.format_map(inspect.signature(method).bind(*args, **kwargs).arguments), error)


def within(method: Callable[P, T]) -> Callable[P, T]:
    """Return the undecorated method, for a caller that is inside a call of the same space."""
    return method.__wrapped__  # type: ignore[attr-defined, no-any-return]


def later_if_busy(method: "Callable[P, Future[T]]") -> "Callable[P, Future[T]]":
    """Decorate a method that returns a future: in the middle of another call, the method runs after that call.

    The future then has the errors that the method would have raised. Unless the caller names a transaction, the method
    joins no transaction, because the other call may end the caller's transaction.
    """

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        if get_ident() not in _busy or not is_in_a_call():
            return method(*args, **kwargs)
        future = Future[T]()
        alone: Any = {"transaction": None} | kwargs
        call_later(partial(_fulfil, future, partial(method, *args, **alone)))
        return future

    call.decorate = later_if_busy  # type: ignore[attr-defined]
    return call


def _fulfil(future: "Future[T]", begin: "Callable[[], Future[T]]") -> None:
    def pass_on(done: "Future[T]") -> None:
        if not future.cancelled() and future.set_running_or_notify_cancel():
            error = done.exception()
            future.set_exception(error) if error is not None else future.set_result(done.result())

    try:
        begin().add_done_callback(pass_on)
    except BaseException as error:
        future.set_exception(error)
