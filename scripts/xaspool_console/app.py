"""The application: the addresses of the console, the login, and the answers to errors."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from spool.engine import UnknownBranch
from spool.errors import BadMessageId, InvalidArgument, MessageInUse, QueueNotFound, SpoolError
from spool.model.text import plural
from xa import XAError
from xaspool_console import changes, formatting, quarantine_pages, queue_pages, space_pages, spaces_page, task_page
from xaspool_console.access import COOKIE, LOGIN, Guard, Session
from xaspool_console.console import SPACES, Console, address_of

_STATIC = Path(__file__).with_name("static")
_TYPES = {"console.css": "text/css; charset=utf-8", "console.js": "text/javascript; charset=utf-8"}
_SPACE = re.compile(rf"({SPACES}/[^/]+)(/.*)?")
_LOCAL = re.compile(r"/(?!/)[A-Za-z0-9._~/%?&=+-]*")
_CONFLICT = (MessageInUse, XAError)
_NOT_FOUND = (QueueNotFound, BadMessageId, UnknownBranch)


def application(console: Console) -> ASGIApp:
    """Return the application of one space behind its guard."""
    return Guard(_handled(console, [*_server_routes(console), *_space_routes(console)]), console.access)


def application_of_several(consoles: Sequence[Console]) -> ASGIApp:
    """Return the application of several spaces behind its guard. The first page lists the spaces."""
    first = consoles[0]
    start = Console(
        plural(len(consoles), "space"), first.metrics, None, first.access, first.allows_changes, first.record,
        has_pages=False,
    )  # fmt: skip
    listed = [*_server_routes(start), *spaces_page.routes(start, consoles)]
    inner = {each.prefix: _handled(each, _space_routes(each)) for each in consoles}
    outer = _handled(start, listed)

    async def chosen(scope: Scope, receive: Receive, send: Send) -> None:
        found = _SPACE.match(scope.get("path", ""))
        app = inner.get(found[1]) if found is not None else None
        if found is None or app is None:
            await outer(scope, receive, send)
        else:
            await app({**scope, "path": found[2] or "/"}, receive, send)

    return Guard(chosen, start.access)


def _server_routes(console: Console) -> list[BaseRoute]:
    routes: list[BaseRoute] = [Route("/static/{name}", _static)]
    return routes if console.access.token is None else [*routes, *_login_routes(console)]


def _space_routes(console: Console) -> list[BaseRoute]:
    """Return the routes of the pages of a space. A console without changes has no addresses for changes."""
    routes: list[BaseRoute] = []
    for module in (space_pages, task_page, queue_pages, quarantine_pages):
        routes += module.routes(console)
    if console.allows_changes and console.space is not None:
        routes += changes.routes(console, console.space)
    return routes


def _handled(console: Console, routes: Sequence[BaseRoute]) -> ASGIApp:
    """Return the application of routes, which answers each error with a page."""

    def failed(request: Request, error: Exception) -> Response:
        status = _status(error)
        sentence = " ".join(str(error).split()) or type(error).__name__
        sentence = sentence.replace("acknowledge it with xa_forget", "the page of transactions can forget it")
        if status == 500:
            sentence = f"unexpected {type(error).__name__}: {sentence} (please report this)"
        if isinstance(error, HTTPException):
            sentence = "the console has no such page" if error.status_code == 404 else error.detail
        return console.error(request, status, sentence)

    handlers: dict[Any, Any] = dict.fromkeys((SpoolError, XAError, OSError, HTTPException, Exception), failed)
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False  # (the redirect would lack the prefix of the login, or of the space)
    return app


def _status(error: Exception) -> int:
    if isinstance(error, HTTPException):
        return error.status_code
    if isinstance(error, _NOT_FOUND):
        return 404
    if isinstance(error, InvalidArgument):
        return 400
    if isinstance(error, _CONFLICT):
        return 409
    return 503 if isinstance(error, SpoolError | OSError) else 500


def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _TYPES:
        raise HTTPException(404)
    return Response((_STATIC / name).read_bytes(), media_type=_TYPES[name])


def _login_routes(console: Console) -> list[BaseRoute]:
    access = console.access

    def ask(request: Request) -> Response:
        return console.page(request, "login.html", next=_local(request.query_params.get("next", "/")), sentence="")

    def log_in(request: Request) -> Response:
        address = address_of(request)
        form, after = request.state.form, _local(request.state.form.get("next", "/"))
        session = access.log_in(form.get("token", ""), address)
        if not isinstance(session, Session):
            status, sentence = 403, "The token is wrong."
            if session:
                status, sentence = 429, f"Too many attempts failed: try again in {formatting.age(session + 1)}."
            console.refuse(address, "The console refused a login.")
            return console.page(request, "login.html", status=status, next=after, sentence=sentence)
        answer = RedirectResponse(session.root + after, status_code=303)
        is_encrypted = request.headers.get("x-forwarded-proto") == "https"
        answer.set_cookie(
            COOKIE, session.cookie, path=f"{session.root}/", httponly=True, samesite="strict", secure=is_encrypted
        )
        return answer

    def log_out(request: Request) -> Response:
        session: Session = request.state.session  # (the guard refuses a form without a login)
        access.log_out(session)
        answer = RedirectResponse(LOGIN, status_code=303)
        answer.delete_cookie(COOKIE, path=f"{session.root}/", httponly=True, samesite="strict")
        return answer

    return [Route(LOGIN, ask), Route(LOGIN, log_in, methods=["POST"]), Route("/logout", log_out, methods=["POST"])]


def _local(target: str) -> str:
    """Return the target if it is an address of this console, else the first page."""
    return target if _LOCAL.fullmatch(target) and not target.startswith(LOGIN) else "/"
