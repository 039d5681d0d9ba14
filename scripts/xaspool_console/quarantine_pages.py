"""The pages about quarantine: the list of files by cause, and the page of one file. The metrics lack these data.

The list does not refresh, because a refresh would clear the boxes by which a person chooses files.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from spool.errors import InvalidArgument
from spool.watch.body_text import beginning
from xaspool_console.console import Console, NothingChosen, page_routes
from xaspool_console.paging import page_of
from xaspool_console.troubles import quarantine_summary

if TYPE_CHECKING:
    from spool import Finding, QuarantinedFile, Space

LIST = "/quarantine"
_UNKNOWN = "unknown"  # a value of QuarantinedFile.cause


def routes(console: Console) -> list[BaseRoute]:
    return page_routes(console, {LIST: files_page, f"{LIST}/{{token}}": file_page})


def files_page(console: Console, request: Request) -> Response:
    """Return the page with the files of one cause or of all causes, and the next step for each cause."""
    metrics = console.samples.snapshot().metrics
    causes = Counter(map(_cause, metrics.quarantine))
    cause = request.query_params.get("cause")
    found = [each for each in metrics.quarantine if cause is None or _cause(each) == cause]
    part = page_of(request, found)
    files = [] if console.space is None else _files(console.space, (each.name for each in part.rows))
    return console.page(
        request, "quarantine.html", metrics=metrics, part=part, causes=sorted(causes.items()), cause=cause,
        rows=[(file, token_of(file.name)) for file in files], summary=quarantine_summary(metrics),
        steps=Counter((each.cause, each.advice) for each in files),
        restorable=any(each.can_be_restored for each in files), some=f"?{urlencode({'cause': cause})}" if cause else "",
    )  # fmt: skip


def file_page(console: Console, request: Request) -> Response:
    """Return the page of one file in quarantine, with the file's first bytes."""
    if console.space is None:
        return console.page(request, "published.html", subject="files in quarantine")
    token = request.path_params["token"]
    file = console.space.quarantined_file(name_of(token))
    return console.page(request, "quarantined.html", file=file, token=token, beginning=beginning(file.beginning))


def chosen(space: "Space", request: Request) -> "tuple[list[QuarantinedFile], str]":
    """Return the files that a request for a change chooses, and words about the chosen cause.

    The request chooses files by boxes, the files of one cause, or all files. Raises InvalidArgument for no file.
    """
    tokens, cause = request.query_params.getlist("file"), request.query_params.get("cause", "")
    if "chosen" in request.query_params:
        files = _files(space, map(name_of, dict.fromkeys(tokens)))
        if not files:
            raise NothingChosen("No file is chosen: choose files in the list.")
        return files, ""
    files = _files(space, (each.name for each in space.quarantined() if not cause or _cause(each) == cause))
    if not files:
        raise InvalidArgument(f"no file in quarantine has the cause {cause[:80]!r}" if cause else "quarantine is empty")
    return files, f" with the cause {cause}" if cause else ""


def _files(space: "Space", names: Iterable[str]) -> "list[QuarantinedFile]":
    """Describe the files that are still in quarantine."""
    files = []
    for name in names:
        with suppress(InvalidArgument):  # (another program may have restored or deleted the file meanwhile)
            files.append(space.quarantined_file(name))
    return files


def _cause(finding: "Finding") -> str:
    return finding.reason or _UNKNOWN


def token_of(name: str) -> str:
    """Return a file's name as a part of an address. The name may contain any bytes."""
    return urlsafe_b64encode(name.encode("utf-8", "surrogateescape")).decode("ascii").rstrip("=")


def name_of(token: str) -> str:
    """Return the file's name from a part of an address. Raises HTTPException unless ``token_of`` returns this part."""
    try:
        name = urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode("utf-8", "surrogateescape")
    except ValueError:
        raise HTTPException(404) from None
    if token_of(name) != token:
        raise HTTPException(404)
    return name
