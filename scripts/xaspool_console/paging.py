"""Long lists in parts: the request parameter ``page`` chooses the part."""

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar
from urllib.parse import urlencode

from starlette.requests import Request

_PAGE = 100
Row = TypeVar("Row")


class Page(NamedTuple, Generic[Row]):
    """A part of a list. before, after: the addresses of the previous and the next part, or ""."""

    rows: Sequence[Row]
    first: int
    total: int
    before: str
    after: str


def page_of(request: Request, rows: Sequence[Row]) -> Page[Row]:
    """Return the rows that the parameter ``page`` of the request chooses."""
    pages = max(1, -(-len(rows) // _PAGE))
    text = request.query_params.get("page", "1")
    here = min(pages, max(1, int(text))) if text.isascii() and text.isdigit() and len(text) < 7 else 1

    def address(other: int) -> str:
        return f"?{urlencode({**request.query_params, 'page': other})}" if 1 <= other <= pages else ""

    first = (here - 1) * _PAGE
    return Page(rows[first : first + _PAGE], first + 1, len(rows), address(here - 1), address(here + 1))
