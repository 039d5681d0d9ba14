"""The server: the only class that answers calls of Arrow Flight, with one set of protections for all requests.

For each call, the server checks the client's token, counts the client's bytes and reads, limits the rows of a task, and
turns errors into errors for the client. A subclass answers the requests: ``server.SpaceServer`` the requests for
spaces, ``offers.OfferServer`` the requests for the messages of a forwarder.
"""

import errno
import logging
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.flight as flight

from forwarder.flight.codes import as_flight, encode, packed_vote
from forwarder.flight.endpoint import in_url
from forwarder.serving.access import ACCESS, Access, AccessFactory, Tokens
from forwarder.serving.gate import Gate
from spool.engine.tasks import Vote
from spool.errors import DiskFailure, InvalidArgument, ProtocolError, SpoolError, SystemFailure
from spool.workers.outcome import describe

MOST_BYTES_OF_TASK = 16 << 30

Answer = Mapping[str, Any]

log = logging.getLogger("spool.server")


class Server(flight.FlightServerBase):
    """Listens at an address until ``close``.

    Args:
        certificate, key: the files with the certificate chain and the private key of the server, as PEM; None without
            TLS.
        most_bytes: the most bytes that one task may send.

    Raises:
        InvalidArgument: the certificate or its key is not valid.
        OSError: the server cannot listen.
    """

    actions: ClassVar[Mapping[str, Callable[[Any, Access, bytes], Answer]]]
    """The calls with one answer."""

    def __init__(
        self,
        host: str,
        port: int,
        tokens: Tokens,
        *,
        certificate: str | None = None,
        key: str | None = None,
        most_bytes: int = MOST_BYTES_OF_TASK,
    ) -> None:
        access = AccessFactory(tokens)
        self._host, self._most_bytes = host, most_bytes
        try:
            self._gate = Gate(host, port, certificate, key, access.strangers.record)
        except OSError as error:
            raise OSError(
                f"the server cannot listen at {in_url(host)}:{port}; does another program listen there? ({error})"
            ) from None
        try:
            super().__init__(f"grpc+unix://{self._gate.path}", middleware={ACCESS: access})
            self._gate.open()
        except (pa.ArrowException, OSError) as error:
            self._gate.close()
            raise OSError(f"the server cannot listen at its socket {self._gate.path}: {error}") from None

    @property
    def port(self) -> int:
        return self._gate.port

    def address(self, space: str) -> str:
        """Return the address of a space, as a client names it."""
        scheme = "spool+grpc+tls" if self._gate.certificate else "spool+grpc"
        return f"{scheme}://{in_url(self._host)}:{self.port}/{space}"

    def close(self, seconds: float = 10.0) -> bool:
        """End the server. Calls in progress have ``seconds`` to end.

        Returns False if a client still holds a call. Arrow Flight cannot end this call; only the end of the process
        can.
        """
        self._gate.close_listeners()
        ending = threading.Thread(target=self.shutdown, name="xaspool shutdown", daemon=True)
        ending.start()
        ending.join(seconds)
        has_ended = not ending.is_alive()
        self._gate.close()
        return has_ended

    # -- requests, which a subclass answers ---------------------------------------------------------------------------

    def plan(self, access: Access, data: bytes) -> tuple[pa.Schema, list[bytes]]:
        """Return the columns and the tickets of a read."""
        raise ProtocolError("this server plans no reads")

    @abstractmethod
    def read(self, access: Access, data: bytes) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Return the columns and the rows of a ticket."""

    @abstractmethod
    def write(
        self, access: Access, data: bytes, columns: pa.Schema, rows: Iterator[pa.RecordBatch]
    ) -> tuple[Vote | None, Answer]:
        """Write the rows of a task into a branch; return the vote, and further values for the answer.

        A second branch of one attempt at a task raises DiskFailure.
        """

    # -- Flight's calls -----------------------------------------------------------------------------------------------

    def get_flight_info(self, context: Any, descriptor: Any) -> flight.FlightInfo:
        with self._call(context, descriptor.command or b"") as access:
            columns, tickets = self.plan(access, descriptor.command or b"")
            endpoints = [flight.FlightEndpoint(ticket, []) for ticket in tickets]
            return flight.FlightInfo(columns, descriptor, endpoints, -1, -1)

    def do_get(self, context: Any, ticket: Any) -> flight.FlightDataStream:
        with self._call(context, ticket.ticket) as access:
            columns, batches = self.read(access, ticket.ticket)
            return flight.GeneratorStream(columns, self._sent(access, batches))

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        with self._call(context, descriptor.command or b"") as access:
            try:
                vote, more = self.write(access, descriptor.command or b"", reader.schema, self._received(reader))
            except DiskFailure as error:
                if error.errno != errno.EEXIST:
                    raise
                raise ProtocolError("this attempt at the task has voted already") from None
            writer.write(pa.py_buffer(encode({"vote": packed_vote(vote), **more})))

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        body = action.body.to_pybytes()
        with self._call(context, body) as access:
            act = self.actions.get(action.type)
            if act is None:
                raise ProtocolError(f"the server has no action {action.type[:100]!r}")
            return [encode(act(self, access, body))]

    @contextmanager
    def _call(self, context: Any, request: bytes) -> Iterator[Access]:
        """Make a call of a client during the block.

        FlightUnauthenticatedError if the client's token is missing or unknown. FlightError if a token that may only
        read has too many connections.
        """
        access = context.get_middleware(ACCESS)
        if access.refusal:
            self._gate.refused(context.peer())
            raise flight.FlightUnauthenticatedError(access.refusal)
        try:
            self._gate.accept(context.peer(), access.token, len(request), is_writer=access.is_writer)
        except InvalidArgument as error:
            self._gate.refused(context.peer())
            access.record(str(error))
            raise as_flight(error) from None
        with _answered(access):
            yield access

    def _sent(self, access: Access, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a read. InvalidArgument if a token that may only read has too many reads."""
        with _answered(access), nullcontext() if access.is_writer else self._gate.reading(access.token):
            yield from batches

    def _received(self, reader: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task. InvalidArgument if the task sends more bytes than it may."""
        size = 0
        for chunk in reader:
            size += chunk.data.nbytes
            if size > self._most_bytes:
                raise InvalidArgument(
                    f"a task sends at most {self._most_bytes:,} bytes: divide the rows among more tasks (repartition), "
                    "or start spool-serve with a larger --max-write"
                )
            yield chunk.data


@contextmanager
def _answered(access: Access) -> Iterator[None]:
    """If the block raises an error, the client gets the same error, or an error that says what has failed."""
    try:
        yield
    except (SpoolError, OSError) as error:
        raise as_flight(error) from error
    except (TypeError, ValueError, LookupError) as error:  # the client sent values that no check has refused
        access.record(f"the request has a wrong value: {describe(error)}")
        raise as_flight(ProtocolError(f"the request has a wrong value: {error}")) from error
    except flight.FlightError:
        raise
    except Exception as error:  # a bug of the server, and not a failure of the network
        log.exception("a call failed")
        raise as_flight(SystemFailure(f"the server failed ({describe(error)}): its log has more")) from error
