"""The tokens of clients, and the rights of each token to the spaces of a server.

A line of a token file has a token, followed by the token's rights: ``SPACE:read``, ``SPACE:write`` or
``SPACE:subscribe=NAME``. The rights to write and to subscribe include the right to read. A token without rights may do
everything in all spaces.

A read changes nothing in the space. A subscription changes the space, because the space keeps messages until the
subscription's reader has read them. So a token needs a right to each subscription that it may use.
"""

import hashlib
import hmac
import logging
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, NoReturn

import pyarrow.flight as flight

from forwarder.flight.address import SPACE_NAME
from forwarder.refusals import Refusals
from spool.errors import InvalidArgument

_LEAST_TOKEN, _MOST_TOKEN, _MOST_FILE_BYTES = 16, 256, 1 << 20
_FILE_SECONDS = 1.0
ACCESS = "access"
"""The name of the middleware."""

log = logging.getLogger("spool.server")

_RIGHT = re.compile(r"read|write|subscribe=(.{1,255})")


NO_TOKEN = "it sends no token: give the option tokenFile, or set XASPOOL_TOKEN"
UNKNOWN_TOKEN = "its token is unknown: the server's --token-file needs a line that begins with this token"


class Right(Enum):
    READ = "read"
    WRITE = "write"


@dataclass(frozen=True)
class SpaceRights:
    """The rights of a token to one space, besides the right to read. ``subscriptions``: the subscriptions' names."""

    may_write: bool = False
    subscriptions: frozenset[str] = frozenset()


class Known(NamedTuple):
    """A known token: its name, its identity, and its rights by space (None for all rights).

    The name is the place of the token's line, and the identity is a hash, so neither reveals the token.
    """

    name: str
    token: str
    rights: Mapping[str, SpaceRights] | None


class Tokens:
    """The tokens of a server. Without tokens, every client may do everything."""

    def __init__(self, lines: Iterable[str] = ()) -> None:
        """Raises InvalidArgument if a line has a wrong form. The error text does not contain the token."""
        self._known: dict[bytes, Known] = {}
        for number, line in enumerate(lines, 1):
            token, *rights = line.split("#")[0].split() or [""]
            if not token:
                continue
            if not _LEAST_TOKEN <= len(token) <= _MOST_TOKEN:
                many, limit = ("less", _LEAST_TOKEN) if len(token) < _LEAST_TOKEN else ("more", _MOST_TOKEN)
                raise InvalidArgument(f"the token in line {number} has {many} than {limit} characters")
            given = _parsed(rights, number) if rights else None
            self._known[_hashed(token)] = Known(f"the token in line {number}", _hashed(token).hex(), given)

    @staticmethod
    def of_file(path: str) -> "Tokens":
        """Read the tokens of a file. InvalidArgument if other users than the file's owner may read the file."""
        try:
            with open(path, encoding="utf-8") as file:
                if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                    raise InvalidArgument(f"other users may read {path}: chmod 600 {path}")
                lines = file.read(_MOST_FILE_BYTES).splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidArgument(f"the tokens cannot be read: {error}") from None
        try:
            tokens = Tokens(lines)
        except InvalidArgument as error:
            raise InvalidArgument(f"{path}: {error}") from None
        if not tokens.exist:
            raise InvalidArgument(f"{path} has no token: write one in a line, e.g. that of openssl rand -hex 32")
        return tokens

    @property
    def exist(self) -> bool:
        return bool(self._known)

    @property
    def key(self) -> bytes:
        """The key that seals tickets. With the same tokens, the key is the same after a restart."""
        return hashlib.blake2b(b"".join(sorted(self._known)), digest_size=32).digest() if self.exist else os.urandom(32)

    def known(self, token: str) -> Known:
        """Return the name and the rights of a token. KeyError for an unknown token.

        Without tokens, each call has all rights.
        """
        if not self.exist:
            return Known("", "", None)
        asked, found, tokens = _hashed(token), None, self._known
        for known in tokens:  # compare all, so that the duration reveals nothing about a token
            found = known if hmac.compare_digest(asked, known) else found
        if found is None:
            raise KeyError
        return tokens[found]

    @property
    def spaces(self) -> set[str]:
        """The names of the spaces to which the tokens give rights."""
        return {space for known in self._known.values() for space in known.rights or ()}


