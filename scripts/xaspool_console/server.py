"""The web server of the console: it listens in a thread, so that the main thread can wait for a signal."""

import asyncio
import socket
import threading
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from xaspool_console.connections import MOST_CONNECTIONS, Config, Connection

_MOST_REQUESTS = 2 * MOST_CONNECTIONS  # the most requests at one time; further requests get the status 503
_MOST_HEADER_BYTES = 32 << 10
_GRACE_SECONDS = 5
_MOST_ACCEPTED = MOST_CONNECTIONS // 2
"""The most connections that the server accepts before it reads their requests. If this were more than
``MOST_CONNECTIONS``, new connections would end older ones before the server reads the older requests."""
_MOST_WAITING = 1024  # connections that wait until the server accepts them


class _Server(uvicorn.Server):
    """Lets many connections wait. By default, asyncio lets few connections wait, and drops further connections."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(_MOST_WAITING)


class ConsoleServer:
    """Serves an application at its sockets from its creation until ``close``. ``refuse``: see ``Config``."""

    def __init__(self, app: ASGIApp, listeners: list[socket.socket], refuse: Callable[[str, str], None]) -> None:
        self._listeners = listeners
        self._server = _Server(
            Config(
                app,
                refuse,
                http=Connection,
                ws="none",
                loop="asyncio",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=_MOST_ACCEPTED,
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
        """Give the running requests a few seconds, then end the server. Return whether it has ended."""
        self._server.should_exit = True
        self._thread.join(2 * _GRACE_SECONDS)
        for each in self._listeners:
            each.close()
        return not self._thread.is_alive()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()
