"""One run of a task in a worker: its result and the removal of its message are one commit."""

import os
import time
from traceback import format_exception
from typing import Any

from django.db import close_old_connections

import spool
from django_xaspool.backend import RESULTS, XaspoolBackend
from django_xaspool.results import record_of, task_result
from django_xaspool.tasks import base, normalize_json, signals

_FOREIGN_SECONDS = 60.0  # the delay of a message of another framework, in a queue without an error queue


def run(backend: XaspoolBackend, message: spool.Message) -> None:
    """Run the task of a message. A task that fails moves to the queue of failed tasks, and its traceback is kept.

    Raises:
        spool.Reject: the task failed, and the record of the failure is durable; or the message belongs to another
            framework.
        spool.Retry: the task asks for another attempt.
        ImportError, TypeError: this program has no such task. The message returns, because another program may have it.
    """
    if not (isinstance(message.body, dict) and "task" in message.body):
        advice = f"another framework uses the queue {message.queue}: give each framework separate queues"
        raise spool.Reject(f"not a task of Django, so {advice}", delay=_FOREIGN_SECONDS)
    record = record_of(message, "RUNNING", started_at=time.time())
    record["worker_ids"][-1] = f"{os.uname().nodename}:{os.getpid()}"
    running = task_result(backend.alias, message.correlation_id or message.id, record)
    signals.task_started.send_robust(type(backend), task_result=running)
    try:
        record |= {"status": "SUCCESSFUL", "value": _call(running)}
        _end(backend, running.id, record, spool.JOIN)
    except spool.Retry:
        raise
    except BaseException as error:
        path = f"{type(error).__module__}.{type(error).__qualname__}"
        traceback = "".join(format_exception(error)).encode(errors="backslashreplace").decode()  # any text, for JSON
        errors = [{"exception_class_path": path, "traceback": traceback}]
        record |= {"status": "FAILED", "value": None, "errors": errors}
        # The record precedes the move. Until the move, the message shows that the task has not ended.
        _end(backend, running.id, record, None)
        raise spool.Reject(f"{path}: {error}") from error


def _call(running: base.TaskResult) -> Any:
    close_old_connections()
    try:
        context = [base.TaskContext(task_result=running)] if running.task.takes_context else []
        return normalize_json(running.task.call(*context, *running.args, **running.kwargs))
    finally:
        close_old_connections()


def _end(backend: XaspoolBackend, id: str, record: dict[str, Any], transaction: Any) -> None:
    """Put the record of a task that has ended."""
    record["finished_at"] = time.time()
    spool.current_space().put(
        RESULTS,
        record,
        content_type="application/json",
        correlation_id=id,
        time_to_live=backend.result_ttl,
        transaction=transaction,
    )
    signals.task_finished.send_robust(type(backend), task_result=task_result(backend.alias, id, record))