class TokenFile(Tokens):
    """The tokens of a file. A changed file is read again, at most once a second.

    While a changed file is wrong, the previous tokens remain valid.
    """

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises InvalidArgument as ``of_file`` does."""
        super().__init__()
        self._path, self._clock = path, clock
        self._mutex = threading.Lock()
        self._identity = _identity(path)
        self._known = Tokens.of_file(path)._known
        self._next = clock() + _FILE_SECONDS

    def known(self, token: str) -> Known:
        with self._mutex:
            if self._clock() >= self._next:
                self._read_again()
                self._next = self._clock() + _FILE_SECONDS
        return super().known(token)

    def _read_again(self) -> None:
        identity = _identity(self._path)
        if identity == self._identity:
            return
        self._identity = identity
        try:
            self._known = Tokens.of_file(self._path)._known
        except InvalidArgument as error:
            log.warning("the file of tokens has changed, and the tokens of before remain valid: %s", error)


def _identity(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _hashed(token: str) -> bytes:
    return hashlib.blake2b(token.encode("utf-8", "surrogateescape"), digest_size=32).digest()


def _parsed(rights: Iterable[str], line: int) -> dict[str, SpaceRights]:
    found: dict[str, SpaceRights] = {}
    for text in rights:
        space, _, right = text.partition(":")
        named = _RIGHT.fullmatch(right)
        if SPACE_NAME.fullmatch(space) is None or named is None:
            raise InvalidArgument(
                f"line {line} of the tokens: a right is SPACE:read, SPACE:write or SPACE:subscribe=NAME, not {text!r}"
            )
        had = found.get(space, SpaceRights())
        subscriptions = had.subscriptions | ({named[1]} if named[1] else frozenset())
        found[space] = SpaceRights(had.may_write or right == Right.WRITE.value, subscriptions)
    return found


def _logged(clients: str) -> Refusals:
    return Refusals(
        lambda sentence: log.warning("a call was refused: %s", sentence),
        lambda count: log.warning("%d further calls%s were refused", count, clients),
    )


class Access(flight.ServerMiddleware):
    """The rights of the client of one call.

    name: the name of the client's token, for the log.
    token: the identity of the token, which does not change when lines of the file move; "" without tokens.
    refusal: the error text for a client without a known token, i.e. without any right; otherwise "".
    """

    def __init__(self, known: Known, refusals: Refusals, refusal: str = "") -> None:
        super().__init__()
        self.name, self.token, self._rights = known
        self._refusals = refusals
        self.refusal = refusal

    @property
    def is_writer(self) -> bool:
        """Whether the client may write into at least one space."""
        return self._rights is None or any(rights.may_write for rights in self._rights.values())

    def record(self, refusal: str) -> None:
        """Log a refused call of the token."""
        self._refusals.record(f"{self.name}: {refusal}" if self.name else refusal)

    def check(self, space: str, right: Right) -> None:
        """Raise FlightUnauthorizedError unless the client has the right to the space."""
        if self._rights is None:
            return
        given = self._rights.get(space)
        if given is None or (right is Right.WRITE and not given.may_write):
            self._refuse(
                f"the right to {right.value} {space[:100]!r}", f": it has rights to {', '.join(self._rights)}"[:1000]
            )

    def check_subscription(self, space: str, name: str) -> None:
        """Raise FlightUnauthorizedError unless the client may use this subscription of the space."""
        self.check(space, Right.READ)
        if self._rights is not None and name not in self._rights[space].subscriptions:
            self._refuse(
                f"the right to the subscription {name!r} of {space!r}",
                ": read without a subscription, or let the server's file of tokens give the token "
                f"{space}:subscribe={name}",
            )

    def _refuse(self, right: str, advice: str = "") -> NoReturn:
        self._refusals.record(f"{self.name} does not give {right}")
        raise flight.FlightUnauthorizedError(f"the token does not give {right}{advice}")


_NOBODY = Known("", "", {})


class AccessFactory(flight.ServerMiddlewareFactory):
    """Looks up the token of each call before the call begins.

    A call without a known token gets no right. ``Server.accept`` refuses the call, because only the call knows its
    client. The log lines of such calls have a separate limit, so strangers cannot hide refused calls of a known token.
    """

    def __init__(self, tokens: Tokens) -> None:
        super().__init__()
        self._tokens = tokens
        self._refusals = _logged(" of known tokens")
        self.strangers = _logged(" without a known token")

    def start_call(self, info: Any, headers: Mapping[str, Any]) -> Access:
        values = [value for name, some in headers.items() if name.lower() == "authorization" for value in some]
        text = values[0] if len(values) == 1 and isinstance(values[0], str) else ""
        try:
            return Access(self._tokens.known(text.removeprefix("Bearer ")), self._refusals)
        except KeyError:
            self.strangers.record("its token is unknown" if values else "it has no token")
            return Access(_NOBODY, self._refusals, UNKNOWN_TOKEN if values else NO_TOKEN)
