"""The functions of a pipeline: hooks, translations and conditions, each by name or as an object."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from spool.workers.functions import ServiceError, check_function, find_function


@dataclass(frozen=True)
class Function:
    """A function whose argument is a message.

    name: the name ``package.module:function``. Other processes import the function by this name.
    given: the function object, if the pipeline was declared with an object; it is called in threads of this process.
    """

    name: str
    given: Callable[[Any], Any] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, value: object) -> "Function":
        """Return a value of a description as a Function. ValueError if it is neither a name nor a function."""
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
            ServiceError: the function cannot be imported, or does not accept a message.
        """
        return _imported(self.name) if self.given is None else check_function(self.name, self.given)

    def check_name(self) -> None:
        """Raise ServiceError unless other processes can import the function by its name."""
        if self.given is None:
            return
        module, _, name = self.name.partition(":")
        if module == "__main__" or not all(part.isidentifier() for part in name.split(".")):
            raise ServiceError(
                f"{self.name} cannot be imported by Spark's processes: define it at the top of a module, or run the "
                "pipeline without Spark"
            )
        if _imported(self.name) is not self.given:
            raise ServiceError(f"{self.name} is another function when it is imported: give each a separate name")

    def __reduce__(self) -> tuple[type["Function"], tuple[str]]:
        """Pickle the function without its object, because other processes import the function by its name."""
        return Function, (self.name,)


_imported = cache(find_function)
