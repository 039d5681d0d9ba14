"""What is done in a forked child of this process, which goes no further than that."""

import os
import sys
import traceback
from collections.abc import Callable


def start(act: Callable[[], object]) -> int:
    """Do this in a forked child, and return its process id."""
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
    """Wait for the end of a child: 0, 1 if it raised, which it prints, or a signal's number, negative."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def exit_code_of(act: Callable[[], object]) -> int:
    """Do this in a forked child, and return its exit code, as ``exit_code`` does."""
    return exit_code(start(act))
