"""The backend: a task is a message, and the id of its result is the message's correlation id.

The state of a task is not stored. A message in its queue is READY, and RUNNING while a live worker has claimed it. The
result of an ended task is a message with a time to live. So the death of a worker leaves no task RUNNING.
"""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import uuid4

from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction

import spool
from django_xaspool.results import record_of, task_result
from django_xaspool.tasks import BaseTaskBackend, base, exceptions, normalize_json, signals

RESULTS, FAILED = "django-results", "django-failed"
_OPTIONS: dict[str, Any] = {"space": None, "result_ttl": 86400, "database": "default"}
_RETRIES = 3  # of a new queue: attempts after the death of a worker, a time limit or ``spool.Retry``


class XaspoolBackend(BaseTaskBackend):
    """Puts tasks into the queues of a space, and finds their results.

    The options, in the setting TASKS:

    space: the directory of the space. The first use creates a missing space.
    result_ttl: how long the result of an ended task is kept, in seconds (default 86400).
    database: the alias of the database whose commit sends the tasks that its atomic blocks enqueue (default
        "default"); None sends each task at once.

    Raises:
        ImproperlyConfigured: an option is missing, unknown, or has a wrong value.
    """

    supports_defer = supports_async_task = supports_get_result = supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        where = f"TASKS[{alias!r}]"
        if unknown := self.options.keys() - _OPTIONS.keys():
            raise ImproperlyConfigured(
                f"{where} has an unknown option {min(unknown)!r}: it knows {', '.join(_OPTIONS)}"
            )
        path, ttl, database = {**_OPTIONS, **self.options}.values()
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            raise ImproperlyConfigured(
                f'{where} needs the directory of a space: "OPTIONS": {{"space": "/var/spool/shop"}}'
            )
        if os.path.exists(path) and not os.path.isdir(path):
            raise ImproperlyConfigured(f"{where}: the space {path} is a file: name a directory")
        if type(ttl) not in (int, float) or not 0 < ttl < float("inf"):
            raise ImproperlyConfigured(f"{where}: result_ttl is a number of seconds above 0, not {ttl!r}")
        if database is not None and database not in connections:
            raise ImproperlyConfigured(f"{where}: no database {database!r} in DATABASES: name one of them, or None")
        if reserved := self.queues & {RESULTS, FAILED}:
            raise ImproperlyConfigured(f"{where}: the backend itself needs the queue {min(reserved)}: rename yours")
        self._path, self.result_ttl, self._database = os.path.abspath(path), ttl, database

    def space_with(self, *queues: str) -> spool.Space:
        """Return the open space of this process, in which the queues exist."""
        space = spool.shared(self._path)
        space.ensure_queue(RESULTS, on_expiry="drop")
        space.ensure_queue(FAILED)
        for queue in queues:
            space.ensure_queue(queue, order="priority", retries=_RETRIES, error_queue=FAILED)
        return space

    def enqueue(self, task: base.Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> base.TaskResult:
        """Put a task durably; in an atomic block, when the block commits."""
        self.validate_task(task)
        body = {
            **normalize_json({"task": task.module_path, "args": args, "kwargs": kwargs, "priority": task.priority}),
            "run_after": task.run_after and task.run_after.timestamp(),
            "enqueued_at": time.time(),  # the message is a little younger, in an atomic block much
        }
        record = {**body, "queue": task.queue_name, "status": "READY", "worker_ids": []}
        result = task_result(self.alias, uuid4().hex, record)
        put = partial(self._put, body, result)
        if self._database is not None and connections[self._database].in_atomic_block:
            transaction.on_commit(put, using=self._database)
        else:
            put()
        return result

    def _put(self, body: Mapping[str, Any], result: base.TaskResult) -> None:
        queue = result.task.queue_name
        self.space_with(queue).put(
            queue,
            body,
            content_type="application/json",
            priority=max(1, 50 + body["priority"] // 2),
            not_before=body["run_after"],
            correlation_id=result.id,
            headers={"task": body["task"]},
            transaction=None,  # a task's own tasks are sent at once, also if the task fails later
        )
        signals.task_enqueued.send_robust(type(self), task_result=result)

    def get_result(self, result_id: str) -> base.TaskResult:
        """Return the present state of a task.

        Raises:
            TaskResultDoesNotExist: no task has the id, or the time to live of its result is over.
        """
        with suppress(spool.InvalidArgument):  # the id has a form that no task's id has
            if (record := self._find(result_id)) is not None:
                return task_result(self.alias, result_id, record)
        raise exceptions.TaskResultDoesNotExist(result_id)

    def _find(self, id: str) -> Any:
        """Return the record of a task, or None: search the queues in the order in which a task passes through them.
        (Its last move is one commit.)"""
        space = self.space_with()
        for queue in sorted(self.queues & space.queues().keys() or space.queues().keys() - {RESULTS, FAILED}):
            message = space.find(queue, correlation_id=id)
            if message is not None and (state := space.state(message)) != "gone":
                return record_of(message, "RUNNING" if state == "claimed" else "READY")
        if (ended := space.find(RESULTS, correlation_id=id)) is not None:
            return ended.body
        if (failed := space.find(FAILED, correlation_id=id)) is None:
            return None
        reason = f"{failed.origin_attempts} attempts failed; the last one: {failed.failure_reason}"
        errors = [{"exception_class_path": "spool.RequestFailed", "traceback": reason}]
        return record_of(failed, "FAILED", queue=failed.origin_queue, errors=errors)
