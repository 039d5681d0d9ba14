"""Whether the worker shuts down: the processes of a pool share one byte with the worker that forked them."""

import mmap
import sys

from celery import signals

_shared = mmap.mmap(-1, 1)


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
