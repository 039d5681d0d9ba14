"""The common part of the servers: the access of clients, the errors for clients, and an end within a time limit."""

import errno
import logging
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from forwarder.flight.codes import as_flight, encode, packed_vote
from forwarder.flight.endpoint import in_url
from forwarder.serving.access import ACCESS, AccessFactory, Tokens
from forwarder.serving.gate import Gate
from spool.engine.tasks import Vote
from spool.errors import DiskFailure, InvalidArgument, ProtocolError, SpoolError, SystemFailure
from spool.workers.outcome import describe

log = logging.getLogger("spool.server")


class Server(flight.FlightServerBase):
    """Listens at an address until ``close``.

    Args:
        certificate, key: the certificate chain and the private key of the server, as PEM; None without TLS.

    Raises:
        InvalidArgument: the certificate or its key is not valid.
        OSError: the server cannot listen.
    """

    def __init__(
        self, host: str, port: int, tokens: Tokens, *, certificate: bytes | None = None, key: bytes | None = None
    ) -> None:
        access = AccessFactory(tokens)
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

    def accept(self, context: Any, request: bytes) -> None:
        """Let the client of a call go on. Each call of Flight uses this method first.

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

    # -- Flight's calls -----------------------------------------------------------------------------------------------

    def do_get(self, context: Any, ticket: Any) -> flight.FlightDataStream:
        self.accept(context, ticket.ticket)
        schema, batches = answered(context, self.read, context, ticket.ticket)
        return flight.GeneratorStream(schema, _translated(batches))

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        def put() -> None:
            vote, more = self.write(context, data, reader)
            writer.write(pa.py_buffer(encode({"vote": packed_vote(vote), **more})))

        data = descriptor.command or b""
        self.accept(context, data)
        answered(context, put)

    @abstractmethod
    def read(self, context: Any, data: bytes) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Return the columns and the rows of a ticket."""

    @abstractmethod
    def write(self, context: Any, data: bytes, reader: Any) -> tuple[Vote | None, dict[str, Any]]:
        """Write the rows of a task into a branch; return the vote, and further values for the answer."""

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


def answered(context: Any, call: Callable[..., Any], *arguments: Any) -> Any:
    """Make a call for a client. If the call raises an error of this library, the client gets the same error.

    ``context``: Flight's description of the call.
    """
    try:
        return call(*arguments)
    except (SpoolError, OSError) as error:
        raise as_flight(error) from error
    except (TypeError, ValueError, LookupError) as error:  # the client sent values that no check has refused
        context.get_middleware(ACCESS).record(f"the request has a wrong value: {describe(error)}")
        raise as_flight(ProtocolError(f"the request has a wrong value: {error}")) from error
    except flight.FlightError:
        raise
    except Exception as error:  # a bug of the server, and not a failure of the network
        log.exception("a call failed")
        raise as_flight(SystemFailure(f"the server failed ({describe(error)}): its log has more")) from error


@contextmanager
def voting(attempt: int) -> Iterator[None]:
    """Refuse a second branch of one attempt at a task. The block writes the branch and votes."""
    try:
        yield
    except DiskFailure as error:
        if error.errno != errno.EEXIST:
            raise
        raise ProtocolError(f"attempt {attempt} of the task has voted already") from None


def _translated(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches. If an error of this library is raised, the client gets the same error."""
    try:
        yield from batches
    except (SpoolError, OSError) as error:
        raise as_flight(error) from error
