"""A thread beside a test."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def beside(run: Callable[[], object], stop: Callable[[], object]) -> Iterator[None]:
    """``run`` runs in a thread meanwhile; ``stop`` ends it."""
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop()
        thread.join()
