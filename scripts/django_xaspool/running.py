"""One run of a task in a worker: its result and the removal of its message are one commit."""

import os
import time
from traceback import format_exception
from typing import Any

from django.db import close_old_connections

import spool
from django_xaspool.backend import RESULTS, XaspoolBackend
from django_xaspool.results import of_message, task_result
from django_xaspool.tasks import TaskContext, TaskResult, TaskResultStatus, normalize_json, task_finished, task_started


def run(backend: XaspoolBackend, message: spool.Message) -> None:
    """Run the task of a message. A task that fails moves to the queue of failed tasks, and its traceback is kept.

    Raises:
        spool.Reject: the task failed. The record of the failure is durable.
        spool.Retry: the task asks for another attempt.
        ImportError, TypeError: this program has no such task. The message returns, because another program may have it.
    """
    began = time.time()
    running = of_message(backend.alias, message, TaskResultStatus.RUNNING, started_at=began)
    running.worker_ids[-1] = f"{os.uname().nodename}:{os.getpid()}"
    task_started.send_robust(type(backend), task_result=running)
    try:
        _end(backend, message, running, TaskResultStatus.SUCCESSFUL, value=_call(running))
    except spool.Retry:
        raise
    except BaseException as error:
        kind = type(error)
        path = f"{kind.__module__}.{kind.__qualname__}"
        traceback = "".join(format_exception(error)).encode(errors="backslashreplace").decode()  # any text, for JSON
        told = {"exception_class_path": path, "traceback": traceback}
        # The record precedes the move. Until the move, the message shows that the task has not ended.
        _end(backend, message, running, TaskResultStatus.FAILED, joins=False, errors=[told])
        raise spool.Reject(f"{path}: {error}") from error


def _call(running: TaskResult) -> Any:
    close_old_connections()
    try:
        context = [TaskContext(task_result=running)] if running.task.takes_context else []
        return normalize_json(running.task.call(*context, *running.args, **running.kwargs))
    finally:
        close_old_connections()


def _end(
    backend: XaspoolBackend, message: spool.Message, running: TaskResult, status: str, *, joins: bool = True, **end: Any
) -> None:
    """Put the record of an end. ``joins``: whether the put joins the transaction of the message."""
    record = {
        "body": message.body,
        "queue": message.queue,
        "status": str(status),
        "enqueued_at": running.enqueued_at.timestamp(),
        "started_at": running.started_at.timestamp(),
        "finished_at": time.time(),
        "worker_ids": running.worker_ids,
        **end,
    }
    spool.current_space().put(
        RESULTS,
        record,
        content_type="application/json",
        correlation_id=running.id,
        time_to_live=backend.result_ttl,
        transaction=spool.JOIN if joins else None,
    )
    task_finished.send_robust(type(backend), task_result=task_result(backend.alias, running.id, **record))
