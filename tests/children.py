"""Calls of a function in a forked child of this process; the child exits when the function returns or raises."""

import os
import sys
import traceback
from collections.abc import Callable


def start(act: Callable[[], object]) -> int:
    """Call ``act`` in a forked child, and return the child's process id."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            act()
            code = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    return child


def exit_code(child: int) -> int:
    """Wait for the end of a child, and return its exit code: 0; 1 if ``act`` raised; or the negative number of a
    signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def exit_code_of(act: Callable[[], object]) -> int:
    """Call ``act`` in a forked child, and return the child's exit code, as ``exit_code`` does."""
    return exit_code(start(act))
