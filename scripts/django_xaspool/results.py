"""Django's ``TaskResult`` of a waiting message, and of the record that an ended task leaves.

The body of a message is a dict with ``task`` (its path), ``args``, ``kwargs``, ``priority``, ``run_after`` (seconds
since the epoch, or None) and ``enqueued_at`` (seconds since the epoch). A record is a dict of the arguments of
``task_result``, without ``alias`` and ``id``.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.utils import timezone
from django.utils.module_loading import import_string

import spool
from django_xaspool.tasks import Task, TaskError, TaskResult, TaskResultStatus

_UNKNOWN = "unknown"  # a worker of an earlier attempt, or of a running one


def task_of(body: Any) -> Task:
    """Return the task that a body names. Raises ImportError or TypeError if this program has no such task."""
    if not isinstance(body, dict) or "task" not in body:
        raise TypeError("the body is not a task of Django")
    found = import_string(body["task"])
    if not isinstance(found, Task):
        raise TypeError(f"{body['task']} is not a task: decorate the function with @task, under its own name")
    return found


def task_result(
    alias: str,
    id: str,
    body: Mapping[str, Any],
    *,
    queue: str,
    status: str,
    enqueued_at: float,
    started_at: float | None = None,
    finished_at: float | None = None,
    worker_ids: Sequence[str] = (),
    errors: Sequence[Mapping[str, str]] = (),
    value: Any = None,
) -> TaskResult:
    """Return a result. Times are in seconds since the epoch. ``errors``: the arguments of each ``TaskError``."""
    task = task_of(body)
    result = TaskResult(
        task=task.using(
            priority=body["priority"], queue_name=queue, run_after=_moment(body["run_after"]), backend=alias
        ),
        id=id,
        status=TaskResultStatus(status),
        enqueued_at=_moment(enqueued_at),
        started_at=_moment(started_at),
        last_attempted_at=_moment(started_at),
        finished_at=_moment(finished_at),
        args=body["args"],
        kwargs=body["kwargs"],
        backend=alias,
        errors=[TaskError(**error) for error in errors],
        worker_ids=list(worker_ids),
    )
    object.__setattr__(result, "_return_value", value)  # as Django's own backends do
    return result


def of_message(alias: str, message: spool.Message, status: str, **fields: Any) -> TaskResult:
    """Return the result of a task that has not ended. Each failed attempt counts as one by an unknown worker."""
    ids = [_UNKNOWN] * (message.attempts + (status == TaskResultStatus.RUNNING))
    body = message.body
    enqueued_at = body.get("enqueued_at", message.enqueued_at) if isinstance(body, dict) else message.enqueued_at
    given = {"queue": message.queue, "enqueued_at": enqueued_at, "worker_ids": ids, **fields}
    return task_result(alias, message.correlation_id or message.id, body, status=status, **given)


def _moment(seconds: float | None) -> datetime | None:
    if seconds is None:
        return None
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment if settings.USE_TZ else timezone.make_naive(moment)
