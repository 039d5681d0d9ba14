"""SIGINT waits while the main thread is inside a call of an open space, or inside ``deferred``.

Python raises KeyboardInterrupt between any two instructions of the main thread, also between taking a lock and noting
it. So while the main thread is inside a call, SIGINT is only noted, and its handler, whatever it is, runs when the call
ends, or when the call comes to a place where it may be given up. A second one is not held back: if its handler raises,
the call is torn, and the space closes itself as if the process had died.
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

_DELIVERED = "_xaspool_delivered"
_uninterruptible: set[CodeType] = set()

F = TypeVar("F", bound=Callable[..., Any])


def uninterruptible(function: F) -> F:
    """Mark a function that not even a second signal interrupts: calls begin and end in these."""
    _uninterruptible.add(function.__code__)
    return function


class _Deferral:
    """Holds SIGINT back while the main thread is inside a call, and hands it to its handler afterwards.

    ``depth``: how many calls are one inside the other. ``noted``: signals that came meanwhile.
    """

    def __init__(self) -> None:
        self.depth = 0
        self.noted = 0
        self.handler: Callable[[int, FrameType | None], Any] = signal.default_int_handler
        self._note_it = self._note  # bound once, to be known again
        self._main = threading.main_thread().ident

    @uninterruptible
    def enter(self) -> None:
        """Begin a call: note SIGINT from now on."""
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
        except ValueError:  # another interpreter's thread, which handles no signals
            self.depth = 0
        except BaseException:
            self._give_back()
            raise

    @uninterruptible
    def leave(self) -> None:
        """End a call: give the handler back, and let it handle what was noted."""
        if not self.depth or threading.get_ident() != self._main:
            return
        if self.depth > 1:
            self.depth -= 1
            return
        # First the handler is back, then what was noted is looked at: what comes in between finds the handler.
        self._give_back()
        if self.noted:
            self._deliver()

    def _give_back(self) -> None:
        self.depth = 0
        try:
            there = raw.signal(signal.SIGINT, self.handler)
        except BaseException:  # the handler's own, of a signal that came just now
            raw.signal(signal.SIGINT, self.handler)
            raise
        if there is not self._note_it and there is not None:  # it was set to another one from inside the call
            raw.signal(signal.SIGINT, there)

    def deliver_pending_signals(self) -> None:
        """Handle the signals that were noted, at a place where the call may be given up."""
        if self.noted and threading.get_ident() == self._main:
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
        self._main = threading.main_thread().ident
        if self.depth:
            self.noted = 0
            self._give_back()


_deferral = _Deferral()
enter, leave, deliver_pending_signals = _deferral.enter, _deferral.leave, _deferral.deliver_pending_signals
os.register_at_fork(after_in_child=_deferral.forget)


def is_deferred() -> bool:
    """Whether the main thread is inside a call, which an exception from another signal's handler would tear."""
    return _deferral.depth > 0


class deferred:
    """Hold SIGINT back outside of any open space.

    ``undo``: called if an exception comes out, also an interrupt at the very end.
    """

    def __init__(self, undo: Callable[[], None] = lambda: None) -> None:
        self._undo = undo

    @uninterruptible
    def __enter__(self) -> None:
        enter()

    @uninterruptible
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


def is_torn_by(error: BaseException) -> bool:
    """Whether an exception came from outside into the middle of a call, so that what is half done is unknown."""
    return not isinstance(error, Exception) and _DELIVERED not in error.__dict__
