"""The options of a data source that name a server: its address, and how to connect to it."""

from collections.abc import Mapping

from forwarder.flight.address import is_address

CONNECTION = ("token", "tokenFile", "tlsCertificate")
"""token: the token of the client. tokenFile: a file with the token. tlsCertificate: a file with the certificate of the
server's authority, as PEM. Without a token, the client takes the environment variable XASPOOL_TOKEN."""

_NAMES = frozenset(name.lower() for name in CONNECTION)


def is_remote(options: Mapping[str, str]) -> bool:
    """Return whether the options name a space of a server."""
    return any(name.lower() == "path" and is_address(value) for name, value in options.items())


def without_connection(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options without those of the connection, if they name a server; otherwise all options.

    The path is then "/", which nobody uses, so that the other options can be checked before the server is asked.
    """
    if not is_remote(options):
        return dict(options)
    left = {name: value for name, value in options.items() if name.lower() not in _NAMES}
    return {name: "/" if name.lower() == "path" else value for name, value in left.items()}
