"""The connections of the console have time limits, so that no client can keep a connection forever.

uvicorn limits the time between two requests. But a client may wait with the first request, send a request byte by byte,
or read no answer, for any time. With too many connections, uvicorn refuses all requests. So if many connections exist,
a new connection ends the oldest connection that waits for its client. Clients that send half a request, or read no
answer, then keep no other client out.

A download occupies one of few places. The kernel knows the bytes that a client has taken. So the kernel ends a
connection whose client takes no byte of an answer for some seconds.

uvicorn also logs each request that it cannot read, without the client's address. The console instead logs these lines
as refusals, with the address, and limits their number.
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
_MOST_IDLE_LOOKS = 1  # the most checks in which a connection has no request
_MOST_BUSY_LOOKS = 30  # the most checks during one request, e.g. the download of a body
_TAKING_SECONDS = 20.0  # the longest time in which a client takes no byte of an answer


class Config(uvicorn.Config):
    """The settings of the server. ``refuse``: called with a client's address and its fault."""

    def __init__(self, app: ASGIApp, refuse: Callable[[str, str], None], **options: Any) -> None:
        super().__init__(app, **options)
        self.refuse = refuse


class _Faults(logging.Logger):
    """uvicorn's logger of one connection. It passes the client's faults to ``refuse``, and logs the application's."""

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
    """Ends a connection without a request after 10 to 20 seconds, and a connection with the same request after five
    minutes. Also ends a connection whose client takes no byte of an answer for 20 seconds."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.logger = _Faults(self)

    def _should_upgrade(self) -> bool:
        return False  # (a web socket request gets the same answer as any other request)

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
        """If there are many connections, end the oldest that waits for its client. Prefer connections without a
        request."""
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
