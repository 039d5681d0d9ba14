"""Data-dependent routing: a field of the body, or a header, says which space a message is put into.

As Tuxedo's ``ROUTING`` section does it for services: ranges of values, the first that matches wins, and what matches
none is an error or goes to a default. The rules are values or a TOML file::

    field = "customer.region"        # of a body that is a map, or JSON; or: header = "region"
    default = "/var/spool/rest"      # left out: no match is an error

    [[routes]]
    from = "A"                       # both ends belong to the range; an end that is left out is open
    to = "M"
    space = "/var/spool/a-to-m"

    [[routes]]
    values = ["X1", "X2"]
    space = "/var/spool/special"
"""

import json
import os
import threading
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, Unpack

from spool.errors import InvalidArgument
from spool.model.options import JOIN, Join, PutOptions
from spool.opening import open as open_space
from spool.shown import shown
from spool.space import Space
from spool.transactions.transaction import Transaction

_MAX_RULES_BYTES = 4 << 20
_MISSING = object()
_ENDS = (str, int, float)


class NoRoute(InvalidArgument):
    """No rule matches the message, and there is no default: it was put nowhere."""


@dataclass(frozen=True)
class Route:
    """Messages whose value is one of ``values``, or lies between ``low`` and ``high``, go to the space at that path.

    A text is compared with texts and a number with numbers; None as an end: open.
    """

    space: str
    values: tuple[Any, ...] | None = None
    low: Any = None
    high: Any = None

    def __post_init__(self) -> None:
        if not isinstance(self.space, str) or not self.space:
            raise InvalidArgument(f"a route's space is the path of one, not {shown(self.space)}")
        ends = [end for end in (self.low, self.high) if end is not None]
        if len(ends) == 2 and not (_comparable(*ends) and ends[0] <= ends[1]):
            raise InvalidArgument(f"a route's range goes up, from one text or number to another, not {shown(ends)}")

    def matches(self, value: object) -> bool:
        if self.values is not None:
            return any(_comparable(one, value) and one == value for one in self.values)
        above = self.low is None or (_comparable(self.low, value) and self.low <= value)
        below = self.high is None or (_comparable(value, self.high) and value <= self.high)
        return above and below


def _comparable(one: object, other: object) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return isinstance(one, bool) and isinstance(other, bool)
    return any(isinstance(one, kind) and isinstance(other, kind) for kind in (str, int | float))


class Router:
    """Several spaces as one place to put messages: ``Router(routes, field="region").put("orders", body)``.

    Spaces are opened when they are first needed, and closed with the router. May be used from many threads as far as
    each space may.
    """

    def __init__(
        self,
        routes: Sequence[Route],
        *,
        field: str | None = None,
        header: str | None = None,
        default: str | None = None,
    ) -> None:
        if (field is None) == (header is None):
            raise InvalidArgument("routes go by a field or by a header: name one of them")
        self._routes = tuple(routes)
        if not self._routes:
            raise InvalidArgument("there are no routes: give one at least, e.g. Route(space, values=(…,))")
        self._field = field
        self._header = header
        self._default = default
        self._spaces: dict[str, Space] = {}
        self._opening = threading.Lock()

    def __repr__(self) -> str:
        by = f"field {self._field}" if self._field is not None else f"header {self._header}"
        return f"<router by {by} to {', '.join(sorted({route.space for route in self._routes}))}>"

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The rules in a TOML file; InvalidArgument names the file, the key and what is allowed."""
        where = f"{os.fspath(path)}: "
        with open(path, "rb") as file:
            text = file.read(_MAX_RULES_BYTES + 1)
        try:
            if len(text) > _MAX_RULES_BYTES:
                raise ValueError(f"it has more than {_MAX_RULES_BYTES} bytes")
            found = tomllib.loads(text.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise InvalidArgument(f"{where}{error}") from None
        _check_keys(found, {"field": str, "header": str, "default": str, "routes": list}, where)
        routes = [_route(each, f"{where}route {place}: ") for place, each in enumerate(found.pop("routes", ()), 1)]
        try:
            return cls(routes, **found)
        except InvalidArgument as error:
            raise InvalidArgument(f"{where}{error}") from None

    def space_for(self, body: Any, headers: Mapping[str, str] | None = None) -> str:
        """The path of the space that such a message goes to; NoRoute."""
        value = self._value(body, headers or {})
        for route in self._routes if value is not _MISSING else ():
            if route.matches(value):
                return route.space
        if self._default is not None:
            return self._default
        by = f"header {self._header!r}" if self._field is None else f"field {self._field!r}"
        found = "there is none" if value is _MISSING else f"it is {shown(value)}"
        raise NoRoute(f"no route matches the message by its {by} ({found}): add one, or a default")

    def put(
        self,
        queue: str,
        body: Any,
        *,
        transaction: Transaction | Join | None = JOIN,
        **options: Unpack[PutOptions],
    ) -> str:
        """Put a message where it belongs, as ``Space.put`` does; returns its id."""
        space = self.space(self.space_for(body, options.get("headers")))
        return space.put(queue, body, transaction=transaction, **options)

    def space(self, path: str) -> Space:
        """That space, open."""
        with self._opening:
            found = self._spaces.get(path)
            if found is None:
                found = self._spaces[path] = open_space(path)
            return found

    def _value(self, body: Any, headers: Mapping[str, str]) -> Any:
        if self._header is not None:
            return headers.get(self._header, _MISSING)
        assert self._field is not None
        if isinstance(body, str | bytes):
            try:
                body = json.loads(body)
            except ValueError:
                return _MISSING
        for part in self._field.split("."):
            if not isinstance(body, Mapping) or part not in body:
                return _MISSING
            body = body[part]
        return body

    def close(self) -> None:
        """Close all its spaces."""
        with ExitStack() as closing:
            for space in self._spaces.values():
                closing.callback(space.close)
            self._spaces = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _route(found: Any, where: str) -> Route:
    if not isinstance(found, dict):
        raise InvalidArgument(f"{where}a route is a table: [[routes]]")
    _check_keys(found, {"space": str, "values": list, "from": _ENDS, "to": _ENDS}, where)
    if "space" not in found:
        raise InvalidArgument(f"{where}space is missing: the path of the space that it goes to")
    if ("values" in found) == bool({"from", "to"} & found.keys()):
        raise InvalidArgument(f"{where}give values, or from and to (or one of them)")
    values = tuple(found["values"]) if "values" in found else None
    return Route(found["space"], values, found.get("from"), found.get("to"))


def _check_keys(found: Mapping[str, Any], known: Mapping[str, Any], where: str) -> None:
    for key, value in found.items():
        if key not in known:
            raise InvalidArgument(f"{where}there is no key {shown(key)}; there are {', '.join(known)}")
        if not isinstance(value, known[key]) or isinstance(value, bool):
            raise InvalidArgument(f"{where}{key} is {_KINDS[known[key]]}, not {shown(value)}")


_KINDS: dict[Any, str] = {str: "a text", list: "a list", _ENDS: "a text or a number"}
