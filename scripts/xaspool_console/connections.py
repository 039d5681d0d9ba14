"""The connections of the console, with time limits: no client can keep a connection for ever.

uvicorn limits the time between two requests, but neither the time until the first request, nor the time of a request
that arrives byte by byte, nor that of a client that reads no answer. With many connections, it refuses all requests. So
of many connections, a new one ends the oldest that waits for its client: clients that send half a request, or read no
answer, keep nobody out.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS = 64
_LOOK_SECONDS = 10.0
_MOST_IDLE_LOOKS = 1  # without a request since the look before
_MOST_BUSY_LOOKS = 30  # in one request, e.g. the download of a body


class Connection(H11Protocol):
    """Ends a connection without a request after 10 to 20 seconds, and one with the same request after five minutes."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._make_room()
        super().connection_made(transport)
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
