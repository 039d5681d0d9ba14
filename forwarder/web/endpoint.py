"""The options of a forwarder's endpoint, from which workers that do not see the space get their messages."""

from dataclasses import dataclass

from forwarder.web.sockets import is_loopback
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
