"""Records of tasks, and the ``TaskResult`` of Django that each describes. A task that has ended leaves its record.

The body of a message is a dict with ``task`` (its path), ``args``, ``kwargs``, ``priority``, ``run_after`` and
``enqueued_at``. A record also has the ``queue``, the ``status`` and ``worker_ids``, and, if known, ``started_at``,
``finished_at``, the ``value``, and ``errors``, each with the arguments of ``TaskError``. Times are in seconds since the
epoch, or None.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.utils.module_loading import import_string

import spool
from django_xaspool.tasks import base


def task_result(alias: str, id: str, record: Mapping[str, Any]) -> base.TaskResult:
    """Return the result that a record describes. Raises ImportError or TypeError if this program has no such task."""
    task = import_string(record["task"])
    if not isinstance(task, base.Task):
        raise TypeError(f"{record['task']} is not a task: decorate the function with @task, under its own name")
    run_after = _moment(record["run_after"])
    moments = {name: _moment(record.get(name)) for name in ("enqueued_at", "started_at", "finished_at")}
    result = base.TaskResult(
        task=task.using(priority=record["priority"], queue_name=record["queue"], run_after=run_after, backend=alias),
        id=id,
        status=base.TaskResultStatus(record["status"]),
        last_attempted_at=moments["started_at"],
        **moments,
        args=record["args"],
        kwargs=record["kwargs"],
        backend=alias,
        errors=[base.TaskError(**error) for error in record.get("errors", ())],
        worker_ids=record["worker_ids"],
    )
    object.__setattr__(result, "_return_value", record.get("value"))  # as Django's own backends do
    return result


def record_of(message: spool.Message, status: str, **fields: Any) -> dict[str, Any]:
    """Return the record of a message's task. Each failed attempt counts as one by an unknown worker."""
    ids = ["unknown"] * (message.attempts + (status == "RUNNING"))
    return {**message.body, "queue": message.queue, "status": status, "worker_ids": ids, **fields}


def problem_of(body: Any) -> str:
    """Return why the body of a message describes no task; "" if it describes one."""
    if not isinstance(body, dict) or "task" not in body:
        return "it has no task"
    for name, (is_right, kind) in _FIELDS.items():
        if not is_right(body.get(name)):
            return f"its field {name} is not {kind}"
    return ""


def _is_time(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and abs(value) < _LAST_SECONDS)


_LAST_SECONDS = 250_000_000_000.0  # of the year 9892; datetime ends with the year 9999
_FIELDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "task": (lambda value: isinstance(value, str) and "." in value, "the path of a function"),
    "args": (lambda value: isinstance(value, list), "a list"),
    "kwargs": (lambda value: isinstance(value, dict) and all(isinstance(name, str) for name in value), "a map"),
    "priority": (lambda value: type(value) is int and -100 <= value <= 100, "a number from -100 to 100"),
    "run_after": (_is_time, "a time"),
    "enqueued_at": (_is_time, "a time"),
}


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC if settings.USE_TZ else None)
