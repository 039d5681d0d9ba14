"""The tokens of clients, and the rights of each token to the spaces of a server.

A line of a token file has a token, followed by the token's rights. ``SPACE:look`` is the right to read the queues of a
space, ``SPACE:take`` the right to take messages, and ``SPACE:put`` the right to put messages. ``SPACE:put=QUEUE`` gives
the right to one queue only. ``SPACE:subscribe=NAME`` is the right to read with this subscription of Spark, which
includes the right to look. ``read`` stands for ``look``, and ``write`` for ``put`` and ``look``. A token without rights
may do everything in all spaces.

A look changes nothing in the space. A subscription changes the space, because the space keeps messages until the
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
from enum import Enum
from typing import NamedTuple

from spool.errors import AccessDenied, InvalidArgument

SPACE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
"""The names of spaces on a server. A name is no path: the name has no slash, and does not begin with a dot."""
_LEAST_TOKEN, _MOST_TOKEN, _MOST_FILE_BYTES = 16, 256, 1 << 20
_FILE_SECONDS = 1.0

log = logging.getLogger("spool.server")

NO_TOKEN = "it sends no token: give a token to the client, e.g. in XASPOOL_TOKEN, or the header Authorization: Bearer …"
UNKNOWN_TOKEN = "its token is unknown: the server's --token-file needs a line that begins with this token"


class Right(Enum):
    LOOK = "look"
    TAKE = "take"
    PUT = "put"
    SUBSCRIBE = "subscribe"


_RIGHT = re.compile(r"(look|take|put|read|write)(?:=([A-Za-z0-9_-][A-Za-z0-9._-]{0,126}))?|(subscribe)=(.{1,255})")
_MEANT = {"read": (Right.LOOK,), "write": (Right.PUT, Right.LOOK), "subscribe": (Right.SUBSCRIBE,)}
_Rights = frozenset[tuple[Right, str | None]]
"""Rights to one space: each with the name of a queue or a subscription, or with None for all queues."""


class Client(NamedTuple):
    """A client with a known token. ``rights``: by space; None for all rights.

    The name is the place of the token's line, and the token is a hash, so neither reveals the token.
    """

    name: str
    token: str
    rights: Mapping[str, _Rights] | None

    def check(self, space: str, right: Right, name: str | None = None) -> None:
        """Raise AccessDenied unless the client has a right to the space.

        ``name``: the queue or the subscription; None for all queues of the space.
        """
        if self.rights is None:
            return
        given = self.rights.get(space, frozenset())
        if not {(right, None), (right, name)} & given:
            to = f"{space}:{right.value}" if name is None else f"{space}:{right.value}={name}"
            had = ", ".join(self.rights) or "no space"
            raise AccessDenied(f"the token does not give the right {to[:300]}: it has rights to {had}"[:1000])

    def may_enter(self, space: str) -> bool:
        """Return whether the client has any right to the space."""
        return self.rights is None or space in self.rights


EVERYBODY = Client("", "", None)
"""The client of a server without tokens."""


class Tokens:
    """The tokens of a server. Without tokens, every client may do everything."""

    def __init__(self, lines: Iterable[str] = ()) -> None:
        """Raises InvalidArgument if a line has a wrong form. The error text does not contain the token."""
        self._known: dict[bytes, Client] = {}
        for number, line in enumerate(lines, 1):
            token, *rights = line.split("#")[0].split() or [""]
            if not token:
                continue
            if not _LEAST_TOKEN <= len(token) <= _MOST_TOKEN:
                many, limit = ("less", _LEAST_TOKEN) if len(token) < _LEAST_TOKEN else ("more", _MOST_TOKEN)
                raise InvalidArgument(f"the token in line {number} has {many} than {limit} characters")
            given = _parsed(rights, number) if rights else None
            self._known[_hashed(token)] = Client(f"the token in line {number}", _hashed(token).hex(), given)

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
        """A part of the key that seals tickets. With the same tokens, the key is the same after a restart, and in each
        process of a server."""
        return hashlib.blake2b(b"".join(sorted(self._known)), digest_size=32).digest()

    def known(self, token: str) -> Client:
        """Return the name and the rights of a token. KeyError for an unknown token.

        Without tokens, each call has all rights.
        """
        if not self.exist:
            return EVERYBODY
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

    def known(self, token: str) -> Client:
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


def _parsed(rights: Iterable[str], line: int) -> dict[str, _Rights]:
    found: dict[str, _Rights] = {}
    for text in rights:
        space, _, right = text.partition(":")
        named = _RIGHT.fullmatch(right)
        if SPACE_NAME.fullmatch(space) is None or named is None:
            raise InvalidArgument(
                f"line {line} of the tokens: a right is SPACE:look, SPACE:take or SPACE:put, each with =QUEUE for one "
                f"queue, or SPACE:subscribe=NAME, not {text!r}"
            )
        kind, name = named[1] or named[3], named[2] or named[4]
        meant = {(each, name) for each in _MEANT.get(kind) or (Right(kind),)}
        if named[3]:
            meant.add((Right.LOOK, None))
        found[space] = found.get(space, frozenset()) | meant
    return found
