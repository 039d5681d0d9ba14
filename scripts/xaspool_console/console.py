"""The state of a running console, and the pages that it makes from templates."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from forwarder.refusals import Refusals
from spool.errors import InvalidArgument
from spool.model.text import plural
from xaspool_console import formatting
from xaspool_console.access import Access, Session
from xaspool_console.samples import Samples

if TYPE_CHECKING:
    from spool import Space, SpaceMetrics

SPACES = "/space"
"""The beginning of the addresses of each of several spaces."""

_LINK = re.compile(r'( (?:href|action|formaction|src)=")/(@/)?')
_TEMPLATES = Path(__file__).with_name("templates")


def address_of(request: Request) -> str:
    """Return the address of the browser."""
    return request.client.host if request.client else "unknown address"


class NothingChosen(InvalidArgument):
    """A change names no chosen row of a list. The text is a sentence for the page of the list."""


@dataclass
class Console:
    """The state of a running console.

    title: the directory of the space.
    space: the open space; None if the console shows only published metrics.
    allows_changes: whether the forms that change the space exist.
    has_pages: whether the pages are about one space; otherwise they are about all spaces of the server.
    name: the name of the space, if the server has several; its pages are below ``prefix``.
    record: called with a log line for each change, and for some of the refused clients.
    """

    title: str
    metrics: "Callable[[], SpaceMetrics]"
    space: "Space | None"
    access: Access
    allows_changes: bool = False
    record: Callable[[str], None] = lambda line: None
    name: str = ""
    has_pages: bool = True
    samples: Samples = field(init=False)
    templates: Environment = field(init=False)
    _refusals: Refusals = field(init=False)

    def __post_init__(self) -> None:
        self._refusals = Refusals(self._record, self._record_number)
        self.samples = Samples(self.metrics)
        self.templates = Environment(
            loader=FileSystemLoader(_TEMPLATES),
            autoescape=True,
            finalize=formatting.finalized,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        for name in ("number", "size", "age", "duration", "runtime", "moment", "short", "lines", "gtrid"):
            self.templates.filters[name] = getattr(formatting, name)
        self.templates.filters["plural"] = plural

    @property
    def prefix(self) -> str:
        """The beginning of the addresses of this space's pages; "" if the server has only this space."""
        return f"{SPACES}/{quote(self.name, safe='')}" if self.name else ""

    def tell(self, request: Request, sentence: str) -> None:
        """Record a sentence with the time and the address of the browser."""
        self._record(f"{address_of(request)}: {sentence}")

    def refuse(self, address: str, sentence: str) -> None:
        """Record a sentence about a refused client, unless the last minute had many such sentences."""
        self._refusals.record(f"{address}: {sentence}")

    def _record(self, line: str) -> None:
        self.record(f"{datetime.now().astimezone().isoformat(timespec='seconds')} {line}")

    def _record_number(self, count: int) -> None:
        self._record(f"The console refused {plural(count, 'further request')}.")

    def redirect(self, request: Request, address: str) -> RedirectResponse:
        """Redirect a browser to another page after a search or a change."""
        session: Session | None = request.state.session
        root = "" if session is None else session.root
        return RedirectResponse(f"{root}{self.prefix}{address}", status_code=303)

    def page(self, request: Request, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
        """Return a page, or only the part that changes if the script asks for this part.

        The addresses in the templates lack the parts of the login and of the space, which this method adds to each link
        and form. An address that begins with ``/@/`` belongs to the server, and lacks only the part of the login.
        """
        is_fragment = "x-fragment" in request.headers
        session: Session | None = request.state.session
        notice = ""
        if session is not None and not is_fragment:
            notice, session.notice = session.notice, ""
        text = self.templates.get_template(template).render(
            layout="fragment.html" if is_fragment else "base.html",
            console=self,
            session=session,
            notice=notice,
            path=request.url.path,
            has_pages=self.has_pages,
            **values,
        )
        root = "" if session is None else session.root

        def whole(found: re.Match[str]) -> str:
            return f"{found[1]}{root}{'' if found[2] else self.prefix}/"

        # (values have no unescaped quotation marks, so these links are from the templates)
        text = _LINK.sub(whole, text)
        return HTMLResponse(text, status, {"X-Fragment": "1"} if is_fragment else None)

    def error(self, request: Request, status: int, sentence: str) -> HTMLResponse:
        return self.page(request, "error.html", status=status, sentence=sentence)


def page_routes(console: Console, pages: Mapping[str, Callable[[Console, Request], ASGIApp]]) -> list[BaseRoute]:
    """Return the routes of pages by their addresses. Starlette runs each page in a thread, because calls of the engine
    block."""

    def bound(page: Callable[[Console, Request], ASGIApp]) -> Callable[[Request], ASGIApp]:
        return lambda request: page(console, request)  # (a partial of a page would not run in a thread)

    return [Route(path, bound(page)) for path, page in pages.items()]
