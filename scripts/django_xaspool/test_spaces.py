"""The spaces of a test run: while Django's test environment is set up, no backend uses its space.

Django's test runner and pytest-django call setup_test_environment, with and without a database. Each process of a
parallel run has separate spaces, as it has a separate database.
"""

import os
import shutil
import sys
import tempfile
from contextlib import suppress
from functools import cache
from multiprocessing.util import Finalize  # (a process of a parallel test run calls no functions of atexit)

import spool


def are_used() -> bool:
    """Return whether this process runs tests of Django."""
    utils = sys.modules.get("django.test.utils")
    return hasattr(getattr(utils, "_TestState", None), "saved_data")


def path_of(path: str) -> str:
    """Return the directory of the space that takes the place of a space in the tests of this process."""
    return _path_of(path, os.getpid())


@cache
def _path_of(path: str, process: int) -> str:
    directory = os.path.join(tempfile.mkdtemp(prefix="xaspool-test-"), os.path.basename(path))
    # Tests need no durability against power cuts, and should not wait for the next attempt at a task.
    spool.create(directory, defaults={"durability": "none", "retry_delay": 0.0}).close()
    Finalize(None, _remove, (directory, process), exitpriority=0)
    return directory


def _remove(directory: str, process: int) -> None:
    if os.getpid() == process:
        with suppress(spool.SpoolError):
            spool.shared(directory).close()
        shutil.rmtree(os.path.dirname(directory), ignore_errors=True)
