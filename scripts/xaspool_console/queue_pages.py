"""The pages about one queue and one message: figures, settings, and bounded lists of messages.

A list reads the beginning of each body. So a page has few messages, and the last page begins at most a thousand
messages after the head of the queue.
"""

import re
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from spool.errors import BadMessageId, InvalidArgument
from spool.model.settings import ERROR, WORK
from spool.model.text import plural, printable
from spool.watch.body_text import BODY_PREVIEW, LIST_PREVIEW, body_view, piece
from spool.watch.health import Rates
from spool.watch.tasks import Task, process_of, task_of
from xaspool_console.charts import chart
from xaspool_console.console import Console, NothingChosen, page_routes
from xaspool_console.formatting import moment
from xaspool_console.reasons import count_failed, frequent, in_words

if TYPE_CHECKING:
    from spool import Message, MessageFilters, QueueEntry, QueueStats, Space

_PAGE, _FURTHEST = 25, 1_000
_MOST_HEADERS, _MOST_FIELD = 200, 2_000
_MOST_PIECE = 200  # the most characters of a body in a list
_MOST_DOWNLOADS, _PIECE_BYTES = 4, 64 << 10
_downloads = threading.BoundedSemaphore(_MOST_DOWNLOADS)
_ID = re.compile(r"[0-9a-f]{32}")
_PART_OF_ID = re.compile(r"[0-9a-fA-F]+")
_ID_FORM = "the id of a message has 32 hexadecimal digits: give all of them"
# The fields in the table of a message's page. Other fields have a separate place on the page.
_FIELDS = (
    "attempts", "origin_queue", "enqueued_at", "not_before", "expires_at", "correlation_id", "group", "content_type",
    "codec", "priority", "reply_queue", "failure_queue", "client_id", "application_key", "user_code",
)  # fmt: skip
_TIMES = ("enqueued_at", "not_before", "expires_at")
_SEARCHED = ("correlation_id", "header", "reason", "since", "until", "older_than")
_MOST_IDS = 4_000  # the most characters of the ids in a search


def as_message_id(text: str) -> str | None:
    """Return the text as the id of a message, or None if it has another form."""
    lowered = text.strip().lower()
    return lowered if _ID.fullmatch(lowered) else None


def is_part_of_id(text: str) -> bool:
    """Return whether the text may be an id with missing or surplus digits."""
    return _PART_OF_ID.fullmatch(text) is not None and len(text) != 32


def routes(console: Console) -> list[BaseRoute]:
    return page_routes(
        console, {"/queues/{queue}": queue_page, "/messages/{id}": message_page, "/messages/{id}/body": body}
    )


# -- a queue -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MessageRow:
    """A message in a list. piece: the arguments of a task, or the beginning of another body."""

    id: str | None
    state: str
    holder: str
    damage: str | None
    message: "Message | None"
    body_bytes: int | None
    piece: str
    task: Task | None


@dataclass(frozen=True)
class MessageList:
    """A list of some messages of a queue.

    first: the number of messages before the part.
    total: the number of messages in the queue, or of those that match the search.
    before, after: the addresses of the previous and the next part, or "".
    note: a limit that ended the part.
    problem: the reason why a search is not possible.
    nothing: the sentence for a part without messages.
    """

    rows: list[MessageRow]
    first: int = 0
    total: int = 0
    before: str = ""
    after: str = ""
    note: str = ""
    problem: str = ""
    nothing: str = ""

    @property
    def has_tasks(self) -> bool:
        return any(row.task is not None for row in self.rows)


@dataclass(frozen=True)
class Reasons:
    """The most frequent failure reasons of an error queue.

    links: for each reason its words, the number of messages, and the address of the list of these messages.
    others: the number of the messages with other reasons.
    limit: the end of the line, which says whether all messages are counted.
    """

    links: list[tuple[str, int, str]]
    others: int
    limit: str


def queue_page(console: Console, request: Request) -> Response:
    """Return the page of a queue and its first messages. In an error queue, each message begins with the reason."""
    queue = request.path_params["queue"]
    snapshot = console.samples.snapshot()
    stats = snapshot.metrics.queues.get(queue)
    if stats is None:
        console.samples.forget()  # perhaps the queue was created this second
        return console.error(request, 404, f"there is no queue {queue[:200]!r}")
    is_fragment = "x-fragment" in request.headers  # (the part that changes has no messages)
    role = snapshot.metrics.roles.get(queue, WORK)
    is_error = role == ERROR
    settings, listing, reasons = {}, None, None
    if console.space is not None and not is_fragment:
        settings = _settings(console.space, queue)
        listing = _listing(console.space, stats, queue, request)
        if not listing.rows:
            listing = replace(listing, nothing=_nothing(request, stats.in_doubt))
        if is_error and not listing.problem:
            reasons = _reasons(console.space, queue, request)
    referring = snapshot.metrics.references.get(queue)
    references = {} if referring is None else asdict(referring)
    filters = _texts(request)
    first_filter = "reason" if is_error else "id"  # the form hides the other filters while they are empty
    return console.page(
        request, "queue.html", queue=queue, stats=stats, rates=snapshot.rates.get(queue, Rates()),
        metrics=snapshot.metrics,
        chart=chart(snapshot.depths(queue), snapshot.chart_seconds, f"messages in {queue}"), settings=settings,
        listing=listing,
        is_error=is_error, reasons=reasons, consumers=snapshot.consumers.get(queue, [])[:_PAGE],
        is_chosen=request.query_params.get("choose") == "page",
        choose_page=_part(request, choose="page"), filters=filters, search=_search_of(request),
        has_more_filters=any(text for name, text in filters.items() if name != first_filter),
        role=role, references=references,
    )  # fmt: skip


