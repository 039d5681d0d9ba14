"""The functions of a pipeline: hooks, translations and conditions, each by name or as an object."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from spool.workers.functions import ServiceError, find_function, takes_a_message


@dataclass(frozen=True)
class Function:
    """A function that takes a message.

    name: ``package.module:function``, by which other processes import the function.
    given: the function object, if the pipeline was declared with an object. Threads of this process call the object.
    """

    name: str
    given: Callable[[Any], Any] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, value: object) -> "Function":
        """Return a description's value as a Function. ValueError if the value is neither a name nor a function."""
        if isinstance(value, Function):
            return value
        if isinstance(value, str) and value.count(":") == 1:
            return cls(value)
        if not callable(value):
            raise ValueError(value)
        name = getattr(value, "__qualname__", type(value).__qualname__)
        return cls(f"{getattr(value, '__module__', '__main__')}:{name}", value)

    def load(self) -> Callable[[Any], Any]:
        """Return the function object. A function that is given by name is imported.

        Raises:
            ServiceError: the function cannot be imported, or takes no message.
        """
        if self.given is None:
            return _imported(self.name)
        if inspect.iscoroutinefunction(self.given):
            raise ServiceError(f"{self.name} is a coroutine function: name a plain one, e.g. one with asyncio.run")
        if not takes_a_message(self.given):
            raise ServiceError(f"{self.name} cannot be called with a message alone: give it one parameter")
        return self.given

    def by_name(self) -> "Function":
        """Return the function without its object, for other processes, which import it by name.

        Raises:
            ServiceError: other processes cannot import the function by its name.
        """
        if self.given is None:
            return self
        module, _, name = self.name.partition(":")
        if module == "__main__" or not all(part.isidentifier() for part in name.split(".")):
            raise ServiceError(
                f"{self.name} cannot be imported by Spark's processes: define it at the top of a module, or run the "
                "pipeline without Spark"
            )
        if _imported(self.name) is not self.given:
            raise ServiceError(f"{self.name} is another function when it is imported: give each a separate name")
        return Function(self.name)


_imported = cache(find_function)
