"""SIGALRM in a test. The time limit of the test uses the same signal and timer."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def handled(handler: Callable[..., object]) -> Iterator[None]:
    """Call ``handler`` for SIGALRM during the block. After the block, the time limit of the test goes on."""
    usual, limit = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, handler)
    try:
        yield
        assert signal.getsignal(signal.SIGALRM) is handler
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, usual)
        signal.setitimer(signal.ITIMER_REAL, *limit)