def _search_of(request: Request) -> str:
    """Return the search as a part of an address, e.g. ``?reason=HTTP+503``; "" without a search."""
    return _address(_texts(request))


def _address(texts: dict[str, str]) -> str:
    given = {name: text for name, text in texts.items() if text}
    return f"?{urlencode(given)}" if given else ""


def _reasons(space: "Space", queue: str, request: Request) -> Reasons:
    """Count by reason the messages that match the search, but ignore the reason in the search."""
    filters = searched(request)
    filters.pop("reason", None)
    failed = count_failed(space, queue, _FURTHEST, **filters)
    found, others = frequent(failed.reasons)
    texts = _texts(request)
    links = [(in_words(reason), count, _address({**texts, "reason": reason})) for reason, count in found]
    return Reasons(links, others, failed.limit)


def _settings(space: "Space", queue: str) -> dict[str, str]:
    config = space.queues().get(queue)
    values = {} if config is None else asdict(config)
    return {name: _words(value) for name, value in values.items() if name != "name"}


def _words(value: object) -> str:
    if value is None or value == () or value == {}:
        return "none"
    if isinstance(value, dict):
        return ", ".join(f"{name}={item}" for name, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _texts(request: Request) -> dict[str, str]:
    """Return the texts of the search form. ``id`` may have several ids."""
    found = {name: request.query_params.get(name, "").strip()[:500] for name in _SEARCHED}
    return found | {"id": " ".join(request.query_params.getlist("id"))[:_MOST_IDS].strip()}


def searched(request: Request) -> "MessageFilters":
    """Return the filters of the search form. InvalidArgument if a text has a wrong form."""
    texts = _texts(request)
    found: Any = {name: texts[name] for name in ("reason", "correlation_id") if texts[name]}
    if texts["id"]:
        ids = [as_message_id(text) for text in texts["id"].replace(",", " ").split()]
        found["message_id"] = [id for id in ids if id is not None]
        if None in ids:
            raise InvalidArgument(_ID_FORM)
    elif "chosen" in request.query_params:
        raise NothingChosen("No message is chosen: choose messages in the list.")
    found |= {name: _moment(name, texts[name]) for name in ("since", "until") if texts[name]}
    if texts["header"]:
        name, sign, value = texts["header"].partition("=")
        if not sign or not name:
            raise InvalidArgument("a header is written NAME=VALUE, e.g. tenant=acme")
        found["headers"] = {name: value}
    if texts["older_than"]:
        found["older_than"] = _seconds(texts["older_than"])
    return found  # type: ignore[no-any-return]


def _seconds(text: str) -> float:
    """Return the number of seconds in the field "older than". InvalidArgument if the field has no such number."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:  # (nan is no number of seconds)
        raise InvalidArgument(f"“older than (seconds)” is a number of seconds from 0, e.g. 3600, not {text[:40]}")
    return seconds


def _moment(name: str, text: str) -> datetime:
    """Return the time in the field "since" or "until", in the server's time zone. InvalidArgument for other texts."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise InvalidArgument(f"“{name}” is a time, e.g. 2030-01-31T08:00, not {text[:40]}") from None


def search_words(request: Request) -> str:
    """Return the search in words, for a question about all matching messages; "" without a search."""
    texts = {name.replace("_", " "): text for name, text in _texts(request).items() if text}
    if "id" in texts:
        texts["id"] = plural(len(texts["id"].replace(",", " ").split()), "message id")
    return printable(", ".join(f"{name} {text}" if name != "id" else text for name, text in texts.items()))


def _nothing(request: Request, in_doubt: int) -> str:
    """Return the sentence for a list without messages."""
    if any(_texts(request).values()):
        return "No message of the queue matches the search."
    if request.query_params.get("after", "0") != "0":
        return "The queue has no more messages."
    if in_doubt:
        return "The queue has no messages but those of transactions in doubt."
    return "The queue is empty."


def _part(request: Request, **changes: object) -> str:
    """Return the address of another part of a list. ``changes``: None removes a parameter of the request."""
    kept = [(name, value) for name, value in request.query_params.multi_items() if name not in {*changes, "choose"}]
    return f"?{urlencode([*kept, *((name, value) for name, value in changes.items() if value is not None)])}"


def first_of(request: Request) -> int:
    """Return the number of messages before the part of the list that the request names."""
    text = request.query_params.get("after", "0")
    return min(_FURTHEST, int(text)) if text.isascii() and text.isdigit() and len(text) < 7 else 0


def _listing(space: "Space", stats: "QueueStats", queue: str, request: Request) -> MessageList:
    first = first_of(request)
    try:
        filters = searched(request)
        rows, is_whole = _rows(space.entries(queue, preview=LIST_PREVIEW, **filters), first)
    except (InvalidArgument, BadMessageId) as error:
        return MessageList([], problem=str(error))
    following, after, note = first + len(rows), "", ""
    if not is_whole:
        if following < _FURTHEST:
            after = _part(request, after=following)
        else:
            note = f"The console lists the first {_FURTHEST:,} messages: search for the others."
    before = _part(request, after=max(0, first - _PAGE) or None) if first else ""
    total = stats.ready + stats.delayed + stats.claimed + stats.in_doubt
    if filters and not is_whole:
        total = space.purge(queue, dry_run=True, **filters)
    return MessageList(rows, first, following if is_whole else max(total, following + 1), before, after, note)


def _rows(entries: "Iterator[QueueEntry]", first: int) -> tuple[list[MessageRow], bool]:
    """Return a page of rows, and whether the entries ended. The entries before ``first`` are skipped."""
    rows: list[MessageRow] = []
    for entry in islice(entries, first, None):
        if len(rows) == _PAGE:
            return rows, False
        rows.append(_row(entry))
    return rows, True


def _row(entry: "QueueEntry") -> MessageRow:
    message, task = entry.message, task_of(entry, time.time())
    shown = "" if message is None else piece(message, _MOST_PIECE)
    if task is not None and task.arguments:
        shown = task.arguments
    state = entry.state if task is None else task.state
    return MessageRow(entry.id, state, _holder(entry), entry.damage, message, entry.body_bytes, shown, task)


def _holder(entry: "QueueEntry") -> str:
    holder = entry.holder
    if holder is None:
        return ""
    named = process_of(holder)
    return f"transaction {holder.xid} of {named}" if holder.state == "in doubt" else named


# -- a message ---------------------------------------------------------------------------------------------------------


def message_page(console: Console, request: Request) -> Response:
    """Return the page of a message: its fields, its headers and its body as text."""
    if console.space is None:
        return console.page(request, "published.html", subject="messages")
    entry = entry_of(console.space, request, preview=BODY_PREVIEW)
    message = entry.message
    if message is None:
        return console.page(request, "damaged.html", entry=entry)
    fields: dict[str, Any] = {name: getattr(message, name) for name in _FIELDS}
    fields["attempts"] = _attempts(message)
    return console.page(
        request, "message.html", entry=entry, message=message, fields=fields, times=_TIMES, holder=_holder(entry),
        view=body_view(message, entry.body_bytes or 0), headers=list(message.headers.items())[:_MOST_HEADERS],
        most=_MOST_FIELD, failed=_failed(message), task=task_of(entry, time.time()),
    )  # fmt: skip


def _attempts(message: "Message") -> str:
    """Return the number of failed attempts, for a message of an error queue also in the original queue."""
    if not message.origin_attempts:
        return f"{message.attempts:,}"
    return f"{message.origin_attempts:,} in queue {message.origin_queue}, {message.attempts:,} in queue {message.queue}"


def _failed(message: "Message") -> str:
    """Return the words before a failed message's reason: the queue, the attempts and the time."""
    words = "Failed" if message.origin_queue is None else f"Failed in queue {message.origin_queue}"
    if message.origin_attempts:
        words += f" after {plural(message.origin_attempts, 'attempt')}"
    return f"{words} at {moment(message.failed_at)}:" if message.failed_at is not None else f"{words}:"


def body(console: Console, request: Request) -> ASGIApp:
    if console.space is None:
        raise HTTPException(404)
    return Download(console.space, request)


class Download:
    """The response with the stored bytes of a body. Browsers save this response as a file, and do not open it.

    A client that reads slowly keeps the body in memory, so few bodies are sent at a time.
    """

    def __init__(self, space: "Space", request: Request) -> None:
        self._space = space
        self._request = request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not _downloads.acquire(blocking=False):
            raise HTTPException(503, f"{_MOST_DOWNLOADS} downloads are under way: try again when one has ended")
        try:
            answer = await run_in_threadpool(self._answer)
            await answer(scope, receive, send)
        finally:  # the client has all bytes, or has disconnected
            _downloads.release()

    def _answer(self) -> Response:
        message = entry_of(self._space, self._request).message
        if message is None:
            raise HTTPException(404)
        data = message.body
        pieces = (data[start : start + _PIECE_BYTES] for start in range(0, len(data), _PIECE_BYTES))
        headers = {"Content-Disposition": f'attachment; filename="{message.id}.bin"', "Content-Length": str(len(data))}
        return StreamingResponse(pieces, 200, headers, "application/octet-stream")


def entry_of(space: "Space", request: Request, *, preview: int | None = None) -> "QueueEntry":
    """Return the message that the address names. BadMessageId if it does not exist. ``preview``: see
    ``Space.entries``."""
    found = as_message_id(request.path_params["id"])
    if found is None:
        raise BadMessageId(_ID_FORM)
    return space.entry(found, preview=preview)
