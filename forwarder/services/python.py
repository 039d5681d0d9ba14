"""A Python function as a service. The argument of the function is the message, and the result is the reply."""

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from forwarder.services.service import MAX_REPLY, Caller, Request, Service
from forwarder.time_limits import TimeLimit
from spool.model.text import one_line
from spool.workers.functions import find_function
from spool.workers.outcome import Outcome, Reject, Retried, Retry, of_error, of_value


@dataclass(frozen=True)
class PythonService(Service):
    """`python:target`, where `target` is `package.module:function`.

    timeout: the time limit of a call in seconds. None means no limit.
    """

    target: str
    timeout: float | None = 30.0

    @property
    def shown_name(self) -> str:
        return f"python:{self.target}"

    @property
    def watched(self) -> float | None:
        """The time limit of a call. A limit is needed because a function may hang its process."""
        return self.timeout

    def open(self) -> "PythonCaller":
        return PythonCaller(find_function(self.target), self.timeout)


@dataclass(frozen=True)
class PythonCaller(Caller):
    """Calls the function. ``argument``: returns the argument of the function."""

    function: Callable[[Any], Any]
    timeout: float | None = None
    argument: Callable[[Request], Any] = attrgetter("message")

    def __call__(self, request: Request) -> Outcome:
        if request.unreadable:
            return Retried(one_line(request.unreadable))
        limit = TimeLimit(self.timeout)
        try:
            value = limit.call(self.function, self.argument(request))
        except BaseException as error:  # also SystemExit and KeyboardInterrupt, which must not end the worker
            outcome = of_error(error, MAX_REPLY)
            # The time limit is also the reason if the function caught TookTooLong and raised another error.
            if limit.reason and not isinstance(error, Retry | Reject):
                return Retried(limit.reason)
            return outcome
        return of_value(value, MAX_REPLY)
