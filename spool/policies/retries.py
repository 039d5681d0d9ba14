"""A try that failed: the message comes back later, or moves to the error queue, or, with none set, is dropped.

What happens is decided by pure functions; it becomes visible as a commit of its own that is published without a flush:
a power cut may forget that a try was counted, never the message.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from spool.errors import QueueNotFound
from spool.format.batch import CommitBatch
from spool.log.commit import commit_batch
from spool.model.message import Position, due_time
from spool.model.outcome import LONGEST_REASON
from spool.model.settings import QueueConfig, SpaceConfig
from spool.model.xid import Xid
from spool.runtime.clock import Deadline
from spool.store.store import Store

log = logging.getLogger("spool")

_MOST_DOUBLINGS = 64


@dataclass(frozen=True, slots=True)
class FailureOutcome:
    """What becomes of a message after a failed try: control fields to change, or None: it is dropped."""

    changes: Mapping[str, Any] | None


def fate(
    config: QueueConfig,
    attempts: int,
    reason: str,
    now: float,
    delay: float | None = None,
    *,
    not_before: float | None = None,
) -> FailureOutcome:
    """``attempts``: tries that failed before this one. ``delay``: seconds, instead of the queue's retry delay.
    ``not_before``: the message's own time; one that was taken by its id before that is not due any earlier now."""
    if is_last(config, attempts):
        return FailureOutcome(None if config.error_queue is None else moved_to(config, attempts + 1, reason))
    wait = retry_delay(config, attempts) if delay is None else delay
    due = max(now + wait, not_before or 0.0)
    return FailureOutcome(
        {
            "attempts": attempts + 1,
            "not_before": due if due > now else None,
            "failure_reason": reason[:LONGEST_REASON],
        }
    )


def is_last(config: QueueConfig, attempts: int) -> bool:
    """Whether the message has had all its tries, with one more that failed now."""
    return config.retries is not None and attempts + 1 > config.retries


def tries(count: int) -> str:
    """How many tries failed, in words."""
    return "one try failed" if count == 1 else f"{count} tries failed"


def retry_delay(config: QueueConfig, attempts: int) -> float:
    """Seconds before the next try, after one that failed and ``attempts`` that failed before it."""
    if config.retry_delay_max is None:
        return config.retry_delay
    return min(config.retry_delay * 2.0 ** min(attempts, _MOST_DOUBLINGS), config.retry_delay_max)


def moved_to(origin: QueueConfig, attempts: int, reason: str) -> dict[str, Any]:
    """The control fields of a message that ends in the error queue of ``origin``: a fresh count, no time, where it came
    from and how many tries failed there.

    What is there waits for a person, however long: it does not expire.
    """
    assert origin.error_queue is not None
    return {
        "queue": origin.error_queue,
        "attempts": 0,
        "not_before": None,
        "expires_at": None,
        "origin_queue": origin.name,
        "origin_attempts": attempts,
        "failure_reason": reason[:LONGEST_REASON],
    }


def add_failure_outcome(draft: CommitBatch, store: Store, position: Position, reason: str) -> None:
    """Write a live message's fate into a draft; the caller holds the mutex."""
    run = store.view.index.messages.find(position)
    if run is None:
        return
    queue = run.queue.name
    config = with_error_queue(store.config, queue)
    own_time = due_time(run.attributes, run.committed_at)
    attempts = run.attributes.get("attempts", 0)
    outcome = fate(config, attempts, reason, store.clock.now(), not_before=own_time)
    if outcome.changes is None:
        log.warning(
            "a message of queue %s was dropped: %s (no error queue is set): %s", queue, tries(attempts + 1), reason
        )
        draft.remove(position.number, position.ordinal, 1, "failed")
    else:
        draft.update(position.number, position.ordinal, 1, outcome.changes)


def queue_config(config: SpaceConfig, queue: str) -> QueueConfig:
    """Defaults for a queue that was deleted while its messages were held."""
    return config.queues.get(queue) or QueueConfig(queue)


def with_error_queue(config: SpaceConfig, queue: str) -> QueueConfig:
    """The queue's options for what fails. If its error queue is not there, its messages are tried for ever: where they
    would go nobody could find them, and to drop them nobody has asked."""
    found = queue_config(config, queue)
    if found.error_queue is not None and found.error_queue not in config.queues:
        log.error("queue %s has the error queue %s, which is not there: create it", queue, found.error_queue)
        return replace(found, retries=None, error_queue=None)
    return found


def count_failures(
    store: Store, positions: Iterable[Position], reason: str, deadline: Deadline, held_by: Xid | None = None
) -> None:
    """Count a failed try for each message that is still there, in one unflushed commit.

    What a prepared branch holds is left alone, unless it is ``held_by``, which is being rolled back.
    """
    places = list(positions)
    while True:
        draft = CommitBatch()
        store.refresh_settings()  # where they go is as the settings are now
        with store.view.mutex:
            for position in places:
                if store.view.prepared.held.get(position, held_by) == held_by:
                    add_failure_outcome(draft, store, position, reason)
        if draft.empty:
            return
        try:
            commit_batch(store, draft, deadline, flush=False)
            return
        except QueueNotFound:  # an error queue was deleted since the settings were read; now they are read again
            continue
