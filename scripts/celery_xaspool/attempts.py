"""Attempts of tasks: an attempt begins when a process or thread of the pool accepts the task, and never earlier.

A worker reserves more tasks than it runs. If it dies, only the tasks that had begun have used an attempt. The worker
holds the messages, so the worker records the begin. If the queue limits the attempts, a process of the pool waits for
the record before it runs the task: otherwise a task that kills its worker at once would use no attempt, and would kill
one worker after the other.
"""

import mmap
import os
import time
import weakref
from functools import partial
from itertools import count
from typing import Any

from celery import signals

from celery_xaspool.channel import Channel

_CELLS = 4096  # the processes of a pool have neighbouring process ids, so no two of them share a cell
_ATTEMPT = "xaspool_attempt"  # in the request of a task: the process id of the worker, and the number of the attempt
_SPINS = 50  # times that a process yields to the worker before it sleeps
_PAUSE_SECONDS = 0.0001
_LONGEST_SECONDS = 10.0  # a worker that has lost its pool's messages must not stop the pool

_numbers = count(1)
_begun = memoryview(mmap.mmap(-1, 8 * _CELLS)).cast("Q")  # the last recorded attempt of each process; pools inherit it


def _note_begin(request: Any, **_: Any) -> None:
    if isinstance(request.message.channel, Channel):
        request.request_dict.pop(_ATTEMPT, None)  # (any program can have put any headers)
        if request.message.channel.limits_attempts(request.message.delivery_tag):
            request.request_dict[_ATTEMPT] = os.getpid(), next(_numbers)
        # (a bound method as an attribute of its own object would be a cycle, and the worker's memory would grow)
        request.on_accepted = partial(_on_accepted, weakref.ref(request))


def _on_accepted(reference: Any, pid: int, time_accepted: float) -> Any:
    request = reference()
    try:
        request.message.channel.begin(request.message.delivery_tag)
    finally:
        _, _begun[pid % _CELLS] = request.request_dict.get(_ATTEMPT, (0, 0))
    return type(request).on_accepted(request, pid, time_accepted)


def _wait_for_record(task: Any, **_: Any) -> None:
    """Wait in a process of a pool until the worker has recorded the attempt. Exit if the worker has died before."""
    worker, number = task.request.get(_ATTEMPT) or (None, 0)
    pid, spins = os.getpid(), 0
    if worker in (None, pid):
        return
    end = time.monotonic() + _LONGEST_SECONDS
    while _begun[pid % _CELLS] != number and time.monotonic() < end:
        if os.getppid() != worker:
            raise SystemExit("the worker has died")
        spins += 1
        if spins > _SPINS:
            time.sleep(_PAUSE_SECONDS)
        else:
            os.sched_yield()


signals.task_received.connect(_note_begin)
signals.task_prerun.connect(_wait_for_record)
