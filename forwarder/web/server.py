"""The server of spaces: it opens the spaces in the loop of one thread, and answers calls until ``close``."""

import asyncio
import logging
import resource
import socket
import threading
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from typing import Any

import spool
import spool.aio
from forwarder.web.app import application
from forwarder.web.certificates import check_certificate
from forwarder.web.connection_limits import Config, HttpServer
from forwarder.web.leases import Leases
from forwarder.web.tokens import Tokens
from forwarder.web.web_call import Served, Server
from spool.errors import SystemFailure

_GRACE_SECONDS = 5
_MOST_CONNECTIONS, _OTHER_FILES = 65_536, 1_024

log = logging.getLogger("spool.server")


def most_connections() -> int:
    """Let this process open as many files as it may. Return the number of connections for which that is enough."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return min(_MOST_CONNECTIONS, max(hard - _OTHER_FILES, hard // 2))


class WebServer:
    """Serves spaces at its sockets from its creation until ``close``.

    Args:
        listeners: the sockets; the server closes them.
        spaces: the directories of the spaces, by the names that clients use.
        certificate, key: the files with the certificate chain and the private key of the server, as PEM; None without
            TLS. Unix sockets are without TLS.
        state: further fields of ``Server``.

    Raises:
        SpoolError: a space cannot be opened, or the certificate is not valid.
    """

    def __init__(
        self,
        listeners: list[socket.socket],
        spaces: Mapping[str, str],
        tokens: Tokens | None = None,
        *,
        certificate: str | None = None,
        key: str | None = None,
        **state: Any,
    ) -> None:
        self._listeners, self._paths = listeners, spaces
        if certificate is not None and key is not None:
            check_certificate(certificate, key)
        self._state = Server(tokens or Tokens(), **state)
        for name in sorted(self._state.tokens.spaces - spaces.keys()):
            log.warning("a token has a right to the space %s, and the server serves only %s", name, ", ".join(spaces))
        app, refuse = application(self._state), self._state.refuse
        options: Any = {"ssl_certfile": certificate, "ssl_keyfile": key, "timeout_graceful_shutdown": _GRACE_SECONDS}
        self._http = HttpServer(Config(app, refuse, most_connections(), **options))
        self._is_open = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="xaspool web", daemon=True)
        self._thread.start()
        self._is_open.wait()
        if self._failure is not None:
            self.close()
            raise self._failure

    @property
    def spaces(self) -> list[spool.Space]:
        """The open spaces."""
        return [served.space.sync for served in self._state.spaces.values()]

    def check(self) -> None:
        """Raise SystemFailure if the server has ended by itself."""
        if not self._thread.is_alive():
            raise SystemFailure("the web server ended unexpectedly")

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._is_open.set()

    async def _serve(self) -> None:
        async with AsyncExitStack() as opened:
            for name, path in self._paths.items():
                space = await opened.enter_async_context(spool.aio.open(path))
                space.sync.engine.deliver_stored_bytes()
                leases = Leases(space, self._state.prefix)
                opened.push_async_callback(leases.close)
                self._state.spaces[name] = Served(name, space, leases)
            opened.push_async_callback(self._end_transfers)
            self._is_open.set()
            self._loop = asyncio.get_running_loop()
            await self._http.serve(sockets=self._listeners)

    def _end(self) -> None:
        """End the waits of clients, and accept no further calls."""
        self._state.is_ending = True
        for served in self._state.spaces.values():
            served.leases.end_waits()
        self._http.should_exit = True

    async def _end_transfers(self) -> None:
        if self._state.transfers is not None:
            await self._state.transfers.end()
        self._state.threads.shutdown(wait=False, cancel_futures=True)

    def close(self) -> bool:
        """Give the running calls a few seconds, release all messages, and end the server. Return whether it has
        ended."""
        with suppress(AttributeError, RuntimeError):  # (the loop has never begun, or has ended)
            self._loop.call_soon_threadsafe(self._end)
        self._thread.join(3 * _GRACE_SECONDS)
        for each in self._listeners:
            each.close()
        return not self._thread.is_alive()
