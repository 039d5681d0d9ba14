"""The address of a space that a server shares, ``spool+grpc+tls://host:port/name``, and the options of a connection."""

import re
from collections.abc import Mapping
from typing import NamedTuple, Self

from spool.errors import InvalidArgument, SystemFailure

_SCHEMES = {"spool+grpc": "grpc+tcp", "spool+grpc+tls": "grpc+tls"}
_ADDRESS = re.compile(
    r"(spool\+grpc(?:\+tls)?)://(\[[0-9a-fA-F:.]+\]|[^\s/:@\[\]]+):([0-9]{1,5})/([A-Za-z0-9._-]{1,64})"
)
SPACE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
"""The names of spaces on a server. A name is no path: the name has no slash, and does not begin with a dot."""


class Unreachable(SystemFailure):
    """The server cannot be reached, or ended during the call."""


class Address(NamedTuple):
    """A space on a server. ``server``: the server's address for Arrow Flight. ``is_encrypted``: whether TLS is used."""

    server: str
    space: str
    is_encrypted: bool

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the address. InvalidArgument if the text is no address of a space."""
        found = _ADDRESS.fullmatch(text)
        if found is None or not 0 < int(found[3]) < 65_536 or SPACE_NAME.fullmatch(found[4]) is None:
            raise InvalidArgument(
                f"{text!r} is not the address of a space, which is written spool+grpc+tls://HOST:PORT/NAME, "
                "or spool+grpc://HOST:PORT/NAME without encryption"
            )
        return cls(f"{_SCHEMES[found[1]]}://{found[2]}:{found[3]}", found[4], found[1].endswith("tls"))


def is_address(path: str) -> bool:
    """Return whether the path of a space is an address, and not a directory. Only addresses begin with a scheme."""
    return re.match(r"(spool\+[a-z+]*|https?|grpc[a-z+]*)://", path) is not None


# -- the options of a data source -------------------------------------------------------------------------------------

CONNECTION = ("token", "tokenFile", "tlsCertificate")
"""token: the token of the client. tokenFile: a file with the token. tlsCertificate: a file with the certificate of the
server's authority, as PEM. Without a token, the client reads the environment variable XASPOOL_TOKEN."""

_NAMES = frozenset(name.lower() for name in CONNECTION)


def is_remote(options: Mapping[str, str]) -> bool:
    """Return whether the options name a space on a server."""
    return any(name.lower() == "path" and is_address(value) for name, value in options.items())


def without_connection(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options for a space on a server without the connection options; otherwise return all options.

    The path of a space on a server is replaced by "/", so that the other options can be checked without the server.
    """
    if not is_remote(options):
        return dict(options)
    left = {name: value for name, value in options.items() if name.lower() not in _NAMES}
    return {name: "/" if name.lower() == "path" else value for name, value in left.items()}
