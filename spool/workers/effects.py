"""The effects of an outcome on the queues. A pure function turns (message, outcome) into puts and commands of a branch.

All effects of one message are in one branch, so they are one commit. After a success, the effects are the reply and the
removal. After a failure, the effects are the reply, the move to the error queue and the count of the attempt.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias, get_args

from spool.errors import InvalidArgument
from spool.log.quota import Usage, never_fits
from spool.log.write_set import WriteSet
from spool.model.checks import one_of
from spool.model.message import Message, stored_fields
from spool.model.settings import QueueConfig, SpaceConfig
from spool.policies.no_effect import warn_of_put
from spool.policies.retries import add_failure, is_last, missing_queue, queue_config
from spool.transactions.validation import check_headers, check_size, with_times_of_queue
from spool.workers.outcome import NewMessage, Outcome, Passed, Rejected, Replied, Retried, Translated

TRAVELLING = ("user_code", "client_id", "application_key", "headers")
_OF_ITS_QUEUE = (
    "attempts", "deaths", "not_before", "delay", "origin_queue", "origin_attempts", "failure_reason", "failed_at",
    "top", "before",
)  # fmt: skip


OnFailure: TypeAlias = Literal["reject", "delete", "retry"]
ON_FAILURE = one_of(*get_args(OnFailure))


class Effect(enum.StrEnum):
    """The effect of an attempt on its message; the values are keys in JSON."""

    DELIVERED = "delivered"
    RETRIED = "retried"
    REJECTED = "rejected"
    DEAD_LETTERED = "dead_lettered"
    DROPPED = "dropped"
    QUARANTINED = "quarantined"  # the body is damaged
    KEPT = "kept"  # no attempt is counted, because the service was not reached or a queue had no room

    @property
    def words(self) -> str:
        """The effect in words, for output."""
        return "moved to the error queue" if self is Effect.DEAD_LETTERED else self.value.replace("_", " ")


FAILURES_FOR_GOOD = frozenset({Effect.REJECTED, Effect.DEAD_LETTERED, Effect.DROPPED})
"""The effects of failures that end a message: it was deleted, or moved to the error queue."""


def effect_of_failure(queue: str, after: str | None) -> Effect:
    """Return the effect of a counted attempt. ``after``: the queue that has the message afterwards; None if none."""
    return Effect.DROPPED if after is None else Effect.RETRIED if after == queue else Effect.DEAD_LETTERED


@dataclass(frozen=True)
class OutcomePolicy:
    """The options of a queue and of its space, which decide the effects of an outcome.

    on_failure: the effect of a rejection by the service. "reject": the message is rejected. "delete": the message is
        deleted if the failure queue gets the service's reply, and is rejected otherwise. "retry": the rejection counts
        as a failed attempt.
    """

    queue: QueueConfig
    space: SpaceConfig
    on_failure: OnFailure = "reject"

    @classmethod
    def of(cls, space: SpaceConfig, queue: str, on_failure: OnFailure = "reject") -> Self:
        """Return the policy for the messages of a queue, from the options of the queue and its space."""
        return cls(queue_config(space, queue), space, on_failure)

    def goes_back(self, message: Message, outcome: Outcome) -> bool:
        """Return whether the message remains in its queue after this outcome."""
        if isinstance(outcome, Rejected) and not self.deletes(message, outcome):
            keeps = outcome.delay is not None and self.queue.error_queue is None
        elif isinstance(outcome, Retried):
            keeps = not is_last(self.queue, stored_fields(message))
        else:
            return False
        return keeps or missing_queue(self.space, self.queue.name) is not None

    def deletes(self, message: Message, outcome: Rejected) -> bool:
        """Return whether a rejection deletes the message, because the failure queue gets the service's reply."""
        return self.on_failure == "delete" and outcome.reply is not None and message.failure_queue is not None


def record(
    batch: WriteSet, policy: OutcomePolicy, message: Message, raw: bytes, outcome: Outcome, now: float
) -> tuple[Effect, str]:
    """Add the effects of an outcome to the branch. The outcome of an abandoned attempt is not allowed.

    Args:
        outcome: an outcome that takes effect: see ``effective_outcome``.
        raw: the body as stored, for an outcome that passes the body on.
        now: the time in seconds since the epoch, for delays.

    Returns:
        The effect on the message, and a text: the reason of the failure, or a note of the function.
    """
    if isinstance(outcome, Rejected):
        return _reject(batch, policy, message, outcome, now), outcome.reason
    if isinstance(outcome, Retried):
        return _fail(batch, policy, message, outcome, now), outcome.reason
    if isinstance(outcome, Passed):
        batch.put(outcome.queue, [raw], _fields_for(policy, outcome.queue, message))
    elif isinstance(outcome, Translated):
        for new in outcome.messages:
            batch.put(new.queue, [new.raw], _fields_of(policy, new, message))
    elif message.reply_queue is not None:
        _answer(batch, policy, message.reply_queue, message, outcome)
    batch.remove(*message.position, 1, "dequeued")
    return Effect.DELIVERED, outcome.note if isinstance(outcome, Translated) else ""


