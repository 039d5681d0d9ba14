"""A result backend of Celery: a result is a message of ``celery.results`` with its key as the correlation id.

Results have a time to live, so nothing cleans up. The result of a part of a chord, the count of finished parts and the
message of the chord's body are one commit. So no part is counted twice, and no body is lost.

A run of a chord has these records: the group, the counter, the size, and a mark of each counted part with its result.
All of them live until the run ends, however long the parts wait and work. Then only the counter remains, for a day or
longer: it shows that a part which runs again was counted.
"""

import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any, NamedTuple

from celery import signals, states
from celery.backends.base import KeyValueStoreBackend
from celery.canvas import maybe_signature
from celery.exceptions import ChordError, TimeoutError, WorkerLostError
from celery.result import GroupResult
from celery.utils import uuid
from kombu.message import Message

import spool
from celery_xaspool import broker_options, refuse_old_celery, shutdown
from celery_xaspool.envelopes import read_envelope
from celery_xaspool.names import RESULTS, put_with_headers, short_text, space_path

log = logging.getLogger("celery_xaspool")
refuse_old_celery()

_RUN_SECONDS = 365 * 86_400.0  # the least life of the records of a run: a chord may never end
_ENDED_SECONDS = 86_400.0  # the least life of the counter after the run
_HELD_SECONDS = 0.5  # while another process holds a value: the time between two looks whether the worker shuts down
_ENDED, _LOST = "ended", "lost"  # instead of the count, if all parts were counted, or if records were deleted


class _Value(NamedTuple):
    """A value that is not committed yet. ``body``: None deletes the value. ``seconds``: its life; None: for ever."""

    body: Any
    seconds: float | None = None


