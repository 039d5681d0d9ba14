"""The calls for messages: put one or many, look at queues and messages, and ask a service for a reply."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any
from urllib.parse import unquote

from starlette.responses import Response

import spool.aio
from forwarder.web.forms import PutForm, encoded, headers_of, options_of, put_of
from forwarder.web.tokens import Right
from forwarder.web.web_call import WebCall, answer, joined, json_answer, json_object, json_of, optional, stream
from spool.client.fields import ARROW, MOST_BODY_BYTES, MOST_JSON_BYTES, NDJSON, Lines, json_bytes
from spool.errors import BadMessageId, InvalidArgument
from spool.intake import body_of
from spool.model.codecs import BYTES_TYPE
from spool.model.message import Message, MessageId
from spool.model.objects import CODEC, message_object
from spool.model.options import MessageFilters
from spool.model.settings import QueueConfig

MOST_MESSAGES = 65_536
"""The most messages of one put."""
_MOST_BROWSED, _BROWSED = 1_000, 100
_MOST_BROWSED_BYTES = 16 << 20
_MOST_SHOWN_BODY = 1 << 20
_MOST_REPLY_SECONDS = 43_200.0
_FILTERS = ("message_id", "correlation_id", "reason")


async def put(call: WebCall) -> Response:
    """Put the body as one message, or the lines or rows of the body as many messages in one commit."""
    queue = call.queue
    served = call.served(Right.PUT, queue)
    kind, options = call.content_type, options_of(call.headers())
    with call.server.room() as room:
        form = (kind or "").partition(";")[0].strip().lower()
        if form in (NDJSON, ARROW) and CODEC not in options:
            if options:
                raise InvalidArgument("the headers of a message are for one message: write the fields of each into it")
            if form == NDJSON:
                puts = list(_neighbours([put async for put in _lines(call.chunks(room, MOST_JSON_BYTES))]))
            else:
                rows = await optional("rows", 415, "parquet")
                content = await call.body(room, MOST_JSON_BYTES)
                puts = await call.server.in_thread(list, rows.puts_of(content, queue, MOST_MESSAGES))
            for each, _ in puts:
                call.check_answers(each)
            return json_answer(201, {"ids": await _put_all(served.space, queue, puts)})
        call.check_answers(options)
        raw = await call.body(room, MOST_BODY_BYTES)
        id_ = await served.space.put(queue, **_one(raw, kind, options))
    return _created(call, id_)


def _created(call: WebCall, id_: str) -> Response:
    if isinstance(id_, MessageId):
        return json_answer(200 if id_.duplicate else 201, {"id": id_, "duplicate": id_.duplicate})
    return answer(201, b'{"id": "%s"}' % id_.encode(), [("Content-Type", "application/json")])


def _one(raw: bytes, kind: str | None, options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a put. A consumer in Python gets the value of JSON or msgpack, and text as a str.

    A client in Python names the codec of the body; "" stands for bytes.
    """
    if (codec := options.pop(CODEC, None)) is not None:
        kind = None if kind is None else unquote(kind)  # (as ``headers_of_put`` encodes it)
        return {"body": encoded(raw, codec, kind), "content_type": kind, **options}
    body, content_type = (raw, None) if kind in (None, BYTES_TYPE) else body_of(raw, kind)
    return {"body": body, **options, **({} if content_type is None else {"content_type": content_type})}


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[PutForm]:
    """Yield the puts of lines of JSON."""
    lines, count = Lines(), 0
    async for chunk in chunks:
        for line in lines.ended_by(chunk):
            if line.strip():
                count += 1
                yield _put_of(line, count)
    for line in lines.ended_by(b"\n"):
        if line.strip():
            yield _put_of(line, count + 1)


def _put_of(line: bytes, number: int) -> PutForm:
    if number > MOST_MESSAGES:
        raise InvalidArgument(f"one call puts at most {MOST_MESSAGES:,} messages: make several calls")
    found = put_of(json_of(line, f"line {number}"))
    if found.queue is not None:
        raise InvalidArgument(f"line {number} has a queue, and the address names the queue")
    return found


async def _put_all(space: spool.aio.Space, queue: str, puts: Sequence[tuple[dict[str, Any], list[Any]]]) -> list[str]:
    """Put messages, given as options and bodies, in one commit."""
    if not puts:
        return await space.put_many(queue, [])
    ids: list[str] = []
    async with space.transaction() as transaction:
        for options, bodies in puts:
            ids += await transaction.put_many(queue, bodies, **options)
    return ids


