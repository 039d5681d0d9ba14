"""The helpers that the tests of Dramatiq import from a module that its source distribution lacks."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from dramatiq import Worker

skip_in_ci = skip_on_pypy = skip_on_windows = pytest.mark.skipif(False, reason="")
RABBITMQ_CREDENTIALS = RABBITMQ_USERNAME = RABBITMQ_PASSWORD = None


@contextmanager
def worker(*args: Any, **kwargs: Any) -> Iterator[Worker]:
    running = Worker(*args, **kwargs)
    running.start()
    try:
        yield running
    finally:
        running.stop()
