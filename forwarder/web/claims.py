"""The calls for taking messages: claim, then acknowledge, commit with new messages, fail, reject, release or extend."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.responses import Response

from forwarder.web.forms import outcome_of, put_of, queues_of
from forwarder.web.leases import MOST_AT_ONCE, Lease
from forwarder.web.limits import SMALL_BODY
from forwarder.web.messages import message_answer
from forwarder.web.tokens import Right
from forwarder.web.web_call import BodyMemory, Gone, Served, WebCall, answer, json_answer, json_object, optional
from spool.client.fields import ARROW, MOST_JSON_BYTES, NDJSON, branch_of, json_bytes
from spool.errors import Full, InvalidArgument, MessageInUse
from spool.model.checks import check
from spool.model.message import Message
from spool.model.objects import message_object
from spool.workers.conclusion import Conclusion
from spool.workers.effects import ON_FAILURE, OnFailure
from spool.workers.outcome import Outcome

_MOST_WAIT, _LEASE, _LEAST_LEASE, _MOST_LEASE = 60.0, 60.0, 1.0, 43_200.0


async def claim(call: WebCall) -> Response:
    """Claim messages for the client; wait for the first. The answer is one message, or lines of JSON, or rows."""
    queue = call.queue
    served = call.served(Right.TAKE, queue)
    wait, lease = call.number("wait", 0.0, _MOST_WAIT), call.number("lease", _LEASE, _MOST_LEASE, _LEAST_LEASE)
    most = int(call.number("max", 1, MOST_AT_ONCE, 1))
    given = call.query
    wanted = {name: given[name] for name in ("message_id", "correlation_id") if name in given}
    rows = await optional("rows", 406, "parquet") if call.accepts(ARROW) else None
    await call.json_body()
    gone = asyncio.ensure_future(call.wait_until_gone())
    try:
        found = await served.leases.take(queue, most, wait, lease, call.client, gone, **wanted)
        if gone.done():
            raise Gone
    finally:
        gone.cancel()
    if not found:
        entries = served.space.sync.entries
        if "message_id" in wanted and any(entries(queue, preview=0, message_id=wanted["message_id"])):
            raise MessageInUse(f"message {wanted['message_id']} is held by a transaction: try again later")
        return answer(204)
    if rows is not None:
        content = await call.server.in_thread(rows.claimed, [(held.receipt, message) for held, message in found])
        return answer(200, content, [("Content-Type", ARROW)])
    if most == 1 and not call.accepts(NDJSON):
        [(held, message)] = found
        return message_answer(message, [("Spool-Receipt", held.receipt), ("Spool-Lease", f"{lease:g}")])
    lines = await call.server.in_thread(_lines, found, given.get("value") != "0")
    return answer(200, lines, [("Content-Type", NDJSON)])


def _lines(found: list[tuple[Lease, Message]], has_value: bool) -> bytes:
    told = [(lease, message, message_object(message, value=has_value, compact=True)) for lease, message in found]
    lines = [json_bytes({"receipt": lease.receipt, "codec": of.codec, **fields}) + b"\n" for lease, of, fields in told]
    return b"".join(lines)


async def _long_body(call: WebCall, room: BodyMemory) -> dict[str, Any]:
    """Read the body. BadMessageId, before a long body is read, if the client does not have the lease of the address."""
    if not (length := call.header(b"content-length") or "").isdigit() or int(length) > SMALL_BODY:
        call.served().leases.check_known(call.request.path_params["receipt"], call.client)
    return json_object(await call.body(room, MOST_JSON_BYTES))


def _named(call: WebCall, given: dict[str, Any], *, passes: bool = False) -> tuple[Served, list[str]]:
    """Return the receipt of the address, with the body's further ``receipts``. ``passes``: whether to leave out those
    of ended leases, unless all have ended."""
    served, further = call.served(), given.get("receipts", [])
    if not isinstance(further, list) or not all(isinstance(each, str) for each in further):
        raise InvalidArgument("receipts is a list of the receipts of further messages")
    receipts = [call.request.path_params["receipt"], *further]
    if passes:
        receipts = [each for each in receipts if served.leases.knows(each, call.client)] or receipts[:1]
    return served, receipts


async def _end(
    call: WebCall, name: str, given: dict[str, Any], ending: Callable[[Served, list[Message]], Any], **options: bool
) -> Any:
    """End the ``_named`` leases together."""
    served, receipts = _named(call, given, **options)
    return await served.leases.end(receipts, call.client, name, partial(ending, served))


async def acknowledge(call: WebCall) -> Response:
    """Remove the message from its queue. The removal is durable before the answer."""
    await _end(call, "acknowledge", {}, lambda served, messages: served.leases.claims.remove(messages))
    return answer(204)


async def commit(call: WebCall) -> Response:
    """Remove the message, and put new messages, in one commit."""
    with call.server.room() as room:
        given = await _long_body(call, room)
        told = _puts(call, given, "receipts")
        ids = await _end(call, "commit", given, lambda served, messages: served.leases.claims.commit(messages, told))
    return json_answer(200, {"ids": ids or []})


def _puts(call: WebCall, given: dict[str, Any], *further: str) -> list[tuple[str, Any, Any]]:
    """Return the puts of a commit: the queue, the body and the options of each."""
    listed = given.get("put", [])
    if given.keys() - {"put", *further} or not isinstance(listed, list):
        raise InvalidArgument('the body is {"put": [{"queue": "results", "body": …}, …]}')
    puts = [put_of(each) for each in listed]
    for each in puts:
        if not isinstance(each.queue, str):
            raise InvalidArgument("each message of a commit names its queue")
        call.served(Right.PUT, each.queue)
        call.check_answers(each.options)
    return [(each.queue or "", each.body, each.options) for each in puts]


async def conclude(call: WebCall) -> Response:
    """End an attempt with the outcome of a service, as a worker does: a reply, new messages, or a failure.

    The body is an ``outcome_of``; unless it is a failure, the messages of its list ``also`` are put in the same commit.
    If a queue has no room, the effect is "kept", and the client still holds the message.
    """
    with call.server.room() as room:
        given = await _long_body(call, room)
        on_failure = check("on_failure", given.pop("on_failure", "reject"), ON_FAILURE)
        puts = _puts(call, {"put": given.pop("also", [])})
        outcome = outcome_of(given)
        for queue in queues_of(outcome):
            call.served(Right.PUT, queue)
        for new in getattr(outcome, "messages", ()):
            call.check_answers(new.attributes)
        try:
            branch = branch_of(call.request.path_params["receipt"])
            found: Conclusion = await _end(call, "conclude", {}, partial(_concluded, outcome, on_failure, puts, branch))
        except _Kept as kept:
            [found] = kept.args
    return json_answer(200, {**found._asdict(), "event": found.event.name})


class _Kept(Exception):
    """A queue has no room for the effects of an outcome. Its argument: the conclusion of the attempt."""


async def _concluded(
    outcome: Outcome, on_failure: OnFailure, puts: list[Any], branch: bytes, served: Served, messages: list[Message]
) -> Conclusion:
    attempt = served.space.sync.engine.claimed_attempt(served.leases.claims.sync, messages[0])
    try:
        await asyncio.wrap_future(attempt.commit(outcome, on_failure, puts, branch))
    except Full as full:
        raise _Kept(attempt.without_room(full)) from None
    return attempt.conclusion


async def fail(call: WebCall) -> Response:
    """Count a failed attempt, and release the message."""
    _, reason, delay = await _reason_and_delay(call, "the client reported a failure")
    await _end(call, "fail", {}, lambda served, messages: served.leases.claims.fail(messages[0], reason, delay))
    return answer(204)


async def reject(call: WebCall) -> Response:
    """Fail the message for good: it moves to the error queue."""
    given, reason, delay = await _reason_and_delay(call, "the client rejected the message", "receipts")
    await _end(call, "reject", given, lambda served, messages: served.leases.claims.reject(messages, reason, delay))
    return answer(204)


async def _reason_and_delay(call: WebCall, reason: str, *further: str) -> tuple[dict[str, Any], str, float | None]:
    given = await call.json_body()
    if given.keys() - {"reason", "delay", *further} or not isinstance(given.get("reason", ""), str):
        raise InvalidArgument('the body is {"reason": "…", "delay": 60}, each of both or none')
    return given, given.get("reason", reason), given.get("delay")


async def release(call: WebCall) -> Response:
    """Return the message to its queue. No attempt is counted."""
    given = await call.json_body()
    await _end(call, "release", given, lambda served, messages: served.leases.claims.release(messages), passes=True)
    return answer(204)


async def extend(call: WebCall) -> Response:
    """Let the lease end later. With further ``receipts``, ended leases are passed over, unless all have ended."""
    lease = call.number("lease", _LEASE, _MOST_LEASE, _LEAST_LEASE)
    served, receipts = _named(call, await call.json_body(), passes=True)
    for receipt in receipts:
        served.leases.extend(served.leases.find(receipt, call.client), lease)
    return json_answer(200, {"lease": lease})
