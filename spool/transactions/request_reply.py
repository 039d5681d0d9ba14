"""A request: put a message, and wait for its reply. The reply carries the correlation id of the request.

A service that rejects the request puts its answer into the failure queue. A request that has failed too often moves to
the error queue. The caller also waits for these two messages. If one of the two arrives, the wait ends with
RequestFailed.
"""

import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from spool.errors import Argument, Empty, InvalidArgument, ProtocolError, RequestFailed
from spool.index.run import Run
from spool.log.visibility import catch_up
from spool.model.checks import check_timeout
from spool.model.message import Message, parse_message_id
from spool.model.options import PutOptions
from spool.model.text import no_queue
from spool.runtime.clock import Clock
from spool.runtime.context import associated
from spool.store.awaited import Awaited
from spool.store.parts import View
from spool.store.store import Store
from spool.transactions.claiming import Wanted, is_there
from spool.transactions.core import Core
from spool.transactions.hold import get_alone
from spool.transactions.validation import check_queue
from spool.transactions.waiting import repeat_when_arrived

IN_TRANSACTION = (
    "a request inside a transaction would wait in vain: no service sees it before the transaction commits; "
    "make the request outside of it, or put the message and get the reply in another transaction"
)


@dataclass(frozen=True)
class PendingRequest:
    """A request that was put, or is about to be put.

    options: the options of the put. message_id: the id of the request; "" before the put.
    """

    queue: str
    options: PutOptions
    correlation_id: str
    reply_queue: str
    failure_queue: str | None
    error_queue: str | None
    timeout: float | None
    message_id: str = ""

    @property
    def wanted(self) -> list[Wanted]:
        """One get for each queue in which an answer may arrive.

        These queues are the reply queue, and the failure queue for rejections.
        """
        queues = dict.fromkeys(queue for queue in (self.reply_queue, self.failure_queue) if queue is not None)
        return [Wanted(queue, correlation_id=self.correlation_id) for queue in queues]

    @property
    def awaited(self) -> list[Awaited]:
        """The messages that end the wait: an answer, or the request itself in the error queue."""
        awaited = [wanted.awaited for wanted in self.wanted]
        if self.error_queue is not None:
            awaited.append(Awaited(self.error_queue, parse_message_id(self.message_id)))
        return awaited


def check_request(store: Store, queue: str, timeout: float | None, options: PutOptions) -> PendingRequest:
    """Check a request before its put; raises the errors of ``Space.request``."""
    check_timeout(timeout, "a number of seconds, or None to wait for ever")
    if associated(store) is not None:
        raise ProtocolError(IN_TRANSACTION)
    queues = check_queue(store.settings, queue, store.check_usable()).config.queues
    config = queues[queue]
    reply_queue = options.get("reply_queue") or config.reply_queue
    failure_queue = options.get("failure_queue") or config.failure_queue
    if reply_queue is None:
        raise InvalidArgument(
            f"a request needs a queue for its reply: pass reply_queue=, or give queue {queue} one with "
            f"change_queue({queue!r}, reply_queue=…)"
        )
    for option, name in (("reply_queue", reply_queue), ("failure_queue", failure_queue)):
        if name is not None and name not in queues:
            raise no_queue(name, queues, where=(Argument(option), ": "))
    if reply_queue == failure_queue:
        raise InvalidArgument(f"a request needs a failure queue other than its reply queue, {reply_queue}")
    if (correlation_id := options.get("correlation_id")) is None:
        if options.get("deduplication_key") is not None:
            raise InvalidArgument("a request with a deduplication_key needs the same correlation_id each time")
        correlation_id = uuid.uuid4().hex
        options = {**options, "correlation_id": correlation_id}
    return PendingRequest(queue, options, correlation_id, reply_queue, failure_queue, config.error_queue, timeout)


def wait_for_reply(core: Core, request: PendingRequest, before_commit: Callable[[], object]) -> Message:
    """Wait for the reply to a request that was put, and take the reply. Raises the errors of ``Space.request``."""
    store = core.store
    held = partial(is_held, store.view, store.clock, request)
    look = partial(take_reply, core, request, before_commit)
    if reply := repeat_when_arrived(store, request.awaited, held, look, store.deadline(request.timeout)):
        return reply
    raise no_reply(store.view, request)


def take_reply(core: Core, request: PendingRequest, before_commit: Callable[[], object]) -> Message | None:
    """Take the reply; returns None if it has not arrived. Raises RequestFailed if the request has failed."""
    # One commit moves the request and puts the reply. So look for the request first: if the request has failed, its
    # reply is visible to the search below, even if another thread catches up meanwhile.
    catch_up(core.store)
    run, ordinal = _place_of(core.store.view, request)
    has_failed = run is not None and run.queue.name == request.error_queue
    itself = frozenset({(run.number, ordinal)}) if run is not None else frozenset()  # (it may fail into these queues)
    for wanted in request.wanted:
        with suppress(Empty):
            [reply] = get_alone(core, replace(wanted, passed=itself), before_commit)
            if reply.queue != request.reply_queue:
                raise _failed(request, _place_of(core.store.view, request)[0], reply)
            return reply
    if has_failed:
        raise _failed(request, run, None)
    return None


def reply_now(core: Core, request: PendingRequest, before_commit: Callable[[], object]) -> Message:
    """Take the reply. Raises Empty if the reply has not arrived, and RequestFailed if the request has failed."""
    if reply := take_reply(core, request, before_commit):
        return reply
    raise Empty(f"there is no reply to request {request.message_id}")


def is_held(view: View, clock: Clock, request: PendingRequest) -> bool:
    """Return whether an answer exists.

    After an attempt that took nothing, an answer that exists is held by another transaction.
    """
    return any(is_there(view, clock, wanted) for wanted in request.wanted)


def _place_of(view: View, request: PendingRequest) -> tuple[Run | None, int]:
    """Return the run that contains the request, and its ordinal; the run is None if it has left all queues."""
    with view.mutex:
        return view.index.messages.with_id(*parse_message_id(request.message_id))


def _failed(request: PendingRequest, run: Run | None, reply: Message | None) -> RequestFailed:
    reason = "" if run is None else run.attributes.get("failure_reason", "")
    answered = "" if reply is None else f"; the service's answer of queue {reply.queue} is in the error's reply"
    kept = "" if run is None else f"; the request is in queue {run.queue.name}"
    text = f"request {request.message_id} to queue {request.queue} failed{reason and f': {reason}'}{answered}{kept}"
    return RequestFailed(text, reply, request.message_id, request.correlation_id)


def no_reply(view: View, request: PendingRequest) -> Empty:
    """Return the error for a reply that did not come in time."""
    run, _ = _place_of(view, request)
    where = "has left its queue" if run is None else f"stays in queue {run.queue.name}"
    error = Empty(
        f"no reply came within {request.timeout:g} s: request {request.message_id} {where}; get a late reply with "
        f"get({request.reply_queue!r}, correlation_id={request.correlation_id!r})"
    )
    error.message_id, error.correlation_id = request.message_id, request.correlation_id
    return error
