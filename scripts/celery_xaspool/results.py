"""A result backend of Celery: a result is a message of ``celery.results`` with its key as the correlation id.

Results have a time to live, so nothing cleans up. The result of a part of a chord, the count of finished parts and the
message of the chord's body are one commit. So no part is counted twice, and no body is lost.
"""

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from celery import signals, states
from celery.backends.base import KeyValueStoreBackend
from celery.exceptions import TimeoutError
from celery.utils import uuid

import spool
from celery_xaspool.names import RESULTS, put_with_headers, short_text, space_path

_COUNTER_SECONDS = 60.0  # another part of the chord holds the counter only for the time of its commit


class XaspoolBackend(KeyValueStoreBackend):
    implements_incr = True
    supports_autoexpire = True
    supports_result_compression = True
    persistent = True

    def __init__(self, app: Any, url: str, **kwargs: Any) -> None:
        self._path = space_path(url)
        super().__init__(app, url=url, expires_type=int, **kwargs)
        self._here = threading.local()

    @property
    def _space(self) -> spool.Space:
        space = spool.shared(self._path)
        options = (self.app.conf.get("result_backend_transport_options") or {}).get("queue", {})
        space.ensure_queue(RESULTS, **{"role": "state", "on_expiry": "drop", "retry_delay": 0.0, **options})
        return space

    def exception_safe_to_retry(self, exc: BaseException) -> bool:
        """Return whether Celery repeats a call if the application wants so. (A result replaces an earlier one.)"""
        return isinstance(exc, spool.DiskFailure)

    # -- keys and values ---------------------------------------------------------------------------------------------

    @contextmanager
    def _one_commit(self) -> Iterator[dict[str, Any]]:
        """Commit the changes of the block together, with everything that the block publishes in the same space.

        Yields the new values by key, which this thread can read before the commit; None: deleted.
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

    def _told(self) -> dict[str, dict[str, str]]:
        """Return the headers of the results that this thread stores now, by key."""
        return self._here.__dict__.setdefault("told", {})  # type: ignore[no-any-return]

    def _write(self, key: str, value: Any) -> None:
        """Write a value; None deletes it."""
        if value is None:
            with suppress(spool.Empty):
                self._space.get(RESULTS, correlation_id=key)
        else:
            seconds = self.expires if key.startswith(short_text(self.task_keyprefix)) else self._chord_result_expires
            put_with_headers(
                self._space.replace, RESULTS, value, correlation_id=key, time_to_live=seconds or None,
                headers=self._told().get(key, {}),
            )  # fmt: skip

    def get(self, key: Any) -> Any:
        key = short_text(key)
        if key in (changes := getattr(self._here, "changes", None) or {}):
            return changes[key]
        found = self._space.find(RESULTS, correlation_id=key)
        return None if found is None else found.body

    def mget(self, keys: Any) -> list[Any]:
        return [self.get(key) for key in keys]

    def set(self, key: Any, value: Any) -> None:
        if (changes := getattr(self._here, "changes", None)) is not None:
            changes[short_text(key)] = value
        else:
            self._write(short_text(key), value)

    def delete(self, key: Any) -> None:
        self.set(key, None)

    # -- chords ------------------------------------------------------------------------------------------------------

    def _apply_chord_incr(self, header_result_args: Any, body: Any, **kwargs: Any) -> None:
        super()._apply_chord_incr(header_result_args, body, **kwargs)
        self.set(self.get_key_for_chord(header_result_args[0]), f"0 {uuid()}")  # the count, and an id of this run

    def incr(self, key: Any) -> int:
        """Count a part of a chord, in the transaction that holds the counter."""
        changes = self._here.changes
        if changes.get(key := short_text(key)) is None:
            return sys.maxsize  # the chord is over; Celery logs that it was counted too often
        count, _, run = changes[key].partition(" ")
        changes[key] = f"{int(count) + 1} {run}"
        return int(count) + 1

    def _is_counted(self, part: Any, counter: str) -> bool:
        """Return whether a part was counted in the present run of its chord; if the chord is over, in the last run."""
        run = self.get(part)
        return run is not None and run in (self.get(counter) or run)

    def _hold(self, key: Any, changes: dict[str, Any]) -> None:
        """Take the counter of a chord, if it exists. Other parts then wait for the commit."""
        with suppress(spool.Empty):
            if (key := short_text(key)) not in changes:
                changes[key] = self._space.get(RESULTS, correlation_id=key, timeout=_COUNTER_SECONDS).body

    def set_chord_size(self, group_id: str, chord_size: int) -> None:
        self.set(self.get_key_for_group(group_id, ".s"), str(chord_size))

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

    def on_chord_part_return(self, request: Any, state: str, result: Any, **kwargs: Any) -> None:
        if not _is_part(request):
            return
        counter = short_text(self.get_key_for_chord(request.group))
        # Several chords may share a task id, as may parts of one chord, so the result cannot show that a part counted.
        part = self.get_key_for_group(request.group, f".{request.group_index}.{request.id}")
        if self._is_counted(part, counter):
            return  # an earlier run of this part, whose worker died before its ack, was counted
        with self._one_commit() as changes:
            self._hold(counter, changes)
            if self._is_counted(part, counter):
                return  # the earlier run ended just now: a process of a pool can outlive its worker
            count, _, run = (changes.get(counter) or str(sys.maxsize)).partition(" ")
            self.set(part, run)
            # Celery sets the size before it sends the last part. Before that, no count is large enough. The size is
            # read after the counter was taken: otherwise the last part could be counted meanwhile, and know the size.
            size = int(self.get(self.get_key_for_group(request.group, ".s")) or sys.maxsize)
            super().store_result(request.id, result, state, request.get("part_traceback"), request)
            if int(count) + 1 < size:
                self.incr(counter)  # (Celery reads the whole group for each part, although only the last part needs it)
            else:
                request.chord["chord_size"] = size
                super().on_chord_part_return(request, state, result, **kwargs)
                if changes.get(counter) is None:  # this was the last part
                    self.delete(self.get_key_for_group(request.group, ".s"))

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
            found = self._space.find(RESULTS, correlation_id=key, timeout=seconds, other_than=seen)
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
    if isinstance(name := getattr(request, "task", None), str) and name:
        found["task"] = short_text(name)
    if state in states.READY_STATES and (began := getattr(request, "began", None)) is not None:
        found["runtime"] = f"{time.monotonic() - began:.3f}"
    return found


def _is_part(request: Any) -> bool:
    """Return whether a task is part of a chord."""
    return bool(request and request.chord and request.group)
