"""A Python function as a service: called with the message; what it returns is the reply."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from forwarder.services.service import MAX_REPLY, Request
from spool.functions import find_function
from spool.outcome import Outcome, Retried, of_error, of_value, one_line


@dataclass(frozen=True)
class PythonService:
    """`python:package.module:function`, with `target` what stands after the scheme; `max_reply` in bytes."""

    target: str
    max_reply: int = MAX_REPLY

    def check(self) -> None:
        """Raise `ServiceError` if the function cannot be imported or called with a message."""
        find_function(self.target)

    def open(self) -> "PythonCaller":
        """Import the function; `ServiceError` as for `check`."""
        return PythonCaller(find_function(self.target), self.max_reply)


@dataclass(frozen=True)
class PythonCaller:
    """Calls the function."""

    function: Callable[[Any], Any]
    max_reply: int = MAX_REPLY

    def __call__(self, request: Request) -> Outcome:
        if request.unreadable:
            return Retried(one_line(request.unreadable))
        try:
            value = self.function(request.message)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit too: a service that gives up must not take the worker with it
            return of_error(error, self.max_reply)
        return of_value(value, self.max_reply)

    def close(self) -> None:
        """There is nothing to give back."""
