"""A result backend of Celery: a result is a message of ``celery.results`` with its key as the correlation id.

Results have a time to live, so nothing cleans up. The result of a part of a chord, the count of finished parts and the
message of the chord's body are one commit. So no part is counted twice, and no body is lost.
"""

import select
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from celery import states
from celery.backends.base import KeyValueStoreBackend
from celery.exceptions import TimeoutError

import spool
from celery_xaspool.names import RESULTS, create_queue, space_path

_COUNTER_SECONDS = 60.0  # another part of the chord holds the counter only for the time of its commit


class _Commit:
    """The changes of a transaction, which the thread of the transaction can read before the commit."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}  # None: deleted
        self.taken: set[str] = set()  # the keys whose messages the transaction has taken already


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
        create_queue(space, RESULTS, **{"on_expiry": "drop", "retry_delay": 0.0, **options})
        return space

    # -- keys and values ---------------------------------------------------------------------------------------------

    @contextmanager
    def _one_commit(self) -> Iterator[_Commit]:
        """Commit the changes of the block together, with everything that the block publishes in the same space."""
        if (commit := getattr(self._here, "commit", None)) is not None:
            yield commit
            return
        commit = self._here.commit = _Commit()
        try:
            with self._space.transaction(timeout=None):
                yield commit
                for key, value in commit.values.items():
                    self._write(key, value, key in commit.taken)
        finally:
            self._here.commit = None

    def _write(self, key: str, value: Any, taken: bool = False) -> None:
        """Write a value; None deletes it. ``taken``: the transaction has taken the earlier value already."""
        space = self._space
        seconds = self.expires if key.startswith(_text(self.task_keyprefix)) else self._chord_result_expires
        if value is None:
            with suppress(spool.Empty):
                if not taken:
                    space.get(RESULTS, correlation_id=key)
        elif taken:
            space.put(RESULTS, value, correlation_id=key, time_to_live=seconds or None)
        else:
            space.replace(RESULTS, value, correlation_id=key, time_to_live=seconds or None)

    def get(self, key: Any) -> Any:
        key = _text(key)
        commit = getattr(self._here, "commit", None)
        if commit is not None and key in commit.values:
            return commit.values[key]
        found = self._space.find(RESULTS, correlation_id=key)
        return None if found is None else found.body

    def mget(self, keys: Any) -> list[Any]:
        return [self.get(key) for key in keys]

    def set(self, key: Any, value: Any) -> None:
        if (commit := getattr(self._here, "commit", None)) is not None:
            commit.values[_text(key)] = value
        else:
            self._write(_text(key), value)

    def delete(self, key: Any) -> None:
        self.set(key, None)

    # -- chords ------------------------------------------------------------------------------------------------------

    def _apply_chord_incr(self, header_result_args: Any, body: Any, **kwargs: Any) -> None:
        super()._apply_chord_incr(header_result_args, body, **kwargs)
        self.set(self.get_key_for_chord(header_result_args[0]), "0")

    def incr(self, key: Any) -> int:
        """Count a part of a chord. The transaction holds the counter, so other parts wait for the commit."""
        key = _text(key)
        with self._one_commit() as commit:
            if key not in commit.taken:
                try:
                    taken = self._space.get(RESULTS, correlation_id=key, timeout=_COUNTER_SECONDS)
                except spool.Empty:
                    return sys.maxsize  # the chord is over; Celery logs that it was counted too often
                commit.taken.add(key)
                commit.values[key] = taken.body
            value = int(commit.values[key]) + 1
            commit.values[key] = str(value)
            return value

    def set_chord_size(self, group_id: str, chord_size: int) -> None:
        self.set(self.get_key_for_group(group_id, ".s"), str(chord_size))

    def on_chord_part_return(self, request: Any, state: str, result: Any, **kwargs: Any) -> None:
        if not request.group:
            return
        size = self.get_key_for_group(request.group, ".s")
        # Celery sets the size before it sends the last part. Before that, no count is large enough.
        request.chord["chord_size"] = int(self.get(size) or sys.maxsize)
        with self._one_commit():
            super().on_chord_part_return(request, state, result, **kwargs)
            if self.get(self.get_key_for_chord(request.group)) is None:  # this was the last part
                self.delete(size)

    def mark_as_done(self, task_id: str, result: Any, request: Any = None, *args: Any, **kwargs: Any) -> None:
        if not _is_part(request):
            super().mark_as_done(task_id, result, request, *args, **kwargs)
        elif not self._is_counted(task_id):
            with self._one_commit():
                self.store_result(task_id, result, states.SUCCESS, request=request)  # the chord's body needs it
                self.on_chord_part_return(request, states.SUCCESS, result)

    def mark_as_failure(
        self, task_id: str, exc: Any, traceback: Any = None, request: Any = None, store_result: bool = True,
        call_errbacks: bool = True, state: str = states.FAILURE,
    ) -> None:  # fmt: skip
        is_part = _is_part(request)
        if not (is_part and self._is_counted(task_id)):
            with self._one_commit():
                super().mark_as_failure(task_id, exc, traceback, request, store_result or is_part, False, state)
        if request and call_errbacks and request.errbacks:  # after the commit, because they may take long
            self._call_task_errbacks(request, exc, traceback)

    def mark_as_revoked(
        self, task_id: str, reason: str = "", request: Any = None, store_result: bool = True, **kwargs: Any
    ) -> None:
        is_part = _is_part(request)
        if not (is_part and self._is_counted(task_id)):
            with self._one_commit():
                super().mark_as_revoked(task_id, reason, request, store_result or is_part, **kwargs)

    def _is_counted(self, task_id: str) -> bool:
        """Return whether an earlier run of this part of a chord, whose worker died before its ack, was counted."""
        return self.get_task_meta(task_id, cache=False)["status"] in states.READY_STATES

    # -- waiting -----------------------------------------------------------------------------------------------------

    def wait_for(
        self, task_id: str, timeout: float | None = None, interval: float | None = 0.5, no_ack: bool = True,
        on_interval: Any = None,
    ) -> Any:  # fmt: skip
        """Sleep until the result is committed. ``on_interval`` is called every ``interval`` seconds meanwhile."""
        key = _text(self.get_key_for_task(task_id))
        until, arrivals = None if timeout is None else time.monotonic() + timeout, None
        try:
            while (meta := self.get_task_meta(task_id))["status"] not in states.READY_STATES:
                if on_interval:
                    on_interval()
                seconds = interval or 0.5
                if until is not None:
                    seconds = min(seconds, until - time.monotonic())
                if seconds <= 0:
                    raise TimeoutError("The operation timed out.")
                if meta["status"] == states.PENDING:
                    self._space.find(RESULTS, correlation_id=key, timeout=seconds)
                elif arrivals is None:  # a state like STARTED, which a later message replaces
                    arrivals = self._space.arrivals([RESULTS])
                else:
                    select.select([arrivals], [], [], seconds)
                    arrivals.ready()
            if on_interval and meta["status"] in states.PROPAGATE_STATES:
                on_interval()  # raises the error of a chord's part, which is one commit with the error of the body
            return meta
        finally:
            if arrivals is not None:
                arrivals.close()


def _is_part(request: Any) -> bool:
    """Return whether a task is part of a chord."""
    return bool(request and request.chord)


def _text(key: Any) -> str:
    return key.decode() if isinstance(key, bytes) else str(key)
