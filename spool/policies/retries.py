"""Retries: a failed attempt is counted, and the message is delivered again, moves to the error queue, or is dropped.

A message is dropped only if its queue has no error queue, and its rejection names no delay. While a configured error
queue is missing, the message remains in its queue, and is delivered again later.

A commit without a flush records the outcome. So a power cut may lose the count of an attempt, but no message.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from spool.errors import QueueNotFound
from spool.log.engine_commit import commit_batch
from spool.log.write_set import WriteSet
from spool.model.message import due_time
from spool.model.position import Position
from spool.model.settings import QueueConfig, SpaceConfig
from spool.model.text import one_line
from spool.model.xid import Xid
from spool.runtime.clock import Deadline
from spool.store.settings_reader import Settings
from spool.store.store import Store

log = logging.getLogger("spool")

MISSING_QUEUE_SECONDS = 60.0
"""The shortest delay of a message that has failed for good and whose error queue does not exist."""

_MOST_DOUBLINGS = 64


def add_failure(
    batch: WriteSet,
    space: SpaceConfig,
    queue: str,
    position: Position,
    fields: Mapping[str, Any],
    reason: str,
    now: float,
    *,
    id_: str,
    is_final: bool = False,
    delay: float | None = None,
    not_before: float | None = None,
    died: bool = False,
) -> Mapping[str, Any] | None:
    """Count a failed attempt: add its outcome to a batch. Return the changed fields, or None for a dropped message.

    Args:
        queue: the queue of the message.
        fields: the stored control fields of the message, with the numbers of earlier attempts and deaths.
        now: the time in seconds since the epoch.
        id_: the id of the message, for the log.
        is_final: whether the message has failed for good, even if attempts are left.
        delay: the seconds before the next attempt, instead of the queue's retry delay. If the failure is final and no
            error queue is set, the message remains in its queue for this time, and no attempt is counted; without a
            delay, the message is dropped.
        not_before: the message's due time, in seconds since the epoch. The next attempt is not due before this time,
            even if the message was taken earlier by its id.
        died: whether the attempt ended with the death of its process.
    """
    attempts, is_counted = fields.get("attempts", 0), True
    config, reason = queue_config(space, queue), one_line(reason)
    missing = missing_queue(space, queue)
    if is_final or is_last(config, fields, died=died):
        if missing is None and config.error_queue is not None:
            changes = moved_to(config, attempts + 1, reason)
            batch.update(*position, 1, changes)
            return changes
        if missing is None and is_final and delay is not None:
            is_counted = False
        elif missing is None:
            if is_final:
                log.warning(
                    "message %s of queue %s was rejected, and is deleted, for no error queue is set: %s",
                    id_, queue, reason,
                )  # fmt: skip
            else:
                failed = "one attempt" if attempts == 0 else f"{attempts + 1} attempts"
                log.warning(
                    "message %s of queue %s was dropped: %s failed (no error queue is set): %s",
                    id_, queue, failed, reason,
                )  # fmt: skip
            batch.remove(*position, 1, "failed")
            return None
        else:
            delay = max(retry_delay(config, attempts) if delay is None else delay, MISSING_QUEUE_SECONDS)
            log.error(
                "message %s of queue %s has failed for good, and remains in its queue for another attempt in %g s, "
                "because queue %s does not exist: create it (spool-admin queue create %s): %s",
                id_, queue, delay, missing, missing, reason,
            )  # fmt: skip
    due = max(now + (retry_delay(config, attempts) if delay is None else delay), not_before or 0.0)
    changes = {"attempts": attempts + is_counted, "not_before": due if due > now else None, "failure_reason": reason}
    if died and config.deaths is not None:
        changes["deaths"] = fields.get("deaths", 0) + 1
    batch.update(*position, 1, changes)
    return changes


def is_last(config: QueueConfig, fields: Mapping[str, Any], *, died: bool = False) -> bool:
    """Return whether the attempt that has just failed is the last attempt that the message may have.

    For the arguments see ``add_failure``.
    """
    deaths = fields.get("deaths", 0)
    if died and config.deaths is not None:
        return bool(deaths >= config.deaths)
    return config.retries is not None and fields.get("attempts", 0) - deaths >= config.retries


def retry_delay(config: QueueConfig, attempts: int) -> float:
    """Return the seconds before the next attempt. ``attempts``: the number of failed attempts before the latest one."""
    if config.retry_delay_max is None:
        return config.retry_delay
    return min(config.retry_delay * 2.0 ** min(attempts, _MOST_DOUBLINGS), config.retry_delay_max)


def moved_to(origin: QueueConfig, attempts: int, reason: str) -> dict[str, Any]:
    """Return the control fields of a message that moves to the error queue of ``origin``.

    The message starts with 0 attempts. The message records its former queue, and the number of failed attempts in this
    queue. The message has no due time and does not expire, because the message waits for an administrator.
    """
    assert origin.error_queue is not None
    changes = {
        "queue": origin.error_queue,
        "attempts": 0,
        "not_before": None,
        "expires_at": None,
        "origin_queue": origin.name,
        "origin_attempts": attempts,
        "failure_reason": reason,
    }
    if origin.deaths is not None:
        changes["deaths"] = 0
    return changes


def add_failure_outcome(
    batch: WriteSet,
    store: Store,
    settings: Settings,
    position: Position,
    reason: str,
    *,
    delay: float | None = None,
    is_final: bool = False,
    died: bool = False,
    now: float | None = None,
) -> None:
    """Call ``add_failure`` for a message, if the message exists. The caller holds the mutex."""
    if (run := store.view.index.messages.find(position)) is None:
        return
    add_failure(
        batch,
        settings.config,
        run.queue.name,
        position,
        run.attributes,
        reason,
        store.clock.now() if now is None else now,
        id_=run.id_of(position.ordinal),
        is_final=is_final,
        delay=delay,
        not_before=due_time(run.attributes, run.committed_at),
        died=died,
    )


def queue_config(config: SpaceConfig, queue: str) -> QueueConfig:
    """Return the queue's options, or the defaults if the queue was deleted while its messages were held."""
    return config.queues.get(queue) or QueueConfig(queue)


def missing_queue(space: SpaceConfig, queue: str) -> str | None:
    """Return the queue that an edit of the settings by hand has left out: the error queue, or ``queue`` itself.

    A failed message remains in its place while the queue is missing. No program would find the message in a missing
    error queue, and the options of the message's queue do not allow to drop the message.
    """
    if queue not in space.queues:
        return queue
    error_queue = space.queues[queue].error_queue
    return None if error_queue is None or error_queue in space.queues else error_queue


def count_failures(
    store: Store,
    positions: Iterable[Position],
    reason: str,
    deadline: Deadline,
    held_by: Xid | None = None,
    *,
    died: bool = False,
) -> None:
    """Count a failed attempt for each of these messages that still exists, in one commit without a flush.

    Skip the messages of prepared branches, except the messages of ``held_by``, a branch that is being rolled back.
    ``died``: whether the attempts ended with the death of their process.
    """
    places = list(positions)
    while True:
        batch, now = WriteSet(), store.clock.now()  # (with one time, the changes of neighbouring messages are equal)
        settings = store.settings.current()  # with old settings, a commit into a deleted error queue would be refused
        with store.view.mutex:
            for position in places:
                if store.view.prepared.held.get(position, held_by) == held_by:
                    add_failure_outcome(batch, store, settings, position, reason, died=died, now=now)
        if batch.is_empty:
            return
        try:
            commit_batch(store, batch, deadline, flush=False)
            return
        except QueueNotFound:  # an error queue was deleted meanwhile; the next round reads the settings again
            continue
