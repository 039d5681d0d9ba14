"""Ctrl-C comes between two steps of the engine, never into the middle of one.

Python raises KeyboardInterrupt between any two instructions of the main thread, also between taking a lock and noting
it. So while the main thread is inside a step, SIGINT is only noted, and its handler, whatever it is, runs when the step
ends, or when the step comes to a place where it may be given up. A second one is not held back: if its handler raises,
the step is torn, and the space closes itself as if the process had died (see ``gate``).

Where Python knows no handler of its own (SIG_DFL, SIG_IGN), nothing is deferred, and neither are other signals.
"""

# The C half of ``signal``: its Python half takes ten times as long, to tell numbers from names.
import _signal as raw  # type: ignore[import-not-found]
import os
import signal
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, TypeVar

_ADMITTED = "_xaspool_admitted"
_whole: set[CodeType] = set()

F = TypeVar("F", bound=Callable[..., Any])


def whole(function: F) -> F:
    """Not even a second signal interrupts this function: it is how steps begin and end."""
    _whole.add(function.__code__)
    return function


class _Deferral:
    """The main thread's: how deep it is in steps, what came meanwhile, and whose business that is."""

    def __init__(self) -> None:
        self.depth = 0
        self.noted = 0
        self.handler: Callable[[int, FrameType | None], Any] = signal.default_int_handler
        self._note_it = self._note  # bound once, to be known again
        self._main = threading.main_thread().ident

    @whole
    def enter(self) -> None:
        if threading.get_ident() != self._main:
            return
        if self.depth:
            self.depth += 1
            return
        found = raw.getsignal(signal.SIGINT)
        if found is not self._note_it:  # (else an exception kept ``leave`` from giving it back)
            if not callable(found):
                return
            self.handler = found
        self.noted = 0
        try:
            self.depth = 1
            raw.signal(signal.SIGINT, self._note_it)
        except ValueError:  # another interpreter's thread: signals are not its business
            self.depth = 0
        except BaseException:
            self._give_back()
            raise

    @whole
    def leave(self) -> None:
        if not self.depth or threading.get_ident() != self._main:
            return
        if self.depth > 1:
            self.depth -= 1
            return
        # First the handler is back, then what was noted is looked at: what comes in between finds the handler.
        self._give_back()
        self._deliver()

    def _give_back(self) -> None:
        self.depth = 0
        try:
            there = raw.signal(signal.SIGINT, self.handler)
        except BaseException:  # the handler's own, of a signal that came just now
            raw.signal(signal.SIGINT, self.handler)
            raise
        if there is not self._note_it and there is not None:  # the step's caller set another one, from inside
            raw.signal(signal.SIGINT, there)

    def admit(self) -> None:
        """Where a step may be given up: what came meanwhile is handled now."""
        if self.noted and threading.get_ident() == self._main:
            try:
                self._deliver()
            except BaseException as error:
                error.__dict__[_ADMITTED] = True
                raise

    def _deliver(self) -> None:
        """Each signal that was noted reaches its handler, once."""
        noted, self.noted = self.noted, 0
        for _ in range(noted):
            self.handler(signal.SIGINT, None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.noted += 1
        if self.noted > 1:
            while frame is not None and frame.f_code not in _whole:
                frame = frame.f_back
            if frame is None:
                self._deliver()

    def forget(self) -> None:
        """In a forked child: the thread that was in a step may not exist here, and its signals were its parent's."""
        self._main = threading.main_thread().ident
        if self.depth:
            self.noted = 0
            self._give_back()


_deferral = _Deferral()
enter, leave, admit = _deferral.enter, _deferral.leave, _deferral.admit
os.register_at_fork(after_in_child=_deferral.forget)


def inside() -> bool:
    """Whether the main thread is in a step, which an exception from another signal's handler would tear."""
    return _deferral.depth > 0


class deferred:
    """Outside of any open space. ``undo`` is called if an exception comes out, be it an interrupt at the very end."""

    def __init__(self, undo: Callable[[], None] = lambda: None) -> None:
        self._undo = undo

    @whole
    def __enter__(self) -> None:
        enter()

    @whole
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            if error is not None:
                self._undo()
        finally:
            try:
                leave()
            except BaseException:
                if error is None:
                    self._undo()
                raise


def tears(error: BaseException | None) -> bool:
    """Whether an exception came from outside into the middle of a step, so that nobody knows what is half done."""
    return error is not None and not isinstance(error, Exception) and _ADMITTED not in error.__dict__
