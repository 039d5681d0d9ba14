"""The options of a forwarder's endpoint, from which workers that do not see the space get their messages."""

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from spool.errors import Argument, InvalidArgument


@dataclass(frozen=True)
class Endpoint:
    """An address of this machine at which the forwarder offers messages to the workers of a cluster.

    The workers connect to this address, so it is a name or an address of this machine that they reach.

    host, port: port 0 takes a free port.
    certificate, key: the files with the certificate chain and the private key for ``host``, as PEM. The forwarder sends
        the certificate to the workers with their tasks, so a certificate that you have signed yourself is enough.
    insecure: whether the endpoint may listen beyond this machine without TLS. Then everybody on the network can read
        the messages on their way.

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

    def pem(self) -> tuple[bytes | None, bytes | None]:
        """Return the certificate chain and the private key. InvalidArgument if a file cannot be read."""
        try:
            certificate, key = (
                None if name is None else Path(name).read_bytes() for name in (self.certificate, self.key)
            )
        except OSError as error:
            raise InvalidArgument(f"the certificate or its key cannot be read: {error}") from None
        return certificate, key


def is_loopback(host: str) -> bool:
    """Return whether only programs of this machine reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def in_url(host: str) -> str:
    """Return the host as a URL contains it."""
    return f"[{host}]" if ":" in host else host
