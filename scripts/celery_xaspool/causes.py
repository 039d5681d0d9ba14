"""The causes of failed tasks, for the messages that a worker returns or rejects, and for the results of the tasks.

Celery rejects a message after it has handled the exception of the task, and does not pass the exception to the
transport. Celery takes each returned message for a task that runs again. So if the returned message had no attempt
left, the failure is stored here.
"""

import weakref
from contextlib import suppress
from functools import partial
from typing import Any

from billiard.einfo import ExceptionWithTraceback
from celery import signals
from celery.app.task import Context
from celery.exceptions import Reject, TimeLimitExceeded, WorkerLostError
from celery.utils.serialization import UnpickleableExceptionWrapper
from kombu.utils.encoding import safe_repr

from celery_xaspool.channel import Channel, FailureCause, log
from celery_xaspool.names import one_line
from celery_xaspool.shutdown import Interrupted


def _note_failures(request: Any, **_: Any) -> None:
    if isinstance(request.message.channel, Channel):
        # (a bound method as an attribute of its own object would be a cycle, and the worker's memory would grow)
        request.on_failure = partial(_on_failure, weakref.ref(request))


def _on_failure(reference: Any, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
    request = reference()
    tag, channel = request.message.delivery_tag, request.message.channel
    if tag in channel.held:  # not acknowledged yet
        with suppress(Exception):  # ``__str__`` of an exception is the application's
            error = _error(exc_info.exception)
            store = partial(_store_failure, request, error, exc_info)
            channel.causes[tag] = FailureCause(_text(error), store, is_none=isinstance(error, Interrupted))
    try:
        return type(request).on_failure(request, exc_info, *args, **kwargs)
    except Exception as error:  # e.g. of the result backend, or of a chord with odd values
        if not request.acknowledged:
            channel.give_up(tag, error)
        raise


def _store_failure(request: Any, error: Any, exc_info: Any) -> None:
    """Store the failure of a task, and notify the chord, the chain and the error callbacks of the task."""
    task = request.task
    if not isinstance(error, Exception):  # e.g. SystemExit
        error = WorkerLostError(one_line(error))
    payload = request.message.payload
    embedded = (payload[2] or {}) if isinstance(payload, list | tuple) else {}  # (an old message has no chain)
    context = Context({"chord": request.chord, "errbacks": request.errbacks, **request.request_dict, **embedded})
    try:
        task.backend.mark_as_failure(
            request.id, error, exc_info.traceback, request=context, store_result=request.store_errors
        )
    except Exception as failure:
        log.error("the failure of task %s is not stored: %s", request.id, failure)
    signals.task_failure.send(
        sender=task, task_id=request.id, exception=error, args=request.args, kwargs=request.kwargs,
        traceback=exc_info.traceback, einfo=exc_info,
    )  # fmt: skip
    request.send_event("task-failed", exception=safe_repr(error), traceback=exc_info.traceback)


def _error(error: Any) -> Any:
    """Return the exception of the application in an exception of the pool or of Celery."""
    if isinstance(error, ExceptionWithTraceback):
        error = error.exc
    return error.reason if isinstance(error, Reject) and isinstance(error.reason, BaseException) else error


def _text(error: Any) -> str:
    """Return an exception in one line."""
    if isinstance(error, Reject):
        return f"Reject: {error.reason}"
    if isinstance(error, TimeLimitExceeded):
        return f"TimeLimitExceeded: {error.args[0]} s"
    if isinstance(error, UnpickleableExceptionWrapper):
        return f"{error.exc_cls_name}: {', '.join(map(str, error.exc_args))}"
    return one_line(error)


signals.task_received.connect(_note_failures)
