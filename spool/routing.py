"""Data-dependent routing: a field of the body, or a header, decides which space gets a message.

As in Tuxedo's ``ROUTING`` section, routes are ranges of values, and the first route that matches a message counts. A
message that no route matches goes to the default space; without a default, the put raises NoRoute. A program passes the
routes as values, or loads them from a TOML file::

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
from typing import Any, Self, Unpack

from spool.errors import InvalidArgument
from spool.model.checks import ValueCheck, check_options, plain, require
from spool.model.options import JOIN, Join, PutOptions
from spool.model.text import shown
from spool.opening import open as open_space
from spool.runtime.closing import Closing
from spool.space import Space
from spool.transactions.transaction import Transaction

_MAX_RULES_BYTES = 4 << 20
_MISSING = object()


def _list(value: Any) -> list[Any]:
    require(isinstance(value, list))
    return list(value)


def _end(value: Any) -> str | float:
    require(isinstance(value, str | int | float) and not isinstance(value, bool))
    return value  # type: ignore[no-any-return]


_TEXT, _LIST, _END = ValueCheck("a text", plain), ValueCheck("a list", _list), ValueCheck("a text or a number", _end)
_RULES = {"field": _TEXT, "header": _TEXT, "default": _TEXT, "routes": _LIST}
_ROUTE = {"space": _TEXT, "values": _LIST, "from": _END, "to": _END}


class NoRoute(InvalidArgument):
    """No route matches the message, and the router has no default: nothing was put."""


@dataclass(frozen=True)
class Route:
    """The space for messages whose value is one of `values`, or lies in the range from `low` to `high`.

    Both ends belong to the range. If an end is None, the range has no limit at this end. A text is only compared with
    texts, and a number only with numbers.
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
            return any(_comparable(wanted, value) and wanted == value for wanted in self.values)
        above = self.low is None or (_comparable(self.low, value) and self.low <= value)
        below = self.high is None or (_comparable(value, self.high) and value <= self.high)
        return above and below


def _comparable(left: object, right: object) -> bool:
    if isinstance(left, bool) or isinstance(right, bool):
        return isinstance(left, bool) and isinstance(right, bool)
    return any(isinstance(left, kind) and isinstance(right, kind) for kind in (str, int | float))


class Router(Closing):
    """A router puts each message into one of several spaces: ``Router(routes, field="region").put("orders", body)``.

    The router opens a space when a message first needs the space; ``close`` closes all spaces. Many threads may use a
    router. A router decides either by a field or by a header.

    Args:
        routes: the routes; the first route that matches a message counts.
        field: the path of a field in the body, e.g. "customer.region".
        header: the name of a header.
        default: the path of the space for messages that no route matches; None: such a message raises NoRoute.
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
        """Create a router from the rules in a TOML file.

        Raises:
            InvalidArgument: a rule is not valid. The text names the file, the key and the allowed values.
        """
        where = f"{os.fspath(path)}: "
        with open(path, "rb") as file:
            text = file.read(_MAX_RULES_BYTES + 1)
        try:
            if len(text) > _MAX_RULES_BYTES:
                raise ValueError(f"it has more than {_MAX_RULES_BYTES} bytes")
            rules = tomllib.loads(text.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise InvalidArgument(f"{where}{error}") from None
        rules = check_options(rules, _RULES, where)
        routes = [_route(table, f"{where}route {place}: ") for place, table in enumerate(rules.pop("routes", ()), 1)]
        try:
            return cls(routes, **rules)
        except InvalidArgument as error:
            raise InvalidArgument(f"{where}{error}") from None

    def space_for(self, body: Any, headers: Mapping[str, str] | None = None) -> str:
        """Return the path of the space for a message with this body and these headers.

        Raises:
            NoRoute: no route matches, and the router has no default.
        """
        value = self._value(body, headers or {})
        for route in self._routes if value is not _MISSING else ():
            if route.matches(value):
                return route.space
        if self._default is not None:
            return self._default
        by = f"header {self._header!r}" if self._field is None else f"field {self._field!r}"
        actual = "there is none" if value is _MISSING else f"it is {shown(value)}"
        raise NoRoute(f"no route matches the message by its {by} ({actual}): add one, or a default")

    def put(
        self, queue: str, body: Any, *, transaction: Transaction | Join | None = JOIN, **options: Unpack[PutOptions]
    ) -> str:
        """Put a message, as `Space.put` does, into the space that the router selects; returns the message's id."""
        space = self.space(self.space_for(body, options.get("headers")))
        return space.put(queue, body, transaction=transaction, **options)

    def space(self, path: str) -> Space:
        """Return the space at that path; the first call opens the space."""
        with self._opening:
            if (space := self._spaces.get(path)) is None:
                space = self._spaces[path] = open_space(path)
            return space

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
        """Close all spaces that the router has opened."""
        with ExitStack() as closing:
            for space in self._spaces.values():
                closing.callback(space.close)
            self._spaces = {}


def _route(table: Any, where: str) -> Route:
    if not isinstance(table, dict):
        raise InvalidArgument(f"{where}a route is a table: [[routes]]")
    table = check_options(table, _ROUTE, where)
    if "space" not in table:
        raise InvalidArgument(f"{where}space is missing: name the path of a space")
    if ("values" in table) == bool({"from", "to"} & table.keys()):
        raise InvalidArgument(f"{where}give values, or from and to (or one of them)")
    values = tuple(table["values"]) if "values" in table else None
    return Route(table["space"], values, table.get("from"), table.get("to"))
