"""The web server of the console: it listens in a thread, so that the main thread can wait for a signal."""

import asyncio
import socket
import threading
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from xaspool_console.connections import MOST_CONNECTIONS, Connection

_MOST_REQUESTS = 2 * MOST_CONNECTIONS  # at one moment; further ones get the status 503
_MOST_HEADER_BYTES = 32 << 10
_GRACE_SECONDS = 5


def resolved(host: str, port: int) -> tuple[Any, ...]:
    """Return the first address of the host, as ``socket.getaddrinfo`` describes it. OSError; UnicodeError."""
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]


class ConsoleServer:
    """Serves an application at its sockets from its creation until ``close``."""

    def __init__(self, app: ASGIApp, listeners: list[socket.socket]) -> None:
        self._listeners = listeners
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                http=Connection,
                ws="none",
                loop="asyncio",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=_MOST_REQUESTS,
                h11_max_incomplete_event_size=_MOST_HEADER_BYTES,
                timeout_keep_alive=15,
                timeout_graceful_shutdown=_GRACE_SECONDS,
            )
        )
        self._thread = threading.Thread(target=self._run, name="console", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.run(self._server.serve(sockets=self._listeners))

    def close(self) -> bool:
        """End the server after the running requests, which get a few seconds. Return whether it has ended."""
        self._server.should_exit = True
        self._thread.join(2 * _GRACE_SECONDS)
        for each in self._listeners:
            each.close()
        return not self._thread.is_alive()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()
