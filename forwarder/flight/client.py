"""The calls of a client to a server of spaces.

A client is a plain value, which Spark pickles for the tasks. Each process connects when it makes its first call.
"""

import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

import msgpack
import pyarrow as pa
import pyarrow.flight as flight

from forwarder.flight.address import Address
from forwarder.flight.codes import encode, raise_as_ours
from spool.errors import InvalidArgument

TOKEN_VARIABLE = "XASPOOL_TOKEN"
_KEEPALIVE_MILLISECONDS = 310_000
"""After this time, a client checks whether a silent server still runs. If a client checks more often than every 300
seconds, gRPC's server ends the connection, e.g. while a slow reader takes nothing."""
_SMALL_REQUEST = 64 << 10
CALL_SECONDS = 300.0
"""The longest time of a call that returns one answer. A commit with a full disk or a long recovery needs minutes."""


@dataclass(frozen=True)
class Client:
    """A client of one space. ``token``: the client's token; "" if the server asks for none.

    ``certificate``: the certificate of the server's authority, as PEM; b"" stands for the authorities that the system
    knows. ``token_place`` and ``certificate_file`` are the sources of the token and the certificate, for error texts.
    """

    address: Address
    token: str = ""
    certificate: bytes = b""
    token_place: str = ""
    certificate_file: str = ""

    @classmethod
    def of(cls, address: str, token: str | None, token_file: str | None, certificate_file: str | None) -> Self:
        """Return the client for the options of a program. InvalidArgument if a file cannot be read.

        Without a token, the client uses the environment variable XASPOOL_TOKEN if it is set.
        """
        place = f"the environment variable {TOKEN_VARIABLE}" if token is None else "the option token"
        if token_file is not None:
            place = f"the option tokenFile, {token_file}"
            token = _read(token_file, "the token").decode("ascii", "replace").strip()
        certificate = b"" if certificate_file is None else _read(certificate_file, "the certificate")
        if certificate_file is not None and b"-----BEGIN CERTIFICATE-----" not in certificate:
            raise InvalidArgument(f"{certificate_file} has no certificate as PEM: give tlsCertificate another file")
        token = os.environ.get(TOKEN_VARIABLE, "") if token is None else token
        return cls(Address.parse(address), token, certificate, place if token else "", certificate_file or "")

    def __repr__(self) -> str:  # (without the token, because logs may show the client)
        return f"Client({self.address.server}/{self.address.space})"

    # -- calls --------------------------------------------------------------------------------------------------------

    def act(self, action: str, **values: Any) -> dict[str, Any]:
        """Make a call with one answer, and return the answer's values."""
        request = flight.Action(action, self._request(values))
        with self._connected() as (connection, options):
            [answer] = connection.do_action(request, options)
            found: dict[str, Any] = msgpack.unpackb(answer.body.to_pybytes())
            return found

    def plan(self, **values: Any) -> list[bytes]:
        """Return the tickets of a read."""
        descriptor = flight.FlightDescriptor.for_command(self._request(values))
        with self._connected() as (connection, options):
            info = connection.get_flight_info(descriptor, options)
            return [endpoint.ticket.ticket for endpoint in info.endpoints]

    def read(self, ticket: bytes) -> Generator[pa.RecordBatch]:
        """Yield the batches of a ticket's messages."""
        request = flight.Ticket(self._introduced(ticket))
        with self._connected(None) as (connection, options):
            reader: Any = connection.do_get(request, options)
            try:
                for chunk in reader:
                    yield chunk.data
            finally:  # (also ends the call if the caller stops early)
                reader.cancel()

    def write(self, batches: Iterator[pa.RecordBatch], columns: pa.Schema, /, **values: Any) -> dict[str, Any]:
        """Send rows, and return the values of the server's answer. The server has voted when this method returns."""
        descriptor = flight.FlightDescriptor.for_command(self._request(values))
        with self._connected(None) as (connection, options):
            answers: Any
            writer, answers = connection.do_put(descriptor, columns, options)
            with writer:
                for batch in batches:
                    writer.write_batch(batch)
                writer.done_writing()
                answer = answers.read()
            found: dict[str, Any] = msgpack.unpackb(answer.to_pybytes())
            return found

    def _request(self, values: dict[str, Any]) -> bytes:
        return self._introduced(encode({"space": self.address.space, **values}))

    def _introduced(self, request: bytes) -> bytes:
        """Send the token before a large request, because a server takes little from a client without a known token."""
        if len(request) > _SMALL_REQUEST:
            self.act("health")
        return request

    @contextmanager
    def _connected(
        self, seconds: float | None = CALL_SECONDS
    ) -> Iterator[tuple[flight.FlightClient, flight.FlightCallOptions]]:
        headers: Any = [(b"authorization", f"Bearer {self.token}".encode())] if self.token else []
        try:
            connection = _connection(self.address.server, self.certificate, os.getpid())
            yield connection, flight.FlightCallOptions(seconds, headers=headers)
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise_as_ours(error, self.address.server, self.token_place, self.certificate_file)


@lru_cache(maxsize=64)
def _connection(server: str, certificate: bytes, process: int) -> flight.FlightClient:
    """Return the connection of this process to a server. A call connects if the connection is new or lost.

    ``process``: the id of this process. A connection of the parent process can be neither used nor closed in a child.
    """
    options: dict[str, Any] = {"tls_root_certs": certificate} if certificate else {}
    return flight.FlightClient(server, generic_options=[("grpc.keepalive_time_ms", _KEEPALIVE_MILLISECONDS)], **options)


def _read(path: str, what: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(1 << 20)
    except OSError as error:
        raise InvalidArgument(f"{what} cannot be read: {error}") from None