def effective_outcome(policy: OutcomePolicy, message: Message, raw: bytes, outcome: Outcome) -> Outcome:
    """Return the outcome that takes effect under the policy. ``raw``: the body as stored.

    The attempt fails if the queue of an answer does not exist. The attempt also fails if the queue would be too small
    for the answer even when empty. If a new message exceeds the limits of the space, the outcome is a rejection.
    """
    if isinstance(outcome, Translated) and (refused := _over_limits(policy, outcome)):
        outcome = Rejected(refused)
    if isinstance(outcome, Rejected) and policy.on_failure == "retry":
        outcome = Retried(outcome.reason, outcome.delay)
    added: dict[str, Usage] = {}
    for queue, size in _answers(message, raw, outcome):
        if (config := policy.space.queues.get(queue)) is None:
            which = {Replied: "reply queue", Rejected: "failure queue"}.get(type(outcome), "queue")
            return Retried(f"the {which} {queue!r} does not exist: create it")
        if config.max_messages is not None or config.max_bytes is not None:
            added[queue] = added.get(queue, Usage()).plus(Usage(1, size))
    if added and (limit := never_fits(policy.space, added)):
        return Retried(f"there is no room for its answer: {limit}: raise the limit")
    return outcome


def _over_limits(policy: OutcomePolicy, outcome: Translated) -> str:
    """Return why one of these messages exceeds the limits of the space; "" if no message exceeds the limits."""
    for new in outcome.messages:
        try:
            check_size(len(new.raw), policy.space.max_body_bytes)
            check_headers(new.attributes.get("headers", {}), policy.space)
        except InvalidArgument as error:
            return f"a message for queue {new.queue}: {error}"
    return ""


def _answers(message: Message, raw: bytes, outcome: Outcome) -> list[tuple[str, int]]:
    """Return the queue and the size in bytes of each message that an outcome puts."""
    if isinstance(outcome, Translated):
        return [(new.queue, len(new.raw)) for new in outcome.messages]
    if isinstance(outcome, Passed):
        return [(outcome.queue, len(raw))]
    answer: Replied | None = outcome if isinstance(outcome, Replied) else None
    queue = message.reply_queue
    if isinstance(outcome, Rejected):
        answer, queue = outcome.reply, message.failure_queue
    return [] if answer is None or queue is None else [(queue, len(answer.body or b""))]


def _reject(batch: WriteSet, policy: OutcomePolicy, message: Message, outcome: Rejected, now: float) -> Effect:
    """Put the reply into the failure queue and move the request to the error queue, if these queues are set.

    If the request remains in its queue, it gets no reply yet.
    """
    goes_back = policy.goes_back(message, outcome)
    if outcome.reply is not None and message.failure_queue is not None and not goes_back:
        _answer(batch, policy, message.failure_queue, message, outcome.reply)
    if policy.deletes(message, outcome):
        batch.remove(*message.position, 1, "failed")
    else:
        _fail(batch, policy, message, outcome, now)
    return Effect.RETRIED if goes_back else Effect.REJECTED


def _fail(batch: WriteSet, policy: OutcomePolicy, message: Message, outcome: Retried | Rejected, now: float) -> Effect:
    queue = policy.queue.name
    changes = add_failure(
        batch, policy.space, queue, message.position, stored_fields(message), outcome.reason, now,
        id_=message.id, is_final=isinstance(outcome, Rejected), delay=outcome.delay,
    )  # fmt: skip
    return effect_of_failure(queue, None if changes is None else changes.get("queue", queue))


def _answer(batch: WriteSet, policy: OutcomePolicy, queue: str, request: Message, answer: Replied) -> None:
    """Put an answer with the travelling fields of the request, and with its correlation id.

    If the request has no correlation id, the answer has the request's id as its correlation id.
    """
    attributes: dict[str, Any] = {"correlation_id": request.correlation_id or request.id}
    for name in TRAVELLING:
        if value := getattr(request, name):
            attributes[name] = dict(value) if isinstance(value, Mapping) else value
    if answer.content_type is not None:
        attributes["content_type"] = answer.content_type
    if answer.codec is not None:
        attributes["codec"] = answer.codec
    batch.put(queue, [answer.body or b""], with_times_of_queue(policy.space.queues[queue], attributes))


def _fields_of(policy: OutcomePolicy, new: NewMessage, source: Message) -> dict[str, Any]:
    """Return the control fields of a new message. A missing correlation id is taken from the source."""
    fields = {"correlation_id": source.correlation_id or source.id, **new.attributes}
    warn_of_put("", policy.space.queues[new.queue], new.attributes)
    return with_times_of_queue(policy.space.queues[new.queue], fields)


def _fields_for(policy: OutcomePolicy, queue: str, message: Message) -> dict[str, Any]:
    """Return the control fields for the next queue, without the fields that concern only the present queue."""
    fields = {name: value for name, value in stored_fields(message).items() if name not in _OF_ITS_QUEUE}
    if fields.pop("time_to_live", None) is not None:  # the time to live counts from the first put
        fields["expires_at"] = message.expires_at
    return with_times_of_queue(policy.space.queues[queue], fields)
