"""Expiry: an expired message moves to the error queue or is dropped, as the queue's options say.

No get delivers an expired message. A process removes the expired messages of a queue when it gets from the queue or
counts the queue's messages. Otherwise the housekeeper of a consumer removes expired messages within seconds. The commit
that removes messages is not flushed. So after a power cut, a removed message may exist again, and is still expired.
"""

import logging
from itertools import islice

from spool.disk.disk import raise_unless_full
from spool.errors import QueueNotFound
from spool.log.engine_commit import commit_batch
from spool.log.visibility import revalidate
from spool.log.write_set import WriteSet
from spool.model.position import PositionRanges, positions
from spool.model.settings import QueueConfig
from spool.policies.retries import moved_to, queue_config
from spool.runtime.clock import Deadline
from spool.store.store import Store

log = logging.getLogger("spool")

_RUNS_AT_ONCE = 4_096
_RUNS_AT_FULL = 128  # the changes of so many runs fit into a file that is kept for a full disk


def expire(store: Store, queue: str, deadline: Deadline) -> int:
    """Remove the expired, unclaimed messages of a queue. Return their number. The caller has caught up.

    On a full disk, messages may be left for a later call.
    """
    done, most = 0, _RUNS_AT_ONCE
    while True:
        settings = store.settings.known
        with store.view.mutex:
            expires = store.view.index.messages.has_expired(queue, store.clock.now())
            config = queue_config(settings.config, queue)
            if not expires:
                return done
            if _goes_to_error_queue(config) and config.error_queue not in settings.config.queues:
                return done  # until the error queue exists, expired messages remain in the queue, and are not delivered
            claimed: PositionRanges = []
            for run in islice(store.view.index.messages.expired(queue, store.clock.now()), most):
                claimed += [(run.number, *free) for free in store.shared.claims.claim(run.number, run.first, run.live)]
        if not claimed:
            return done  # (other transactions hold the rest; a later call removes the rest)
        try:
            gone = _expire_claimed(store, config, claimed, deadline)
        except OSError as error:
            raise_unless_full(error)
            if most == _RUNS_AT_FULL:
                log.info("expired messages of queue %s remain until there is room: %s", queue, error)
                return done
            most = _RUNS_AT_FULL
            continue
        finally:
            for number, first, count in claimed:
                store.shared.claims.release(number, first, count)
        if not gone:
            return done  # another process has removed the messages, or a prepared branch holds them
        done += gone


def _expire_claimed(store: Store, config: QueueConfig, claimed: PositionRanges, deadline: Deadline) -> int:
    revalidate(store, claimed, deadline)
    batch, count = WriteSet(), 0
    with store.view.mutex:
        now = store.clock.now()
        for position in positions(claimed):
            run = store.view.index.messages.find(position)
            if run is None or run.queue.name != config.name or not run.is_expired(now):
                continue
            if position in store.view.prepared.held:
                continue
            count += 1
            if _goes_to_error_queue(config):
                changes = moved_to(config, run.attributes.get("attempts", 0), "it was past its time")
                batch.update(*position, 1, {**changes, "why": "expired"})
            else:
                batch.remove(*position, 1, "expired")
    if count:
        try:
            commit_batch(store, batch, deadline, flush=False)
        except QueueNotFound:  # the error queue was deleted after the settings were read
            return 0
        where = f"moved to {config.error_queue}" if _goes_to_error_queue(config) else "dropped"
        log.info("%s messages of queue %s were past their time, and %s", count, config.name, where)
    return count


def _goes_to_error_queue(config: QueueConfig) -> bool:
    return config.error_queue is not None and config.on_expiry == "error"
