"""A Python function by name, imported and checked before any message is taken."""

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from spool.workers.outcome import describe


class ServiceError(ValueError):
    """A service cannot be used as named. The text is one line that names the remedy."""


def find_function(target: str) -> Callable[[Any], Any]:
    """Import `package.module:function`. As with `python -m`, the current directory is searched first.

    Raises:
        ServiceError: the function cannot be imported, is a coroutine function, or cannot be called with a message.
    """
    module_name, _, name = target.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), *name.split("."))):
        raise ServiceError(f"{target!r} names no function: write package.module:function")
    module = _import(module_name)
    try:
        function = attrgetter(name)(module)
    except AttributeError:
        raise ServiceError(f"{target!r}: the module {module_name} has no {name!r}: correct the name") from None
    return check_function(repr(target), function)


def check_function(name: str, function: Any) -> Callable[[Any], Any]:
    """Check that an object is a function that can be called with a message, and return the object.

    ServiceError if the object cannot be called with a message, or is a coroutine function. ``name``: the name for
    errors.
    """
    if not callable(function):
        raise ServiceError(f"{name} is no function but a {type(function).__name__}: name one to be called")
    if inspect.iscoroutinefunction(function):
        raise ServiceError(f"{name} is a coroutine function: name a plain one, e.g. one with asyncio.run")
    if not takes_a_message(function):
        raise ServiceError(f"{name} cannot be called with a message alone: give it one parameter")
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
    except BaseException as error:  # also SystemExit: an imported script may call sys.exit()
        raise ServiceError(f"the module {name} cannot be imported ({describe(error)}): correct it") from error


def takes_a_message(function: Callable[..., Any]) -> bool:
    """Return whether a function can be called with one argument."""
    try:
        inspect.signature(function).bind(object())
    except TypeError:
        return False
    except ValueError:  # a function in C without a signature
        pass
    return True
