"""The backend: a task is a message, and the id of its result is the message's correlation id.

The state of a task is not stored. A message in its queue is READY, and RUNNING while a live worker has claimed it. The
result of an ended task is a message with a time to live. So the death of a worker leaves no task RUNNING.
"""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from traceback import format_exception
from typing import Any
from uuid import uuid4

from django.core.exceptions import ImproperlyConfigured
from django.db import close_old_connections, connections, transaction

import spool
from django_xaspool.results import record_of, task_result
from django_xaspool.tasks import BaseTaskBackend, base, exceptions, normalize_json, signals

RESULTS, FAILED = "django-results", "django-failed"
_OPTIONS: dict[str, Any] = {"space": None, "result_ttl": 86400, "database": "default"}
_FOREIGN_SECONDS = 60.0  # the delay of a message of another framework, in a queue without an error queue
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
        self._path, self._ttl, self._database = os.path.abspath(path), ttl, database

    def space_with(self, *queues: str) -> spool.Space:
        """Return the open space of this process, in which the queues exist."""
        space = spool.shared(self._path)
        space.ensure_queue(RESULTS, role="state", on_expiry="drop")
        space.ensure_queue(FAILED, role="error")
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
        send = partial(self._send, body, result)
        if self._database is not None and connections[self._database].in_atomic_block:
            transaction.on_commit(send, using=self._database)
        else:
            send()
        return result

    def _send(self, body: Mapping[str, Any], result: base.TaskResult) -> None:
        queue, priority = result.task.queue_name, max(1, 50 + body["priority"] // 2)
        options = {"priority": priority, "not_before": body["run_after"], "headers": {"task": body["task"]}}
        # A task's own tasks are sent at once, also if the task fails later.
        _put(self.space_with(queue), queue, body, result.id, transaction=None, **options)
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

    def run(self, message: spool.Message) -> None:
        """Run the task of a message, as the function of a worker. Its result and its removal are one commit.

        A task that fails moves to the queue of failed tasks, and its traceback is kept.

        Raises:
            spool.Reject: the task failed, and the record of the failure is durable; or the message belongs to another
                framework.
            spool.Retry: the task asks for another attempt.
            ImportError, TypeError: this program has no such task. The message returns for another program.
        """
        if not (isinstance(message.body, dict) and "task" in message.body):
            advice = f"another framework uses the queue {message.queue}: give each framework separate queues"
            raise spool.Reject(f"not a task of Django, so {advice}", delay=_FOREIGN_SECONDS)
        record = record_of(message, "RUNNING", started_at=time.time())
        record["worker_ids"][-1] = f"{os.uname().nodename}:{os.getpid()}"
        running = task_result(self.alias, message.correlation_id or message.id, record)
        signals.task_started.send_robust(type(self), task_result=running)
        try:
            record |= {"status": "SUCCESSFUL", "value": _call(running)}
            self._end(running.id, record, spool.JOIN)
        except spool.Retry:
            raise
        except BaseException as error:
            path = f"{type(error).__module__}.{type(error).__qualname__}"
            # (UTF-8 has no lone surrogates)
            traceback = "".join(format_exception(error)).encode(errors="backslashreplace").decode()
            errors = [{"exception_class_path": path, "traceback": traceback}]
            record |= {"status": "FAILED", "value": None, "errors": errors}
            # The record precedes the move. Until the move, the message shows that the task has not ended.
            self._end(running.id, record, None)
            raise spool.Reject(f"{path}: {error}") from error

    def _end(self, id: str, record: dict[str, Any], joined: Any) -> None:
        """Put the record of a task that has ended. ``joined``: the transaction of the put."""
        record["finished_at"] = time.time()
        _put(spool.current_space(), RESULTS, record, id, time_to_live=self._ttl, transaction=joined)
        signals.task_finished.send_robust(type(self), task_result=task_result(self.alias, id, record))


def _put(space: spool.Space, queue: str, body: Mapping[str, Any], id: str, **options: Any) -> None:
    space.put(queue, body, content_type="application/json", correlation_id=id, **options)


def _call(running: base.TaskResult) -> Any:
    close_old_connections()
    try:
        context = [base.TaskContext(task_result=running)] if running.task.takes_context else []
        return normalize_json(running.task.call(*context, *running.args, **running.kwargs))
    finally:
        close_old_connections()
