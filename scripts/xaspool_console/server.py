"""The web server of the console: it listens in a thread, so that the main thread can wait for a signal."""

import asyncio
import socket
import threading

from starlette.types import ASGIApp

from forwarder.web.connection_limits import Config, HttpServer, Refuse

MOST_CONNECTIONS = 64
_MOST_REQUESTS = 2 * MOST_CONNECTIONS  # the most requests at one time; further requests get the status 503
_GRACE_SECONDS = 5


class ConsoleServer:
    """Serves an application at its sockets from its creation until ``close``. ``refuse``: see ``Config``."""

    def __init__(self, app: ASGIApp, listeners: list[socket.socket], refuse: Refuse) -> None:
        self._listeners = listeners
        options = {"limit_concurrency": _MOST_REQUESTS, "timeout_graceful_shutdown": _GRACE_SECONDS}
        self._server = HttpServer(Config(app, refuse, MOST_CONNECTIONS, **options))
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
