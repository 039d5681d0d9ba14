"""Calls for another process of the same server: the process that holds the message of a receipt answers them.

Each process listens at a private Unix socket, too. The process that gets such a call passes it on, with all of its
headers, so the other process checks the token again.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import h11
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from forwarder.web.connections import CONNECTION
from spool.errors import BadMessageId, SystemFailure

_READ_AT_ONCE = 64 << 10
_OF_ONE_CONNECTION = {b"connection", b"keep-alive", b"expect", b"transfer-encoding", b"upgrade", b"te", b"trailer"}


async def passed_on(request: Request, path: str) -> Response:
    """Pass a call on to the process at a socket, and return its answer, which is then read in parts.

    Raises BadMessageId if the process has ended, which has released its messages.
    """
    try:
        reader, writer = await asyncio.open_unix_connection(path)
    except (ConnectionRefusedError, FileNotFoundError):
        raise BadMessageId("the process of the server that held the message has ended: claim a message again") from None
    request.scope["state"][CONNECTION].wait_long()  # (the other process limits the wait)
    try:
        return _Passed(await _head_of_answer(request, reader, writer), reader, writer)
    except BaseException as error:
        writer.close()
        if isinstance(error, OSError | h11.ProtocolError):
            raise SystemFailure(
                f"the process of the server that holds the message ended during the call: {error}"
            ) from None
        raise


async def _head_of_answer(request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Any:
    peer = h11.Connection(h11.CLIENT)
    scope = request.scope
    headers = [each for each in scope["headers"] if each[0] not in _OF_ONE_CONNECTION] + [(b"connection", b"close")]
    if any(name == b"transfer-encoding" for name, _ in scope["headers"]):
        headers.append((b"transfer-encoding", b"chunked"))
    target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
    writer.write(peer.send(h11.Request(method=scope["method"], target=target, headers=headers)) or b"")
    try:
        async for chunk in request.stream():
            writer.write(peer.send(h11.Data(chunk)) or b"")
            await writer.drain()
        writer.write(peer.send(h11.EndOfMessage()) or b"")
    except ClientDisconnect:
        raise ConnectionResetError("the client has left") from None
    except ConnectionError:
        pass  # (the process has answered before it has read the whole body)
    while True:
        event = await _next(peer, reader)
        if isinstance(event, h11.Response):
            return peer, event


async def _next(peer: h11.Connection, reader: asyncio.StreamReader) -> Any:
    while (event := peer.next_event()) is h11.NEED_DATA:
        peer.receive_data(await reader.read(_READ_AT_ONCE))
    return event


class _Passed(Response):
    """The answer of another process."""

    def __init__(self, head: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._peer, event = head
        self._reader, self._writer = reader, writer
        self.status_code, self.body = event.status_code, b""
        self.raw_headers = [each for each in event.headers if each[0] not in _OF_ONE_CONNECTION]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = scope["state"][CONNECTION]
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for part in self._parts():
                if connection.transport.is_closing():
                    return
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            self._writer.close()

    async def _parts(self) -> AsyncIterator[bytes]:
        while isinstance(event := await _next(self._peer, self._reader), h11.Data):
            yield bytes(event.data)
