"""Exceptions that *tear* a call: they were raised at an unknown point, so the effect of the call is unknown.

Another thread may raise an exception in this thread (PyThreadState_SetAsyncExc), or a trace function may raise an
exception. MemoryError and RecursionError may be raised at each step. Such an exception can come between two steps that
belong together, e.g. between taking a lock and recording that it is taken.
"""

from collections.abc import Callable
from types import CodeType, FrameType, TracebackType
from typing import Any, TypeVar

from spool.errors import ProtocolError, SpoolError

F = TypeVar("F", bound=Callable[..., Any])

_DELIVERED = "_xaspool_delivered"
_LIBRARY = ("spool.", "xa.", "recovery.", "forwarder.")


class Reentrant(ProtocolError):
    """This thread is in the middle of another call of a space: use ``submit``, or put after that call has ended."""

    def __init__(self) -> None:
        super().__init__(
            "a finalizer, a handler of log records or another function called a space in the middle of another call of "
            "its thread: use submit there, which is carried out when that call has ended"
        )


# Errors that the engine raises, or that a wrong argument raises. RecursionError is left out: it comes anywhere.
_KNOWN = (
    SpoolError, ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, RuntimeError, TypeError,
    ValueError,
)  # fmt: skip
# Modules whose functions hold no lock, and have nothing half done, at the points where they run application code.
_OUTSIDE = ("spool.space", "spool.errors", "spool.aio", "spool.opening", "spool.transactions.validation")
_OUTSIDE_PACKAGES = ("spool.model.", "spool.runtime.", "spool.workers.", "spool.aio.")
_waiting: set[CodeType] = set()


def only_waits(function: F) -> F:
    """Mark a function that only waits, while its call holds nothing. An exception in the function tears no call."""
    _waiting.add(function.__code__)
    return function


def is_torn_by(error: BaseException) -> bool:
    """Return whether the exception was raised at an unknown point of a call, so that the call's effect is unknown."""
    if was_delivered(error):
        return False
    if isinstance(error, Exception) and (_is_known(error) or not _came_through_the_engine(error.__traceback__)):
        return False
    return not _only_waited(error.__traceback__)


def _is_known(error: Exception) -> bool:
    """Return whether the engine may have raised this exception itself."""
    if isinstance(error, Reentrant | RecursionError):
        return False
    if isinstance(error, OSError):  # (alarm handlers raise TimeoutError without a number)
        return error.errno is not None or isinstance(error, SpoolError)
    return isinstance(error, _KNOWN) or type(error).__module__.startswith(_LIBRARY)


def was_delivered(error: BaseException) -> bool:
    """Return whether a signal handler raised the exception at a point where the call can be abandoned."""
    return _DELIVERED in error.__dict__


def is_failed_step(error: BaseException) -> bool:
    """Return whether a step of the engine failed with this exception, e.g. with a MemoryError.

    Any other exception belongs to the application, or comes from another thread, and the caller gets it unchanged.
    """
    if isinstance(error, MemoryError | RecursionError):
        return True
    return isinstance(error, Exception) and not was_delivered(error) and not is_torn_by(error)


def raise_if_torn(error: BaseException) -> None:
    """Raise the exception again if it tears the call, because it is then no failure of the caller's own step."""
    if is_torn_by(error):
        raise error


def _came_through_the_engine(trace: TracebackType | None) -> bool:
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__"))
        if module.startswith("spool.") and module not in _OUTSIDE and not module.startswith(_OUTSIDE_PACKAGES):
            return True
        trace = trace.tb_next
    return False


def _only_waited(trace: TracebackType | None) -> bool:
    while trace is not None:
        if trace.tb_frame.f_code in _waiting:
            return True
        trace = trace.tb_next
    return False


def mark_delivered(error: BaseException) -> None:
    """Mark an exception that a signal handler raised at a point where the call can be abandoned."""
    error.__dict__[_DELIVERED] = True


def is_in_library(frame: FrameType | None) -> bool:
    """Return whether a thread with this innermost frame is in a library function other than ``close``."""
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if module.startswith(_LIBRARY) and frame.f_code.co_name not in ("close", "__exit__"):
            return True
        frame = frame.f_back
    return False
