"""Tokens, and the rights that they give to the spaces of a server.

A file has one token in each line, with the rights of the token after it: ``SPACE:read`` or ``SPACE:write``. A token
without rights may read and write all spaces. The right to write includes the right to read.
"""

import hashlib
import hmac
import os
import stat
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

import pyarrow.flight as flight

from spool.errors import InvalidArgument

_LEAST_TOKEN, _MOST_FILE_BYTES = 16, 1 << 20
ACCESS = "access"
"""The name of the middleware."""


class Right(Enum):
    READ = "read"
    WRITE = "write"


class Tokens:
    """The tokens of a server. Without tokens, every client may read and write."""

    def __init__(self, lines: Iterable[str] = ()) -> None:
        """Raises InvalidArgument if a line has a wrong form. The error does not show the token."""
        self._rights: dict[bytes, dict[str, Right] | None] = {}
        for number, line in enumerate(lines, 1):
            token, *rights = line.split("#")[0].split() or [""]
            if not token:
                continue
            if len(token) < _LEAST_TOKEN:
                raise InvalidArgument(f"the token in line {number} has less than {_LEAST_TOKEN} characters")
            self._rights[_hashed(token)] = _parsed(rights, number) if rights else None

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

    def rights(self, token: str) -> Mapping[str, Right] | None:
        """Return the rights of a token by space; None for the right to write all. KeyError for an unknown token."""
        if not self.exist:
            return None
        asked, found = _hashed(token), None
        for known in self._rights:  # all are compared, so that the time tells nothing about a token
            found = known if hmac.compare_digest(asked, known) else found
        if found is None:
            raise KeyError
        return self._rights[found]


def _hashed(token: str) -> bytes:
    return hashlib.blake2b(token.encode("utf-8", "surrogateescape"), digest_size=32).digest()


def _parsed(rights: Iterable[str], line: int) -> dict[str, Right]:
    found = {}
    for text in rights:
        space, _, right = text.rpartition(":")
        if not space or right not in ("read", "write"):
            raise InvalidArgument(f"line {line} of the tokens: a right is SPACE:read or SPACE:write, not {text!r}")
        found[space] = Right(right)
    return found


class Access(flight.ServerMiddleware):
    """The rights of the client of one call."""

    def __init__(self, rights: Mapping[str, Right] | None) -> None:
        super().__init__()
        self._rights = rights

    def check(self, space: str, right: Right) -> None:
        """Raise FlightUnauthorizedError unless the client has the right to the space."""
        if self._rights is None:
            return
        given = self._rights.get(space)
        if given is None or (right is Right.WRITE and given is Right.READ):
            raise flight.FlightUnauthorizedError(f"the token does not give the right to {right.value} {space!r}")


class AccessFactory(flight.ServerMiddlewareFactory):
    """Looks the token of each call up, before the call begins."""

    def __init__(self, tokens: Tokens) -> None:
        super().__init__()
        self._tokens = tokens

    def start_call(self, info: Any, headers: Mapping[str, Any]) -> Access:
        values = [value for name, some in headers.items() if name.lower() == "authorization" for value in some]
        text = values[0] if len(values) == 1 and isinstance(values[0], str) else ""
        try:
            return Access(self._tokens.rights(text.removeprefix("Bearer ")))
        except KeyError:
            raise flight.FlightUnauthenticatedError(
                "the token is missing or unknown: give the option tokenFile, or set XASPOOL_TOKEN"
            ) from None
