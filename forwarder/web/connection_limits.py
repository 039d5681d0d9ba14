"""The connections of an HTTP server have limits, so that no client keeps other clients out or fills the memory.

uvicorn limits only the time between two requests. But a client may wait with a request, send it byte by byte, read no
answer, or send many requests and read none of their answers, for any time. So these limits are added:

- A request's head has a time limit. A body has none, as long as bytes are moving: a client that sends no bytes for some
  seconds loses its connection. A call that computes or waits has no limit here.
- The kernel finds clients that vanished (keepalive), and clients that take no byte of an answer (``TCP_USER_TIMEOUT``).
- If many connections exist, a new connection ends the oldest connections that wait for their clients.
- Heads of requests have a largest size. Requests that wait for earlier answers of their connection have a largest
  number, and a largest number of bytes together with unfinished heads.

uvicorn also logs each request that it cannot read, without the client's address. ``refuse`` gets the address instead.
Sources: RFC 9110 and 9112; uvicorn's protocol for httptools, which costs a put 180 µs less than the one for h11.
"""

import asyncio
import json
import logging
import math
import socket
from collections.abc import Callable
from heapq import nsmallest
from typing import Any

import httptools
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEAD_BYTES = 32 << 10
CONNECTION = "xaspool.connection"
"""The name of the connection in a request's ``state``."""
_LOOK_SECONDS = 5.0
_SILENT_SECONDS = 20.0  # the longest time for a request's head, and without progress of a body or an answer
_IDLE_SECONDS = 75  # the longest time between two requests; common proxies wait 60 s
_LEAST_PROGRESS = 1 << 10  # bytes; fewer bytes between two checks are no progress
_LINGER_SECONDS = 2.0
_KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
_MOST_PIPELINED, _PAUSED_PIPELINED = 64, 16
_PIPELINED_BYTES = 4 << 10  # of a request that waits, without its body
_MOST_UNFINISHED = 64 << 20  # bytes of requests that are incomplete or wait, of all connections
_MOST_ACCEPTED = 256  # at once, before their requests are read; more could end the older ones before that
_MOST_WAITING = 1024  # connections that wait until the server accepts them

Refuse = Callable[[str, str], None]


class Config(uvicorn.Config):
    """The settings of a server.

    refuse: called with a client's address and its fault. connections: the most connections.
    held: the bytes of requests that are incomplete or wait for earlier answers of their connection.
    """

    def __init__(self, app: ASGIApp, refuse: Refuse, connections: int, **options: Any) -> None:
        kinds: Any = {"http": LimitedConnection, "ws": "none", "loop": "asyncio", "lifespan": "off", "log_config": None}
        without: Any = dict.fromkeys(("access_log", "server_header", "proxy_headers"), False)
        super().__init__(app, timeout_keep_alive=_IDLE_SECONDS, **kinds, **without, **options)
        self.refuse, self.connections, self.held, self.is_ending = refuse, connections, 0, False
        self.errors = _Errors(self)


