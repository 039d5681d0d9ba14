"""The sockets that listen at the address of a server, and the options of a forwarder's endpoint.

Workers that do not see the space get their messages from the endpoint.
"""

import errno
import ipaddress
import os
import socket
from dataclasses import dataclass

from spool.errors import Argument, InvalidArgument


@dataclass(frozen=True)
class Endpoint:
    """An address of this machine at which the forwarder offers messages to the workers of a cluster.

    The workers connect to this address, so ``host`` is a host name or an IP address that the workers can reach.

    host, port: port 0 takes a free port.
    certificate, key: the files with the certificate chain and the private key for ``host``, as PEM. The forwarder sends
        the certificate to the workers with their tasks, so a certificate that you have signed yourself is enough.
    insecure: whether the endpoint may listen beyond this machine without TLS. Then everybody on the network can read
        the messages that are sent.

    Raises:
        InvalidArgument: the workers cannot connect to the address, or the connection would not be encrypted.
    """

    host: str
    port: int = 0
    certificate: str | None = None
    key: str | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise InvalidArgument(Argument("certificate"), " and ", Argument("key"), " belong together: give both")
        if self.host in ("", "0.0.0.0", "::"):
            raise InvalidArgument(
                f"workers cannot connect to {self.host or 'an empty address'}: "
                "give the name or the address by which they reach this machine"
            )
        if self.certificate is None and not self.insecure and not is_loopback(self.host):
            raise InvalidArgument(
                f"{self.host} can be reached from other machines: give ", Argument("certificate"), " and ",
                Argument("key"), ", or ", Argument("insecure"),
            )  # fmt: skip


def is_loopback(host: str) -> bool:
    """Return whether only programs of this machine reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


_OTHER_LOOPBACK = {"127.0.0.1": (socket.AF_INET6, "::1"), "::1": (socket.AF_INET, "127.0.0.1")}


def listening(host: str, port: int) -> list[socket.socket]:
    """Return the sockets that listen at all addresses of a host. Port 0 takes a free port.

    A client may take 127.0.0.1 or ::1 for ``localhost``. So a server at one of these two addresses also listens at the
    other. Otherwise another user of the machine could listen at the other address, and would get the tokens and cookies
    of this server's clients.

    Raises OSError if an address cannot be used; ``filename`` names the other address if another program listens at it.
    Raises UnicodeError if ``host`` cannot be the name of a host.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    wanted = dict.fromkeys((family, str(at[0])) for family, _, _, _, at in found)
    others = {_OTHER_LOOPBACK[address] for _, address in wanted if address in _OTHER_LOOPBACK} - wanted.keys()
    listeners: list[socket.socket] = []
    try:
        for family, address in [*wanted, *others]:
            taken = listeners[0].getsockname()[1] if listeners else port
            is_dual = address == "::" and socket.has_dualstack_ipv6()
            try:
                listeners.append(socket.create_server((address, taken), family=family, dualstack_ipv6=is_dual))
            except OSError as error:
                if error.errno == errno.EADDRINUSE and listeners:
                    raise OSError(error.errno, os.strerror(error.errno), address) from None
                if (family, address) in wanted:
                    raise
                # (otherwise the machine does not have the other address)
    except OSError as error:
        for each in listeners:
            each.close()
        if port == 0 and error.filename is not None:
            return listening(host, port)
        raise
    return listeners


def in_url(host: str) -> str:
    """Return the host as a URL contains it."""
    return f"[{host}]" if ":" in host else host
