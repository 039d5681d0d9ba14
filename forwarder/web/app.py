"""The application: the addresses of the server, the way of a call to its handler, and the answer to each error.

The application is a plain ASGI function instead of a router of Starlette, whose layers cost more than a put.
"""

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from importlib.resources import files
from typing import Any
from urllib.parse import unquote_to_bytes

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

import spool
from forwarder.web import claims, messages
from forwarder.web.connection_limits import CONNECTION
from forwarder.web.leases import ENDED
from forwarder.web.relay import passed_on
from forwarder.web.web_call import Gone, Refusal, Server, WebCall, address, answer, cut, json_answer, optional
from spool.client.fields import ARGUMENTS, NDJSON
from spool.client.problems import PROBLEM, RETRY_SECONDS, problem_of, status_of
from spool.errors import SpoolError

Handler = Callable[[WebCall], Awaitable[Response]]
_QUEUE, _CLAIM = "/v1/{space}/queues/{queue}", "/v1/{space}/claims/{receipt}"


async def _spark(call: WebCall) -> Response:
    """Answer a process of Spark. Spark is imported for the first call."""
    server = call.server
    if server.transfers is None:
        call.served()
        spark = await optional("spark", 501, "spark")
        server.transfers = server.transfers or spark.SpaceTransfers(server)
    found: Response = await server.transfers.answer(call)
    return found


_OF_CLAIMS = (claims.commit, claims.conclude, claims.extend, claims.release, claims.fail, claims.reject)
HANDLERS: Sequence[tuple[str, str, Handler]] = (
    ("POST", f"{_QUEUE}/messages", messages.put),
    ("POST", f"{_QUEUE}/claims", claims.claim),
    ("DELETE", _CLAIM, claims.acknowledge),
    *(("POST", f"{_CLAIM}/{each.__name__}", each) for each in _OF_CLAIMS),
    ("POST", f"{_QUEUE}/request", messages.request),
    ("GET", "/v1/{space}/queues", messages.queues),
    ("GET", _QUEUE, messages.queue),
    ("GET", f"{_QUEUE}/messages", messages.browse),
    ("POST", "/v1/{space}/spark/{call}", _spark),
    ("POST", "/v1/{space}/spark/{receipt}/{call}", _spark),
)

log = logging.getLogger("spool.server")
_LARGE = 64 << 10
_DOCUMENT = json.loads(files(__package__).joinpath("openapi.json").read_bytes())
_SEE = "GET /openapi.json lists the addresses and their methods"
_OF_ONE_PROCESS = "receipt"  # the name in addresses that only one process of the server knows


def application(server: Server) -> ASGIApp:
    """Return the application."""
    table = _Addresses([*HANDLERS, *(("GET", path, handler) for path, handler in _OPEN.items())])

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            handler = table.find(scope)
            if scope["path"] in _OPEN:
                response = handler(server)
            else:
                call = WebCall(server, request)
                peer = server.peer(scope["path_params"].get(_OF_ONE_PROCESS, "")) if server.peers else None
                response = await (handler(call) if peer is None else passed_on(request, peer))
        except asyncio.CancelledError:  # (the server ends)
            response = _answer_to(server, request, cut(request, ENDED))
        except Exception as error:
            response = _answer_to(server, request, error)
        connection = scope["state"][CONNECTION]
        if connection.sends:  # the rest of the body is not read
            response.raw_headers.append((b"connection", b"close"))
        try:
            with server.room() as room:
                if len(response.body) > _LARGE:
                    room.hold(len(response.body))
                await response(scope, receive, send)
        except BaseException as error:
            if isinstance(error, SpoolError | OSError | asyncio.CancelledError):  # (cancelled: the server ends)
                log.warning("an answer was cut: %s", str(error) or "the server ended")
            else:
                log.error("an answer was cut: %s", error, exc_info=error)
            connection.cut()

    return app


class _Addresses:
    """The handlers by address and method."""

    def __init__(self, handlers: Sequence[tuple[str, str, Any]]) -> None:
        self._table: dict[str, tuple[re.Pattern[str], dict[str, Any]]] = {}
        for method, path, handler in handlers:
            pattern = re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path))
            self._table.setdefault(path, (pattern, {}))[1][method] = handler, _arguments(path, method)

    def find(self, scope: Scope) -> Any:
        """Return the handler of a call, and note the names in its address, and its arguments. Refusal."""
        path = scope["raw_path"].decode("ascii", "replace")
        if path[:1] != "/":  # (a proxy may send a whole URL)
            path = scope["path"] = re.sub(r"^https?://[^/]*", "", path, flags=re.IGNORECASE) or "/"
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        for pattern, methods in self._table.values():
            if found := pattern.fullmatch(path):
                scope["path_params"] = {name: _decoded(text) for name, text in found.groupdict().items()}
                if method in methods:
                    handler, scope["arguments"] = methods[method]
                    return handler
                allowed = sorted({*methods, "OPTIONS", *(["HEAD"] if "GET" in methods else [])})
                raise Refusal(405, f"there is no such method: {_SEE}", ("Allow", ", ".join(allowed)))
        raise Refusal(404, f"there is no such address: {_SEE}")


def _arguments(path: str, method: str) -> list[str] | None:
    """Return the names of the arguments that an address may have; None for a call of Spark."""
    told = _DOCUMENT["paths"][path][method.lower()].get("parameters", ())
    return None if "/spark/" in path else [each["name"] for each in told if each.get("in") == "query"]


def _decoded(text: str) -> str:
    return unquote_to_bytes(text).decode("utf-8", "replace") if "%" in text else text


def _answer_to(server: Server, request: Request, error: Exception) -> Response:
    if isinstance(error, Gone):
        return answer(204)
    status, own = (error.status, error.headers) if isinstance(error, Refusal) else (status_of(error), ())
    if status == 405 and request.method == "OPTIONS":
        return answer(204, headers=own)
    headers = [("Content-Type", PROBLEM), ("Cache-Control", "no-store"), *own]
    if status in (429, 503, 507):
        headers.append(("Retry-After", str(RETRY_SECONDS)))
    if status == 403:
        server.refuse(address(request), f"{server.client(request).name}: {error}", known=True)
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        log.error("a call failed unexpectedly: %s", error, exc_info=error)
    has_lines = NDJSON in request.headers.get("content-type", "").lower()
    names = ARGUMENTS if request.scope["path"].endswith(("/messages", "/request")) and not has_lines else {}
    found = json.dumps(problem_of(error, status, names), ensure_ascii=False)
    return answer(status, found.encode("utf-8", "replace"), headers)


def _health(server: Server) -> Response:
    """Answer 200 if every space can be used."""
    status, told = 200, "ok"
    try:
        for served in server.spaces.values():
            served.space.sync.engine.check_in_place()
    except (SpoolError, OSError):
        status, told = 503, "failing"
    return json_answer(status, {"status": told, "version": spool.__version__})


_OPEN: dict[str, Callable[[Server], Response]] = {"/healthz": _health}  # the addresses that need no token
_OPEN["/openapi.json"] = lambda _: json_answer(200, _DOCUMENT)