class HttpServer(uvicorn.Server):
    """Listens at the sockets, and checks the connections every few seconds."""

    config: Config
    _next_look = 0.0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        handshake, shutdown = {"ssl_handshake_timeout": _SILENT_SECONDS}, {"ssl_shutdown_timeout": _LINGER_SECONDS}
        self.servers = []
        for each in sockets or ():
            has_tls = self.config.ssl is not None and each.family != socket.AF_UNIX
            tls: Any = {"ssl": self.config.ssl, **handshake, **shutdown} if has_tls else {}
            accepted = min(_MOST_ACCEPTED, self.config.connections // 2)
            self.servers.append(await loop.create_server(self._connection, sock=each, backlog=accepted, **tls))
        for each in sockets or ():  # by default, asyncio lets few connections wait, and drops further connections
            each.listen(_MOST_WAITING)
        self.started = True

    def _connection(self) -> asyncio.Protocol:
        return LimitedConnection(config=self.config, server_state=self.server_state, app_state={})

    async def on_tick(self, counter: int) -> bool:
        now = asyncio.get_running_loop().time()
        if now >= self._next_look:
            self._next_look = now + _LOOK_SECONDS
            for each in list(self.server_state.connections):
                each.look(now)  # type: ignore[union-attr]
        self.config.is_ending = await super().on_tick(counter)
        return self.config.is_ending


class _Errors(logging.Logger):
    """uvicorn's logger of a server's connections. The end of the server ends calls, which is no error."""

    def __init__(self, config: Config) -> None:
        super().__init__("uvicorn.error", logging.ERROR)
        self._config = config

    def handle(self, record: logging.LogRecord) -> None:
        if not self._config.is_ending:
            logging.getLogger(self.name).handle(record)


class _Transport:
    """A connection's transport. It sends the head of an answer together with the beginning of its body, in one call of
    the system, and it closes once the client has read the answer."""

    def __init__(self, transport: asyncio.Transport, connection: "LimitedConnection") -> None:
        self._inner, self._connection = transport, connection
        self.pause_reading, self.resume_reading = transport.pause_reading, transport.resume_reading
        self.get_extra_info, self.abort = transport.get_extra_info, transport.abort
        self.is_ending = False
        self._head = b""

    def write(self, data: bytes) -> None:
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(b"HTTP/1.1 ") and b"\ncontent-length: " in data:  # (the body follows at once)
            self._head = data
            return
        self._inner.write(data)

    def send_head(self) -> None:
        """Send a head whose body is empty."""
        if self._head and not self._inner.is_closing():
            self.write(b"")

    def is_closing(self) -> bool:
        return self.is_ending or self._inner.is_closing()

    def close(self) -> None:
        """Close after the answer. A close before the whole request is read could destroy the answer on its way, so
        the rest of the request is read and forgotten for a moment."""
        self.send_head()
        if not self._connection.sends or self.is_closing():
            self._inner.close()
            return
        self.is_ending = True
        if self._inner.can_write_eof():
            self._inner.write_eof()
        self._inner.resume_reading()
        self._connection.loop.call_later(_LINGER_SECONDS, self._inner.close)


class LimitedConnection(HttpToolsProtocol):
    """The limits of one connection.

    received: the bytes so far. in_head: whether a part of a request's head has arrived. running: the call that the
    application answers, or has answered last. patience: the longest time in seconds without progress of a body.
    """

    config: Config
    transport: Any

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.logger = self.config.errors
        self.app_state = {CONNECTION: self}
        self.running: Any = None
        self.received = self.requests = self.held = self._unread = 0
        self.begun = self._changed = self.loop.time()
        self._state: object = None
        self.in_head = self.is_refused = False
        self.patience, self._status = _SILENT_SECONDS, 400

    def wait_long(self) -> None:
        """Let the client send or take its bytes as slowly as it likes. The kernel still finds a vanished client."""
        self.patience = math.inf
        client: socket.socket = self.transport.get_extra_info("socket")
        if client.family != socket.AF_UNIX:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0)

    def cut(self) -> None:
        """End the connection in the middle of an answer, so that the client notices that the answer is incomplete."""
        self.running.disconnected = True
        self.transport.close()

    def _refuse(self, sentence: str) -> None:
        self.config.refuse(self.client[0] if self.client else "a client of this machine", sentence)

    # -- the connection -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        has_room = self._make_room()
        super().connection_made(_Transport(transport, self))  # type: ignore[arg-type]
        client: socket.socket = transport.get_extra_info("socket")
        if client.family != socket.AF_UNIX:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * _SILENT_SECONDS))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE.items():
                client.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        if not has_room:
            transport.abort()

    def _make_room(self) -> bool:
        """If there are many connections, end the oldest that wait for their clients. Prefer connections without a
        request. Return whether there is room for one more."""
        if len(self.connections) < self.config.connections:
            return True
        others: list[LimitedConnection] = [each for each in self.connections if not each.transport.is_closing()]  # type: ignore[misc]
        surplus = len(others) + 1 - self.config.connections
        idle = [each for each in others if not each.is_busy] or [each for each in others if each.flow.write_paused]
        for each in nsmallest(max(surplus, len(idle) // 64), idle, key=lambda each: each.begun):
            each.transport.abort()
        return surplus <= len(idle)

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the running call, which may have further requests behind it, that the client has left."""
        self.hold(0)
        self.pipeline.clear()
        if self.running is not None and not self.running.response_complete:
            self.running.disconnected = True
            self.running.message_event.set()
        super().connection_lost(exc)

    @property
    def sends(self) -> bool:
        """Whether the client may send more of a request that the server has answered."""
        return self.is_refused or (self.running is not None and self.running.more_body)

    @property
    def is_busy(self) -> bool:
        """Whether the connection has a whole request without a whole answer."""
        return self.running is not None and not self.running.response_complete and not self.running.more_body

    def look(self, now: float) -> None:
        """End the connection if the server waits for a client that makes no progress."""
        awaited, patience = self._awaited()
        if awaited is None or awaited != self._state:
            self._state, self._changed = awaited, now
        elif now - self._changed >= patience:
            self._refuse(f"it made no progress for {now - self._changed:.0f} s, so its connection was ended")
            self.transport.abort()

    def _awaited(self) -> tuple[tuple[str, int] | None, float]:
        """Return the part of a request for which the server waits, with the client's progress, or None; and the longest
        wait."""
        cycle = self.running
        if cycle is None or cycle.response_complete:
            return ("head", self.requests) if cycle is None or self.in_head else None, _SILENT_SECONDS
        is_awaited = cycle.more_body and not cycle.message_event.is_set() and not cycle.body
        return ("body", self.received // _LEAST_PROGRESS) if is_awaited else None, self.patience

    def hold(self, size: int) -> None:
        """Count the bytes of requests that are incomplete or wait. Too many end this connection."""
        self.config.held += size - self.held
        self.held = size
        if size and self.config.held > _MOST_UNFINISHED:
            self._refuse("the server had too many unfinished requests, so its connection was ended")
            self.transport.abort()

    # -- requests -----------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        self.received += len(data)
        begun = self.requests
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as error:
            self._refuse_upgrade(data[error.args[0] :])
            return
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.", self._status)
            return
        self._unread = self._unread + len(data) if self.in_head and begun == self.requests else 0
        if self._unread > MOST_HEAD_BYTES:
            self.send_400_response("The head is too large.", 431)
        elif self._unread or self.pipeline or self.held:
            waiting = _PIPELINED_BYTES * len(self.pipeline) + (len(self.cycle.body) if self.pipeline else 0)
            self.hold(self._unread + waiting)

    def _refuse_upgrade(self, rest: bytes) -> None:
        """Parse a request for another protocol as a usual one. The parser has ended it behind its head."""
        first = b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        lines = [b": ".join(each) for each in self.headers if each[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(b"\r\n".join([first, *lines, b"", rest]))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.requests += 1
        self.in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.in_head:  # (and not in the trailer after the body, which the application ignores)
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > MOST_HEAD_BYTES:
            self._status = 431
            raise ValueError("the head is too large")
        if self.parser.get_method() == b"CONNECT" or len(self.pipeline) >= _MOST_PIPELINED:
            raise ValueError("this is no proxy, or too many requests wait for answers")
        self.in_head = False
        if self.parser.should_upgrade():
            return
        super().on_headers_complete()
        if 0 < len(self.pipeline) < _PAUSED_PIPELINED:
            self.flow.resume_reading()  # otherwise the server would not notice that the client has left

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():  # (otherwise it is parsed again)
            super().on_message_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self.running = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        if self.running.more_body:
            self.transport.close()  # (the rest of the body is not read)
        self.transport.send_head()
        super().on_response_complete()

    def send_400_response(self, msg: str, status: int = 400) -> None:
        """Answer a request that cannot be read, and close. Within or before another answer, only close."""
        self._refuse(msg)
        cycle = self.running
        is_answering = cycle is not None and not cycle.response_complete
        if self.transport.is_closing() or (is_answering and (cycle.response_started or cycle is not self.cycle)):
            self.transport.abort()
            return
        if is_answering:
            cycle.disconnected = True
            cycle.message_event.set()
        title = "Bad Request" if status == 400 else "Request Header Fields Too Large"
        problem = {"type": "about:blank", "title": title, "status": status, "detail": msg, "error": "InvalidArgument"}
        content = json.dumps(problem).encode()
        head = f"HTTP/1.1 {status} {title}\r\ncontent-type: application/problem+json\r\nconnection: close\r\n"
        self.transport.write(head.encode() + b"content-length: %d\r\n\r\n" % len(content) + content)
        self.is_refused = True
        self.transport.close()
