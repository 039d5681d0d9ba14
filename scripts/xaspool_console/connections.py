"""The connections of the console, with time limits: no client can keep a connection for ever.

uvicorn counts connections and refuses more than 64. It limits the time between two requests, but neither the time until
the first request, nor the time of a request that arrives byte by byte, nor that of a client that reads no answer.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

_LOOK_SECONDS = 10.0
_MOST_IDLE_LOOKS = 1  # without a request since the look before
_MOST_BUSY_LOOKS = 30  # in one request, e.g. the download of a body


class Connection(H11Protocol):
    """Ends a connection without a request after 10 to 20 seconds, and one with the same request after five minutes."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._cycle: object = None
        self._looks = 0
        self._next_look = self.loop.call_later(_LOOK_SECONDS, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        self._next_look.cancel()
        super().connection_lost(exc)

    def _look(self) -> None:
        cycle: Any = self.cycle
        self._looks = self._looks + 1 if cycle is self._cycle else 0
        self._cycle = cycle
        is_busy = cycle is not None and not cycle.response_complete
        if self._looks >= (_MOST_BUSY_LOOKS if is_busy else _MOST_IDLE_LOOKS):
            self.transport.abort()
        else:
            self._next_look = self.loop.call_later(_LOOK_SECONDS, self._look)