def _neighbours(puts: Sequence[PutForm]) -> Iterator[tuple[dict[str, Any], list[Any]]]:
    bodies: list[Any] = []
    for place, each in enumerate(puts):
        bodies.append(each.body)
        follows = puts[place + 1].options if place + 1 < len(puts) else None
        if follows != each.options or "deduplication_key" in each.options:
            yield each.options, bodies
            bodies = []


# -- requests ---------------------------------------------------------------------------------------------------------


async def request(call: WebCall) -> Response:
    """Put a message, and answer with the reply of its service."""
    queue = call.queue
    served = call.served(Right.PUT, queue)
    options, config = options_of(call.headers()), served.space.sync.engine.config().queues.get(queue)
    for name in ("reply_queue", "failure_queue"):
        if (of_answers := options.get(name) or getattr(config, name, None)) is not None:
            call.served(Right.TAKE, of_answers)
    timeout = call.number("timeout", 30.0, _MOST_REPLY_SECONDS)
    with call.server.room() as room:
        raw = await call.body(room, MOST_BODY_BYTES)
        arguments = _one(raw, call.content_type, options)
        asking = asyncio.ensure_future(served.space.request(queue, timeout=timeout, **arguments))
        gone = asyncio.ensure_future(call.wait_until_gone())
        try:
            await asyncio.wait((asking, gone), return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                return answer(204)
            reply = await asking
            if call.accepts(NDJSON):
                return answer(200, _whole(reply), [("Content-Type", NDJSON)])
            return message_answer(reply)
        finally:
            gone.cancel()
            asking.cancel()


def message_answer(message: Message, headers: Sequence[tuple[str, str]] = ()) -> Response:
    """Return an answer that is a message: its stored bytes, and its fields as headers."""
    return answer(200, message.body, [*headers_of(message), *headers])


# -- looking ----------------------------------------------------------------------------------------------------------


async def queues(call: WebCall) -> Response:
    """Answer with all queues and their figures."""
    served = call.served(Right.LOOK)
    found = await served.space.stats()
    config = served.space.sync.engine.config().queues
    listed = [{**asdict(config.get(name) or QueueConfig(name)), **asdict(stats)} for name, stats in found.items()]
    return json_answer(200, {"queues": listed})


async def queue(call: WebCall) -> Response:
    """Answer with the figures and the options of a queue."""
    served = call.served(Right.LOOK, call.queue)
    stats = await served.space.stats(call.queue)
    config = served.space.sync.engine.config().queues[call.queue]
    return json_answer(200, {**asdict(config), **asdict(stats)})


async def browse(call: WebCall) -> Response:
    """Answer with the next messages of a queue; nothing is taken. As lines of JSON or rows: all of the queue."""
    space = call.served(Right.LOOK, call.queue).space.sync
    filters: dict[str, Any] = {name: value for name, value in call.query.items() if name in _FILTERS}
    filters |= json_object(call.query.get("filters", "").encode(), "filters")
    if unknown := filters.keys() - MessageFilters.__annotations__.keys():
        raise InvalidArgument(f"there is no filter {', '.join(sorted(unknown))[:80]}")
    rows = await optional("rows", 406, "parquet") if call.accepts(ARROW) else None
    if rows is not None or call.accepts(NDJSON):
        found = await call.server.looks.look(call.client.token, partial(space.browse, call.queue, **filters))
        if rows is not None:
            return stream(call, ARROW, rows.browsed(found))
        return stream(call, NDJSON, joined(map(_whole, found)))
    limit = int(call.number("limit", _BROWSED, _MOST_BROWSED, 1))
    after = call.query.get("after")
    browse = partial(space.browse, call.queue, **filters)
    return json_answer(200, await call.server.looks.look(call.client.token, partial(_page, browse, limit, after)))


def _whole(message: Message) -> bytes:
    return json_bytes({CODEC: message.codec, **message_object(message, value=False, compact=True)}) + b"\n"


def _page(browse: Callable[[], Iterator[Message]], limit: int, after: str | None) -> dict[str, Any]:
    """Return the messages behind the one with the id ``after``. BadMessageId if that message has left the queue."""
    messages = browse()
    if after is not None and all(message.id != after for message in messages):
        raise BadMessageId("the message of `after` has left the queue: begin again, or ask for lines of JSON")
    found, size = list[dict[str, Any]](), 0
    for message in messages:
        size += min(len(message.body), _MOST_SHOWN_BODY)
        if found and (len(found) == limit or size > _MOST_BROWSED_BYTES):
            return {"messages": found, "next": found[-1]["id"]}
        found.append(message_object(message, most=_MOST_SHOWN_BODY, compact=True))
    return {"messages": found, "next": None}
