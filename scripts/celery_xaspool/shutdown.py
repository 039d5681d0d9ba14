"""Whether the worker shuts down: the processes of a pool share one byte with the worker that forked them."""

import mmap
import sys

from celery import signals
from celery.exceptions import Reject

_shared = mmap.mmap(-1, 1)


class Interrupted(Reject):
    """The shutdown of the worker has interrupted the end of a task, which returns to its queue."""


def is_under_way() -> bool:
    """Return whether the worker of this process has begun to shut down."""
    state = sys.modules.get("celery.worker.state")  # for the pools whose tasks run in the process of the worker
    return _shared[0] == 1 or getattr(state, "should_stop", None) is not None


def _begin(**_: object) -> None:
    _shared[0] = 1


def _reset(**_: object) -> None:
    _shared[0] = 0


signals.worker_shutting_down.connect(_begin)
signals.worker_init.connect(_reset)  # (a program can run one worker after another)
