"""The backend: a task is a message, and the id of its result is the message's correlation id.

The state of a task is not stored. A message in its queue is READY, and RUNNING while a live worker has claimed it. The
result of an ended task is a message with a time to live. So the death of a worker leaves no task RUNNING.
"""

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from traceback import format_exception
from typing import Any

from django.core.checks import CheckMessage, Warning
from django.core.exceptions import ImproperlyConfigured
from django.db import close_old_connections, connections, transaction
from django.utils import timezone, translation

import spool
from django_xaspool import test_spaces
from django_xaspool.outbox import Outbox, findings_of, new_id
from django_xaspool.results import problem_of, record_of, task_result
from django_xaspool.tasks import BaseTaskBackend, base, exceptions, normalize_json, signals

RESULTS, FAILED = "django-results", "django-failed"
_OPTIONS: Any = {"space": None, "result_ttl": 86400, "database": "default", "outbox": False, "test_space": None}
_KEYS = ("BACKEND", "QUEUES", "OPTIONS")
_FOREIGN_SECONDS = 60.0  # the delay of a message of another framework, in a queue without an error queue
_RETRIES = 3  # of a new queue: attempts after the death of a worker, a time limit or ``spool.Retry``


class XaspoolBackend(BaseTaskBackend):
    """Puts tasks into the queues of a space, and finds their results.

    The options, in the setting TASKS:

    space: the directory of the space. The first use creates a missing space.
    result_ttl: how long the result of an ended task is kept, in seconds (default 86400).
    database: the alias of the database whose commit sends the tasks that its atomic blocks enqueue (default
        "default"); None sends each task at once.
    outbox: whether ``enqueue`` writes a row in the transaction of the database, so that the commit decides about the
        task even if the process dies (default False). See ``outbox``.
    test_space: the directory of the space that tests use instead (default: a temporary one for each process).

    Raises:
        ImproperlyConfigured: an option is missing, unknown, or has a wrong value.
    """

    supports_defer = supports_async_task = supports_get_result = supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        self._ignored = sorted(params.keys() - set(_KEYS))
        where = f"TASKS[{alias!r}]"
        if unknown := self.options.keys() - _OPTIONS.keys():
            raise ImproperlyConfigured(
                f"{where} has an unknown option {min(unknown)!r}: it knows {', '.join(_OPTIONS)}"
            )
        path, ttl, database, outbox, test_space = {**_OPTIONS, **self.options}.values()
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
        if type(outbox) is not bool or (outbox and database is None):
            raise ImproperlyConfigured(f"{where}: outbox is True or False, and needs a database; not {outbox!r}")
        if reserved := self.queues & {RESULTS, FAILED}:
            raise ImproperlyConfigured(f"{where}: the backend itself needs the queue {min(reserved)}: rename yours")
        self._path, self._ttl, self._database = os.path.abspath(path), ttl, database
        self._test_space = test_space and os.path.abspath(test_space)
        self.outbox = Outbox(self, database) if outbox else None

    def check(self, **kwargs: Any) -> Iterable[CheckMessage]:
        """Return the findings of ``manage.py check``."""
        said = "TASKS[%r] has the key %r, which has no effect: the keys are %s"
        found = [Warning(said % (self.alias, key, ", ".join(_KEYS)), id="django_xaspool.W002") for key in self._ignored]
        return [*found, *([] if self.outbox is None else findings_of(self.outbox))]

    @property
    def space(self) -> spool.Space:
        """The open space of this process. While Django's tests run, it is another space than at other times."""
        return self.space_with()

    def space_with(self, *queues: str) -> spool.Space:
        """Return the open space of this process, in which the queues exist."""
        in_tests = test_spaces.are_used()
        space = spool.shared((self._test_space or test_spaces.path_of(self._path)) if in_tests else self._path)
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
        id, queue = new_id(), task.queue_name
        result = self._result_of(id, queue, body)
        connection = None if self._database is None else connections[self._database]
        if self.outbox is not None:
            # This raises for a task that no put would accept. After the commit, it would be too late.
            self.outbox.add(id, queue, spool.NewMessage(queue, body, **_options(id, body)).raw.decode())
        elif connection is not None and connection.in_atomic_block:
            transaction.on_commit(partial(self._send, id, queue, body), using=self._database)
        else:
            self._send(id, queue, body)
        return result

    def _result_of(self, id: str, queue: str, body: Mapping[str, Any]) -> base.TaskResult:
        """Return the result of a task that was enqueued, and that no worker has taken."""
        return task_result(self.alias, id, {**body, "queue": queue, "status": "READY", "worker_ids": []})

    def _send(self, id: str, queue: str, body: Mapping[str, Any]) -> None:
        # A task's own tasks are sent at once, also if the task fails later.
        self.space_with(queue).put(queue, body, transaction=None, **_options(id, body))
        self.announce(id, queue, body)

    def announce(self, id: str, queue: str, body: Mapping[str, Any]) -> None:
        """Send the signal that the space has the task."""
        with suppress(ImportError, TypeError):  # (a worker may move a task that its program does not have)
            result = self._result_of(id, queue, body)
            signals.task_enqueued.send_robust(type(self), task_result=result)

    def put_once(self, tx: spool.Transaction, id: str, queue: str, body: Mapping[str, Any]) -> bool:
        """Put a task, and return whether its id was new. The transaction locks the id, even if the id was new."""
        put: Any = tx.put(queue, body, deduplication_key=id, **_options(id, body))
        return not put.duplicate

    def is_in_space(self, id: str, queue: str) -> bool:
        """Return whether the space has the message of a task. A redrive may move the message during the search."""
        space = self.space_with(queue)
        places = (queue, *self.queues_of(space), FAILED, queue)
        return any(space.find(place, correlation_id=id) is not None for place in places)

    def queues_of(self, space: spool.Space) -> list[str]:
        """Return the existing queues of the backend."""
        return sorted(self.queues & space.queues().keys() or space.queues().keys() - {RESULTS, FAILED})

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
        if self.outbox is not None and (row := self.outbox.find(id)) is not None:
            queue, body = row
            return {**body, "queue": queue, "status": "READY", "worker_ids": []}
        space = self.space_with()
        for queue in self.queues_of(space):
            message = space.find(queue, correlation_id=id)
            if message is not None and (state := space.state(message)) != "gone":
                return record_of(message, "RUNNING" if state == "claimed" else "READY")
        if (ended := space.find(RESULTS, correlation_id=id)) is not None:
            return ended.body
        if (failed := space.find(FAILED, correlation_id=id)) is None:
            return None
        reason = f"{failed.origin_attempts} attempts failed; the last one: {failed.failure_reason}"
        errors = [{"exception_class_path": "spool.RequestFailed", "traceback": reason}]
        ids = ["unknown"] * (failed.origin_attempts or 0)
        return record_of(failed, "FAILED", queue=failed.origin_queue, errors=errors, worker_ids=ids)

    def run(self, message: spool.Message) -> None:
        """Run the task of a message, as the function of a worker. Its result and its removal are one commit.

        Each task has a separate context: the language, the time zone and the context variables that a task sets end
        with the task. A task that fails moves to the queue of failed tasks, and its traceback is kept.

        Raises:
            spool.Reject: the task failed, and the record of the failure is durable; or the message belongs to another
                framework.
            spool.Retry: the task asks for another attempt.
            ImportError, TypeError: this program has no such task. The message returns for another program.
        """
        copy_context().run(self._run, message)

    def _run(self, message: spool.Message) -> None:
        translation.deactivate()
        timezone.deactivate()
        if problem := problem_of(message.body):
            advice = f"another program uses the queue {message.queue}: give each framework separate queues"
            raise spool.Reject(f"not a task of Django ({problem}), so {advice}", delay=_FOREIGN_SECONDS)
        if self.outbox is not None and message.correlation_id is not None:
            self.outbox.settle(message.correlation_id)
        self._check_attempt()
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
            self._check_attempt()  # the record of a late attempt would hide the result of the next one
            cause = type(error).__qualname__
            # (UTF-8 has no lone surrogates)
            traceback = "".join(format_exception(error)).encode(errors="backslashreplace").decode()
            errors = [{"exception_class_path": f"{type(error).__module__}.{cause}", "traceback": traceback}]
            record |= {"status": "FAILED", "value": None, "errors": errors}
            # The record precedes the move. Until the move, the message shows that the task has not ended.
            self._end(running.id, record, None)
            raise spool.Reject(f"{cause}: {error}" if str(error) else cause) from error

    def _check_attempt(self) -> None:
        """Raise spool.Retry if the worker has given up the attempt, which took too long: its end has no effect."""
        try:
            self.space.put_many(RESULTS, [])
        except spool.ProtocolError as error:
            raise spool.Retry("it goes on after its time limit") from error

    def _end(self, id: str, record: dict[str, Any], joined: Any) -> None:
        """Put the record of a task that has ended. ``joined``: the transaction of the put."""
        record["finished_at"] = time.time()
        took, worker = f"{record['finished_at'] - record['started_at']:.3f}", record["worker_ids"][-1]
        headers = {"task": record["task"], "state": record["status"], "runtime": took, "worker": worker}
        options = {"content_type": "application/json", "correlation_id": id, "time_to_live": self._ttl}
        self.space.put(RESULTS, record, transaction=joined, headers=headers, **options)
        signals.task_finished.send_robust(type(self), task_result=task_result(self.alias, id, record))


def _options(id: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a put for the body of a task."""
    return {
        "content_type": "application/json",
        "correlation_id": id,
        "priority": max(1, 50 + body["priority"] // 2),
        "not_before": body["run_after"],
        "headers": {"task": body["task"]},
    }


def _call(running: base.TaskResult) -> Any:
    close_old_connections()
    try:
        context = [base.TaskContext(task_result=running)] if running.task.takes_context else []
        return normalize_json(running.task.call(*context, *running.args, **running.kwargs))
    finally:
        close_old_connections()
