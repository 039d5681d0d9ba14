"""The causes of failed tasks, for the messages that a worker returns or rejects.

Celery rejects a message after it has handled the exception of the task, and does not pass the exception to the
transport.
"""

import weakref
from contextlib import suppress
from functools import partial
from typing import Any

from billiard.einfo import ExceptionWithTraceback
from celery import signals
from celery.exceptions import Reject, TimeLimitExceeded
from celery.utils.serialization import UnpickleableExceptionWrapper

from celery_xaspool.channel import Channel
from celery_xaspool.names import one_line


def _note_failures(request: Any, **_: Any) -> None:
    if isinstance(request.message.channel, Channel):
        # (a bound method as an attribute of its own object would be a cycle, and the worker's memory would grow)
        request.on_failure = partial(_on_failure, weakref.ref(request))


def _on_failure(reference: Any, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
    request = reference()
    tag, channel = request.message.delivery_tag, request.message.channel
    if tag in channel.held:  # not acknowledged yet
        with suppress(Exception):  # ``__str__`` of an exception is the application's
            channel.causes[tag] = _cause(exc_info.exception)
    try:
        return type(request).on_failure(request, exc_info, *args, **kwargs)
    except Exception as error:  # e.g. of the result backend, or of a chord with odd values
        if not request.acknowledged:
            channel.give_up(tag, error)
        raise


def _cause(error: Any) -> str:
    """Return the exception of the application in an exception of the pool or of Celery, in one line."""
    if isinstance(error, ExceptionWithTraceback):
        error = error.exc
    if isinstance(error, Reject) and isinstance(error.reason, BaseException):
        error = error.reason
    elif isinstance(error, Reject):
        return f"Reject: {error.reason}"
    if isinstance(error, TimeLimitExceeded):
        return f"TimeLimitExceeded: {error.args[0]} s"
    if isinstance(error, UnpickleableExceptionWrapper):
        return f"{error.exc_cls_name}: {', '.join(map(str, error.exc_args))}"
    return one_line(error)


signals.task_received.connect(_note_failures)