class XaspoolBackend(KeyValueStoreBackend):
    implements_incr = True
    supports_autoexpire = True
    supports_result_compression = True
    persistent = True

    def __init__(self, app: Any, url: str, **kwargs: Any) -> None:
        self._path = space_path(url)
        super().__init__(app, url=url, expires_type=int, **kwargs)
        self._options = app.conf.get("result_backend_transport_options") or {}
        broker_options.name_ignored("result_backend_transport_options", self._options, broker_options.RESULTS)
        broker_options.check_queue_options(
            "result_backend_transport_options", self._options.get("queue", {}), ("state",)
        )
        self._here = threading.local()

    @property
    def _space(self) -> spool.Space:
        space = spool.shared(self._path)
        queue = self._options.get("queue", {})
        space.ensure_queue(RESULTS, **{"role": "state", "on_expiry": "drop", "retry_delay": 0.0, **queue})
        return space

    def exception_safe_to_retry(self, exc: BaseException) -> bool:
        """Return whether Celery repeats a call if the application wants so. (A result replaces an earlier one.)"""
        exc.__suppress_context__, exc.__cause__ = True, None  # Celery logs the traceback at each attempt: one is enough
        return isinstance(exc, spool.DiskFailure)

    # -- keys and values ---------------------------------------------------------------------------------------------

    @contextmanager
    def _one_commit(self) -> Iterator[dict[str, _Value]]:
        """Commit the changes of the block together, with everything that the block publishes in the same space.

        Yields the new values by key, which this thread can read before the commit.
        """
        if (changes := getattr(self._here, "changes", None)) is not None:
            yield changes
            return
        changes = self._here.changes = {}
        try:
            with self._space.transaction(timeout=None):
                yield changes
                for key, value in changes.items():
                    self._write(key, value)
        finally:
            self._here.changes = None
            self._told().clear()
            self._collected().clear()

    def _collected(self) -> dict[str, Any]:
        """Return the results of the parts whose chord this thread ends now, by key."""
        return self._here.__dict__.setdefault("collected", {})  # type: ignore[no-any-return]

    def _told(self) -> dict[str, dict[str, str]]:
        """Return the headers of the results that this thread stores now, by key."""
        return self._here.__dict__.setdefault("told", {})  # type: ignore[no-any-return]

    def _write(self, key: str, value: _Value) -> None:
        if value.body is None:
            with suppress(spool.Empty):
                self._space.get(RESULTS, correlation_id=key)
        else:
            self._write_when_free(key, value)

    def _write_when_free(self, key: str, value: _Value) -> None:
        """Write a value, as soon as no other process holds the value.

        Raises Interrupted if the worker shuts down while another process holds the value, e.g. one that is stopped.
        """
        while True:
            with suppress(spool.MessageInUse):
                return put_with_headers(
                    self._space.replace, RESULTS, value.body, correlation_id=key, time_to_live=value.seconds,
                    headers=self._told().get(key, {}), timeout=_HELD_SECONDS,
                )  # fmt: skip
            if shutdown.is_under_way():
                raise shutdown.Interrupted("the worker shuts down, and another process holds the result", requeue=True)

    def get(self, key: Any) -> Any:
        key = short_text(key)
        if key in (changes := getattr(self._here, "changes", None) or {}):
            return changes[key].body
        if key in (collected := self._collected()):
            return collected[key]
        found = self._find(key)
        return None if found is None else found.body

    def _find(self, key: str, **options: Any) -> spool.Message | None:
        """Find a value. A read creates no queue, because a full disk has no room for the change of the settings."""
        try:
            return spool.shared(self._path).find(RESULTS, correlation_id=key, **options)
        except spool.QueueNotFound:  # no result exists
            time.sleep(options.get("timeout", 0.0))
            return None

    def mget(self, keys: Any) -> list[Any]:
        return [self.get(key) for key in keys]

    def set(self, key: Any, value: Any) -> None:
        is_task = short_text(key).startswith(short_text(self.task_keyprefix))
        self._set(key, _Value(value, (self.expires if is_task else self._chord_result_expires) or None))

    def _set(self, key: Any, value: _Value) -> None:
        if (changes := getattr(self._here, "changes", None)) is not None:
            changes[short_text(key)] = value
        else:
            self._write(short_text(key), value)

    def delete(self, key: Any) -> None:
        self._set(key, _Value(None))

    # -- the records of chords ---------------------------------------------------------------------------------------

    def _life(self, least: float = _RUN_SECONDS) -> float | None:
        """Return the life of a record in seconds: not shorter than the life of results."""
        return max(self._chord_result_expires, least) if self._chord_result_expires else None

    def _apply_chord_incr(self, header_result_args: Any, body: Any, **kwargs: Any) -> None:
        self._here.begins = header_result_args[0]
        try:
            super()._apply_chord_incr(header_result_args, body, **kwargs)  # saves the group
        finally:
            self._here.begins = None
        self._count(self.get_key_for_chord(header_result_args[0]), 0, uuid())

    def _save_group(self, group_id: str, result: Any) -> Any:
        """Save a group. The group of a chord lives until its run ends, even if the application saves it again."""
        is_run = getattr(self._here, "begins", None) == group_id
        if not is_run and (self.get(self.get_key_for_chord(group_id)) or _ENDED).startswith((_ENDED, _LOST)):
            return super()._save_group(group_id, result)
        saved = self.encode({"result": result.as_tuple()})
        self._set(self.get_key_for_group(group_id), _Value(saved, self._life()))
        return result

    def set_chord_size(self, group_id: str, chord_size: int) -> None:
        self._set(self.get_key_for_group(group_id, ".s"), _Value(str(chord_size), self._life()))

    def _count(self, counter: Any, count: int | str, run: str) -> None:
        """Write the counter of a chord: how many parts were counted in which run, or why none is counted any more."""
        seconds = self._life(_RUN_SECONDS if isinstance(count, int) else _ENDED_SECONDS)
        self._set(counter, _Value(f"{count} {run}", seconds))

    def incr(self, key: Any) -> int:
        """Count a part of a chord, in the transaction that holds the counter."""
        count, _, run = self.get(key).partition(" ")
        self._count(key, int(count) + 1, run)
        return int(count) + 1

    def _is_counted(self, part: Any, counter: str | None) -> bool:
        """Return whether a part was counted in the present run of its chord. If a run has ended, all were counted."""
        count, _, run = (counter or _LOST).partition(" ")
        if count in (_ENDED, _LOST):
            return count == _ENDED
        mark = self.get(part)
        return mark is not None and mark[: len(run)] == (run if isinstance(mark, str) else run.encode())

    def _hold(self, counter: str, changes: dict[str, _Value]) -> str | None:
        """Hold the counter of a chord, so that other parts wait for the commit; return None if the counter was deleted.

        A replacement is also a lock. Each process takes this lock before a message, so no two wait for each other.
        """
        if counter not in changes:
            self._write_when_free(counter, _Value(""))
            found = self._space.find(RESULTS, correlation_id=counter)  # the committed value
            if found is None:
                return None
            changes[counter] = _Value(found.body, found.expires_at and max(1.0, found.expires_at - time.time()))
        return self.get(counter)  # type: ignore[no-any-return]

    def store_result(
        self, task_id: str, result: Any, state: str, traceback: Any = None, request: Any = None, **kwargs: Any
    ) -> Any:
        """Store a state or result. The result of a part of a chord is stored by the commit that counts the part."""
        if state in states.READY_STATES and _is_part(request):
            request.part_traceback = traceback
            return result
        return super().store_result(task_id, result, state, traceback, request, **kwargs)

    def _store_result(
        self, task_id: str, result: Any, state: str, traceback: Any = None, request: Any = None, **kwargs: Any
    ) -> Any:
        """Store a state or result, with headers for the tools of administrators."""
        told = self._told()
        told[short_text(self.get_key_for_task(task_id))] = _headers(state, request)
        try:
            return super()._store_result(task_id, result, state, traceback, request, **kwargs)
        finally:
            if getattr(self._here, "changes", None) is None:
                told.clear()

    # -- the parts of chords -----------------------------------------------------------------------------------------

    def on_chord_part_return(self, request: Any, state: str, result: Any, **kwargs: Any) -> None:
        if _is_part(request):
            self._ensure_retryable(self._end_part, request, state, result, **kwargs)

    def _end_part(self, request: Any, state: str, result: Any, **kwargs: Any) -> None:
        """Store the result of a part and count the part, in one commit; the last part sends the body with it."""
        counter = short_text(self.get_key_for_chord(request.group))
        # Several chords may share a task id, as may parts of one chord, so the result cannot show that a part counted.
        part = self._mark(request.group, request.group_index, request.id)
        if self._is_counted(part, self.get(counter)):
            return  # an earlier run of this part, whose worker died before its ack, was counted
        with self._one_commit() as changes:
            held = self._hold(counter, changes)
            if self._is_counted(part, held):
                return  # the earlier run ended just now: a process of a pool can outlive its worker
            super().store_result(request.id, result, state, request.get("part_traceback"), request)
            count, _, run = (held or "").partition(" ")
            # The size is read after the counter was taken: otherwise the last part could be counted before.
            size = self._size(request.group)
            if count == _LOST:
                return
            if not held or size is None:
                self._end_run(request, _LOST, f"the records of the chord {request.group} were deleted")
            elif int(count) + 1 < size:  # (Celery reads the whole group for each part, but only the last needs it)
                self._set(part, _Value(_marked(run, self.get(self.get_key_for_task(request.id))), self._life()))
                self.incr(counter)
            elif self._collect(request, run):
                request.chord["chord_size"] = size
                super().on_chord_part_return(request, state, result, **kwargs)
                self._end_run(request, _ENDED)
            else:
                self._end_run(request, _LOST, f"results of the parts of the chord {request.group} were deleted")

    def _size(self, group: str) -> int | None:
        """Return the number of a chord's parts; None if its records were deleted.

        Celery sets the size before it sends the last part. Before that, no count is large enough.
        """
        if (size := self.get(self.get_key_for_group(group, ".s"))) is not None:
            return int(size)
        return None if self.get(self.get_key_for_group(group)) is None else sys.maxsize

    def _mark(self, group: str, index: Any, id: str) -> str:
        """Return the key of the record that a part was counted."""
        return short_text(self.get_key_for_group(group, f".{index}.{id}"))

    def _collect(self, request: Any, run: str) -> bool:
        """Take the marks and results of all parts, for the join in this thread; return whether all results exist.

        Without its mark, a part can run again after it was counted. Its record is then only a state.
        """
        if (group := GroupResult.restore(request.group, backend=self)) is None:
            return False
        for index, part in enumerate(group.results):
            key = short_text(self.get_key_for_task(part.id))
            with suppress(spool.Empty):
                mark = self._space.get(RESULTS, correlation_id=self._mark(request.group, index, part.id), timeout=0)
                self._collected()[key] = mark.body[len(run) + 1 :]
            self._collected()[key] = self.get(key)
            if not isinstance(part, GroupResult) and self.get_task_meta(part.id)["status"] not in states.READY_STATES:
                return False
        return True

    def _end_run(self, request: Any, word: str, failure: str | None = None) -> None:
        """Let the counter name the end of a run, and delete its other records. A failure fails the body."""
        self._count(self.get_key_for_chord(request.group), word, "")
        for suffix in ("", ".s"):
            self.delete(self.get_key_for_group(request.group, suffix))
        if failure is not None:
            log.error("%s", failure)
            try:
                raise ChordError(failure)  # (Celery reads the traceback)
            except ChordError as error:
                self.chord_error_from_stack(maybe_signature(request.chord, app=self.app), error)

    # -- failures that no worker has stored --------------------------------------------------------------------------

    def get_task_meta(self, task_id: str, cache: bool = True) -> Any:
        """Return the state and result of a task. A task whose message is in an error queue has failed."""
        meta = super().get_task_meta(task_id, cache)
        if meta["status"] in states.READY_STATES or (failed := self._failed_message(task_id)) is None:
            return meta
        # The last attempt has ended with the death of the worker, which could store nothing.
        error = WorkerLostError((failed.failure_reason or "").removeprefix("WorkerLostError: "))
        with suppress(Exception):  # (the message may be of any program, and a full disk stores nothing)
            self._fail_body(failed, task_id, error)
        return {**meta, "status": states.FAILURE, "result": error, "traceback": None, "task_id": task_id}

    def _fail_body(self, failed: spool.Message, task_id: str, error: Exception) -> None:
        """Store the failure of the body of a task's chord, for all callers. If the body runs after a redrive,
        its result replaces the failure."""
        envelope = read_envelope(failed.body)
        kinds = {"content_type": envelope["content-type"], "content_encoding": envelope["content-encoding"]}
        _, _, embedded = Message(envelope["body"], **kinds, headers=envelope["headers"], accept=self.accept).payload
        body = embedded["chord"]["options"]["task_id"]
        if super().get_task_meta(body)["status"] not in states.READY_STATES:
            self.mark_as_failure(body, ChordError(f"Dependency {task_id} raised {error!r}"))

    def _failed_message(self, task_id: str) -> spool.Message | None:
        """Return the message of a task from an error queue of the broker's space, if the broker is a space."""
        if self._broker is None:
            return None
        space = spool.shared(self._broker)
        for queue in {config.error_queue for config in space.queues().values()} - {None}:
            with suppress(spool.QueueNotFound):
                if (failed := space.find(queue or "", correlation_id=short_text(task_id))) is not None:
                    return failed
        return None

    @cached_property
    def _broker(self) -> str | None:
        """The path of the space that is the broker; None if the broker is another product."""
        with self.app.connection_for_read() as connection:
            is_space = connection.get_transport_cls().driver_type == "xaspool"
            return space_path(connection.hostname) if is_space else None

    # -- waiting -----------------------------------------------------------------------------------------------------

    def wait_for(
        self, task_id: str, timeout: Any = None, interval: Any = 0.5, no_ack: bool = True, on_interval: Any = None
    ) -> Any:
        """Sleep until the result is committed. ``on_interval`` is called every ``interval`` seconds meanwhile."""
        key, seen = short_text(self.get_key_for_task(task_id)), None
        until = float("inf") if timeout is None else time.monotonic() + timeout
        while (meta := self.get_task_meta(task_id))["status"] not in states.READY_STATES:
            if on_interval:
                on_interval()
            seconds = min(interval or 0.5, until - time.monotonic())
            if seconds <= 0:
                raise TimeoutError("The operation timed out.")
            # A result replaces a state like STARTED. The first round only finds that state, and gets its id.
            found = self._find(key, timeout=seconds, other_than=seen)
            seen = seen if found is None else found.id
        if on_interval and meta["status"] in states.PROPAGATE_STATES:
            on_interval()  # raises the error of a chord's part, which is one commit with the error of the body
        return meta


def _note_begin(task: Any, **_: Any) -> None:
    """Note when a task begins, because Celery does not tell the result backend how long the task ran."""
    task.request.began = time.monotonic()


signals.task_prerun.connect(_note_begin)


def _headers(state: str, request: Any) -> dict[str, str]:
    """Return the headers of a stored state or result, as far as they are known."""
    found = {"state": state, "worker": f"{socket.gethostname()}:{os.getpid()}"}
    name = getattr(request, "task", None) or getattr(request, "name", None)  # (of an unknown task, Celery gives a name)
    if isinstance(name, str) and name:
        found["task"] = short_text(name)
    if state in states.READY_STATES and (began := getattr(request, "began", None)) is not None:
        found["runtime"] = f"{time.monotonic() - began:.3f}"
    return found


def _marked(run: str, result: Any) -> Any:
    """Return the body of a mark: the run, and the stored result of the part."""
    return f"{run} {result}" if isinstance(result, str) else f"{run} ".encode() + (result or b"")


def _is_part(request: Any) -> bool:
    """Return whether a task is part of a chord."""
    return bool(request and request.chord and request.group)
