"""Calls of a function in a forked child of this process; the child exits when the function returns or raises."""

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn


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


def die(*_: object, **__: object) -> NoReturn:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("it lives")


def let_die(act: Callable[[], object]) -> int:
    """Call ``act`` in a forked child, and kill the child afterwards, if ``act`` has not killed it; return its process
    id."""

    def program() -> None:
        kept = act()
        die(kept)

    child = start(program)
    assert exit_code(child) == -signal.SIGKILL
    return child


@contextmanager
def living(act: Callable[[Callable[[], object]], object]) -> Iterator[int]:
    """Call ``act(ready)`` in a forked child, and kill the child at the end of the block; yields the process id.

    The block begins once the child has called ``ready``.
    """
    reads, writes = os.pipe()

    def program() -> None:
        kept = act(lambda: os.write(writes, b"."))
        signal.pause()
        del kept

    child = start(program)
    os.close(writes)
    try:
        assert os.read(reads, 1) == b".", "the child has failed"
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        assert exit_code(child) == -signal.SIGKILL
        os.close(reads)


def at_once(act: Callable[[int], object], processes: int) -> list[int]:
    """Call ``act(place)`` in forked children that begin at once; wait for their ends, and return their process ids."""
    waits, begins = os.pipe()

    def program(place: int) -> None:
        os.close(begins)
        os.read(waits, 1)
        act(place)

    children = [start(lambda place=place: program(place)) for place in range(processes)]  # type: ignore[misc]
    os.close(waits)
    os.close(begins)
    assert [exit_code(child) for child in children] == [0] * processes
    return children
