"""Calls for another process of the same server: the process that holds the message of a receipt answers them.

Each process listens at a private Unix socket, too. The process that gets such a call passes it on, with all of its
headers, so the other process checks the token again.
"""

from collections.abc import AsyncGenerator, Iterable
from functools import lru_cache
from typing import Any

import httpx
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from forwarder.web.connection_limits import CONNECTION
from forwarder.web.web_call import Answer, Gone, cut
from spool.errors import BadMessageId

_OF_ONE_CONNECTION = {b"connection", b"keep-alive", b"expect", b"transfer-encoding", b"upgrade", b"te", b"trailer"}


async def passed_on(request: Request, path: str) -> Response:
    """Pass a call on to the process at a socket, and return its answer, which is then read in parts.

    Raises BadMessageId if the process has ended, which has released its messages.
    """
    scope = request.scope
    scope["state"][CONNECTION].wait_long()  # (the other process limits the wait)
    client = _client(path)
    target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
    given: Any = {"headers": _kept(scope["headers"]), "content": request.stream(), "extensions": {"target": target}}
    asked = client.build_request(scope["method"], "http://process/", **given)
    try:
        answer = await client.send(asked, stream=True)
    except httpx.ConnectError:
        raise BadMessageId("the process of the server that held the message has ended: claim a message again") from None
    except ClientDisconnect:
        raise Gone from None
    except httpx.HTTPError as error:
        text = f"the process of the server that holds the message ended during the call: {error}"
        raise cut(request, text) from None
    return Answer(answer.status_code, b"", _kept(answer.headers.raw), _parts(answer))


@lru_cache(maxsize=256)
def _client(path: str) -> httpx.AsyncClient:
    """Return the client for the process at a socket. (To make a client takes longer than a call.)"""
    transport = httpx.AsyncHTTPTransport(uds=path, limits=httpx.Limits(max_keepalive_connections=20))
    return httpx.AsyncClient(transport=transport, timeout=None)


def _kept(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(name.lower(), value) for name, value in headers if name.lower() not in _OF_ONE_CONNECTION]


async def _parts(answer: httpx.Response) -> AsyncGenerator[bytes]:
    try:
        async for part in answer.aiter_raw():
            yield part
    finally:
        await answer.aclose()
