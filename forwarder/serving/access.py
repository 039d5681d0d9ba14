"""Tokens, and the rights that they give to the spaces of a server.

A file has one token in each line, with the rights of the token after it: ``SPACE:read``, ``SPACE:write`` or
``SPACE:subscribe=NAME``. The rights to write and to subscribe include the right to read. A token without rights may do
everything in all spaces.

A read changes nothing in the space. A subscription does: the space keeps messages for the subscription, and releases
the messages that its reader has read. So a token names the subscriptions that it may use.
"""

import hashlib
import hmac
import logging
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NoReturn

import pyarrow.flight as flight

from forwarder.flight.address import SPACE_NAME
from forwarder.refusals import Refusals
from spool.errors import InvalidArgument

_LEAST_TOKEN, _MOST_FILE_BYTES = 16, 1 << 20
ACCESS = "access"
"""The name of the middleware."""

log = logging.getLogger("spool.server")

_RIGHT = re.compile(r"read|write|subscribe=(.{1,255})")


class Right(Enum):
    READ = "read"
    WRITE = "write"


@dataclass(frozen=True)
class SpaceRights:
    """The rights of a token to one space, beside the right to read. ``subscriptions``: their names."""

    may_write: bool = False
    subscriptions: frozenset[str] = frozenset()


class Tokens:
    """The tokens of a server. Without tokens, every client may do everything."""

    def __init__(self, lines: Iterable[str] = ()) -> None:
        """Raises InvalidArgument if a line has a wrong form. The error does not show the token."""
        self._rights: dict[bytes, tuple[str, dict[str, SpaceRights] | None]] = {}
        for number, line in enumerate(lines, 1):
            token, *rights = line.split("#")[0].split() or [""]
            if not token:
                continue
            if len(token) < _LEAST_TOKEN:
                raise InvalidArgument(f"the token in line {number} has less than {_LEAST_TOKEN} characters")
            self._rights[_hashed(token)] = f"the token in line {number}", _parsed(rights, number) if rights else None

    @classmethod
    def of_file(cls, path: str) -> "Tokens":
        """Read the tokens of a file, which only its owner may read. InvalidArgument if this is not the case."""
        try:
            with open(path, encoding="utf-8") as file:
                if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                    raise InvalidArgument(f"other users may read {path}: chmod 600 {path}")
                lines = file.read(_MOST_FILE_BYTES).splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidArgument(f"the tokens cannot be read: {error}") from None
        tokens = cls(lines)
        if not tokens.exist:
            raise InvalidArgument(f"{path} has no token: write one in a line, e.g. that of openssl rand -hex 32")
        return tokens

    @property
    def exist(self) -> bool:
        return bool(self._rights)

    @property
    def key(self) -> bytes:
        """The key that seals tickets: the same after a restart with the same tokens."""
        return (
            hashlib.blake2b(b"".join(sorted(self._rights)), digest_size=32).digest() if self.exist else os.urandom(32)
        )

    def rights(self, token: str) -> tuple[str, Mapping[str, SpaceRights] | None]:
        """Return the name of a token, and its rights by space; None for all rights. KeyError for an unknown token.

        The name of a token is the place of its line, because nobody else may learn the token. Without tokens, it is "".
        """
        if not self.exist:
            return "", None
        asked, found = _hashed(token), None
        for known in self._rights:  # all are compared, so that the time tells nothing about a token
            found = known if hmac.compare_digest(asked, known) else found
        if found is None:
            raise KeyError
        return self._rights[found]


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


def _log_refusal(sentence: str) -> None:
    log.warning("a call was refused: %s", sentence)


def _log_number(count: int) -> None:
    log.warning("%d further calls were refused", count)


class Access(flight.ServerMiddleware):
    """The rights of the client of one call. ``token``: the name of its token."""

    def __init__(self, token: str, rights: Mapping[str, SpaceRights] | None, refusals: Refusals) -> None:
        super().__init__()
        self.token = token
        self._rights = rights
        self._refusals = refusals

    @property
    def is_writer(self) -> bool:
        """Whether the client may write into any space."""
        return self._rights is None or any(rights.may_write for rights in self._rights.values())

    def check(self, space: str, right: Right) -> None:
        """Raise FlightUnauthorizedError unless the client has the right to the space."""
        if self._rights is None:
            return
        given = self._rights.get(space)
        if given is None or (right is Right.WRITE and not given.may_write):
            self._refuse(f"the right to {right.value} {space!r}")

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
        self._refusals.record(f"{self.token} does not give {right}")
        raise flight.FlightUnauthorizedError(f"the token does not give {right}{advice}")


class AccessFactory(flight.ServerMiddlewareFactory):
    """Looks the token of each call up, before the call begins."""

    def __init__(self, tokens: Tokens) -> None:
        super().__init__()
        self._tokens = tokens
        self.refusals = Refusals(_log_refusal, _log_number)

    def start_call(self, info: Any, headers: Mapping[str, Any]) -> Access:
        values = [value for name, some in headers.items() if name.lower() == "authorization" for value in some]
        text = values[0] if len(values) == 1 and isinstance(values[0], str) else ""
        try:
            return Access(*self._tokens.rights(text.removeprefix("Bearer ")), self.refusals)
        except KeyError:
            self.refusals.record("its token is unknown" if values else "it has no token")
            raise flight.FlightUnauthenticatedError(
                "the token is missing or unknown: give the option tokenFile, or set XASPOOL_TOKEN"
            ) from None
