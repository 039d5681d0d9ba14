"""Records of tasks, and the ``TaskResult`` of Django that each describes. A task that has ended leaves its record.

The body of a message is a dict with ``task`` (its path), ``args``, ``kwargs``, ``priority``, ``run_after`` and
``enqueued_at``. A record has the ``body``, the ``queue``, the ``status`` and ``enqueued_at``. If known, it also has
``started_at``, ``finished_at``, ``worker_ids``, the ``value``, and ``errors``, each with the arguments of
``TaskError``. Times are in seconds since the epoch, or None.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.utils import timezone
from django.utils.module_loading import import_string

import spool
from django_xaspool.tasks import Task, TaskError, TaskResult, TaskResultStatus


def task_of(body: Any) -> Task:
    """Return the task that a body names. Raises ImportError or TypeError if this program has no such task."""
    if not isinstance(body, dict) or "task" not in body:
        raise TypeError("the body is not a task of Django")
    found = import_string(body["task"])
    if not isinstance(found, Task):
        raise TypeError(f"{body['task']} is not a task: decorate the function with @task, under its own name")
    return found


def task_result(alias: str, id: str, record: Mapping[str, Any]) -> TaskResult:
    """Return the result that a record describes."""
    body, started_at = record["body"], _moment(record.get("started_at"))
    result = TaskResult(
        task=task_of(body).using(
            priority=body["priority"], queue_name=record["queue"], run_after=_moment(body["run_after"]), backend=alias
        ),
        id=id,
        status=TaskResultStatus(record["status"]),
        enqueued_at=_moment(record["enqueued_at"]),
        started_at=started_at,
        last_attempted_at=started_at,
        finished_at=_moment(record.get("finished_at")),
        args=body["args"],
        kwargs=body["kwargs"],
        backend=alias,
        errors=[TaskError(**error) for error in record.get("errors", ())],
        worker_ids=list(record.get("worker_ids", ())),
    )
    object.__setattr__(result, "_return_value", record.get("value"))  # as Django's own backends do
    return result


def record_of(message: spool.Message, status: str, **fields: Any) -> dict[str, Any]:
    """Return the record of a message's task. Each failed attempt counts as one by an unknown worker."""
    ids = ["unknown"] * (message.attempts + (status == TaskResultStatus.RUNNING))
    body = message.body
    enqueued_at = body.get("enqueued_at", message.enqueued_at) if isinstance(body, dict) else message.enqueued_at
    given = {"queue": message.queue, "enqueued_at": enqueued_at, "worker_ids": ids}
    return {"body": body, "status": str(status), **given, **fields}


def _moment(seconds: float | None) -> datetime | None:
    if seconds is None:
        return None
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment if settings.USE_TZ else timezone.make_naive(moment)
