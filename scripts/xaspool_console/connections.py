"""The connections of the console, with time limits: no client can keep a connection for ever.

uvicorn limits the time between two requests, but neither the time until the first request, nor the time of a request
that arrives byte by byte, nor that of a client that reads no answer. With many connections, it refuses all requests. So
of many connections, a new one ends the oldest that waits for its client: clients that send half a request, or read no
answer, keep nobody out.

A download keeps one of few places. So the kernel, which knows the bytes that a client has taken, ends a connection
whose client takes no byte of an answer for some seconds.

uvicorn also logs each request that it cannot read, without the client's address. Here, the console tells these lines as
its refusals, which have a limit.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS = 64
_LOOK_SECONDS = 10.0
_MOST_IDLE_LOOKS = 1  # without a request since the look before
_MOST_BUSY_LOOKS = 30  # in one request, e.g. the download of a body
_TAKING_SECONDS = 20.0  # the longest time in which a client takes no byte of an answer


class Config(uvicorn.Config):
    """The settings of the server. ``refuse``: called with the address and the fault of a client."""

    def __init__(self, app: ASGIApp, refuse: Callable[[str, str], None], **options: Any) -> None:
        super().__init__(app, **options)
        self.refuse = refuse


class _Faults(logging.Logger):
    """uvicorn's logger of one connection: it tells the faults of the client, and logs those of the application."""

    def __init__(self, connection: "Connection") -> None:
        super().__init__("uvicorn.error", logging.WARNING)
        self._connection = connection

    def handle(self, record: logging.LogRecord) -> None:
        if record.levelno > logging.WARNING:
            logging.getLogger(self.name).handle(record)
            return
        address = self._connection.client
        refuse: Callable[[str, str], None] = self._connection.config.refuse  # type: ignore[attr-defined]
        refuse(address[0] if address else "unknown address", record.getMessage())


class Connection(H11Protocol):
    """Ends a connection without a request after 10 to 20 seconds, one whose client takes no byte of an answer after 20
    seconds, and one with the same request after five minutes."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.logger = _Faults(self)

    def _should_upgrade(self) -> bool:
        return False  # (a request for a web socket is answered as any other)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._make_room()
        super().connection_made(transport)
        client: socket.socket = transport.get_extra_info("socket")
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * _TAKING_SECONDS))
        self._begun = self.loop.time()
        self._cycle: object = None
        self._looks = 0
        self._next_look = self.loop.call_later(_LOOK_SECONDS, self._look)

    def _make_room(self) -> None:
        """End the oldest connection that waits for its client, if there are many. One with a request is kept, if any
        connection without a request exists."""
        if len(self.connections) < MOST_CONNECTIONS:
            return
        others = [each for each in self.connections if isinstance(each, Connection) and not each.transport.is_closing()]
        idle = [each for each in others if not each.is_busy] or [each for each in others if each.flow.write_paused]
        if idle and len(others) >= MOST_CONNECTIONS:
            min(idle, key=lambda each: each._begun).transport.abort()

    @property
    def is_busy(self) -> bool:
        """Whether the connection has a whole request without a whole answer."""
        cycle: Any = self.cycle
        return cycle is not None and not cycle.response_complete and not cycle.more_body

    def connection_lost(self, exc: Exception | None) -> None:
        self._next_look.cancel()
        super().connection_lost(exc)

    def _look(self) -> None:
        cycle: Any = self.cycle
        self._looks = self._looks + 1 if cycle is self._cycle else 0
        self._cycle = cycle
        if self._looks >= (_MOST_BUSY_LOOKS if self.is_busy else _MOST_IDLE_LOOKS):
            self.transport.abort()
        else:
            self._next_look = self.loop.call_later(_LOOK_SECONDS, self._look)
