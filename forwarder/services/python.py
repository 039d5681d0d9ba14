"""A Python function as a service: called with the message; what it returns is the reply."""

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from forwarder.services.service import MAX_REPLY, Request, ServiceError, replied
from spool.outcome import Outcome, Reject, Rejected, Replied, Retried, Retry, describe, one_line


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
            return self._reply(self.function(request.message))
        except Retry as retry:
            return Retried(retry.reason or "the service asks to try again", retry.delay)
        except Reject as reject:
            return self._rejected(reject)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit too: a service that gives up must not take the worker with it
            return Retried(describe(error))

    def close(self) -> None:
        """There is nothing to give back."""

    def _rejected(self, reject: Reject) -> Outcome:
        reason = reject.reason or "the service rejects the message"
        if reject.reply is None:
            return Rejected(reason)
        try:
            reply = self._reply(reject.reply)
        except Exception as error:
            # The rejection stands: another try would only make the same useless reply.
            return Rejected(f"{reason} (its reply is lost: {describe(error)})")
        return Rejected(reason, reply) if isinstance(reply, Replied) else Rejected(f"{reason} ({reply.reason})")

    def _reply(self, value: object) -> Replied | Rejected:
        if value is None:
            return Replied()
        from spool.codecs import encode

        body, codec, content_type = encode(value)
        return replied(body, content_type, codec, self.max_reply)


def find_function(target: str) -> Callable[[Any], Any]:
    """Import `package.module:function`, looking in the current directory first, as `python -m` does.

    Raises `ServiceError`, also if it is a coroutine function or takes no message.
    """
    module_name, _, name = target.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), *name.split("."))):
        raise ServiceError(f"'python:{target}' names no function: write python:package.module:function")
    module = _import(module_name)
    try:
        function = attrgetter(name)(module)
    except AttributeError:
        raise ServiceError(f"'python:{target}': the module {module_name} has no {name!r}: correct the name") from None
    if not callable(function):
        raise ServiceError(f"'python:{target}' is no function but a {type(function).__name__}: name one to be called")
    if inspect.iscoroutinefunction(function):
        raise ServiceError(f"'python:{target}' is a coroutine function: name a plain one, e.g. one with asyncio.run")
    if not _takes_a_message(function):
        raise ServiceError(f"'python:{target}' cannot be called with a message alone: give it one parameter")
    return function  # type: ignore[no-any-return]


def _import(name: str) -> Any:
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise ServiceError(
                f"there is no Python module {name!r}: install it, set PYTHONPATH, or start in the directory it lies in"
            ) from None
        raise ServiceError(f"the module {name} needs {error.name!r}, which is not installed: install it") from error
    except BaseException as error:  # SystemExit too: a script that runs when it is imported
        raise ServiceError(f"the module {name} cannot be imported ({describe(error)}): correct it") from error


def _takes_a_message(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind(object())
    except TypeError:
        return False
    except ValueError:  # a function written in C that does not tell its parameters
        pass
    return True
