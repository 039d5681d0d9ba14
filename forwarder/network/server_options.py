"""The options of a data source for a space on a server, which is named by an address instead of a directory."""

from collections.abc import Mapping

from spool.client.connection import HttpConnection, is_address

CONNECTION = ("token", "tokenFile", "tlsCertificate")
"""token: the token of the client. tokenFile: a file with the token. tlsCertificate: a file with the certificate of the
server's authority, as PEM. Without a token, the client reads the environment variable XASPOOL_TOKEN."""

_NAMES = frozenset(name.lower() for name in CONNECTION)


def is_remote(options: Mapping[str, str]) -> bool:
    """Return whether the options name a space on a server."""
    return any(name.lower() == "path" and is_address(value) for name, value in options.items())


def connection_of(options: Mapping[str, str]) -> HttpConnection:
    """Return the connection for the options. InvalidArgument if the address or a file of the connection is wrong."""
    given = {name.lower(): value for name, value in options.items()}
    return HttpConnection.of(given["path"], *(given.get(name.lower()) for name in CONNECTION))


def without_connection(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options for a space on a server without the connection options; otherwise return all options.

    The path of a space on a server is replaced by "/", so that the other options can be checked without the server.
    """
    if not is_remote(options):
        return dict(options)
    left = {name: value for name, value in options.items() if name.lower() not in _NAMES}
    return {name: "/" if name.lower() == "path" else value for name, value in left.items()}
