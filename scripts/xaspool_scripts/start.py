"""Start the installed programs. Even during the imports, Ctrl-C prints one line and exits with 130."""

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import NoReturn

FAILED, INTERRUPTED = 1, 130


def ended_by(number: int) -> int:
    """Return the exit code after an immediate end by a signal: 130 for Ctrl-C, 143 for SIGTERM."""
    return 128 + number


def write_at_once(line: str) -> None:
    """Write a line to standard error without Python's buffer. Signal handlers must not use the buffer."""
    if sys.stderr is not None:  # (without standard error, descriptor 2 may be another file)
        with suppress(OSError):  # (standard error may be closed)
            os.write(sys.stderr.fileno(), f"{line}\n".encode())


def _import(name: str) -> Callable[[], None]:
    """Return the main function of the program spool-NAME. If another distribution has overwritten a package of xaspool,
    print one line and end."""
    from xaspool_scripts.ownership import explain, overwritten

    sentence = overwritten()
    try:
        if sentence is None:
            return import_module(f"xaspool_scripts.{name}").main  # type: ignore[no-any-return]
    except (ImportError, AttributeError) as error:
        sentence = explain(error)
        if sentence is None:
            raise
    write_at_once(f"spool-{name}: {sentence}")
    sys.exit(FAILED)


def _program(name: str) -> Callable[[], None]:
    """Return the function that starts the program spool-NAME."""

    def end(*_: object) -> NoReturn:
        """End at once, because an interrupted import would print a traceback. Nothing needs a cleanup."""
        write_at_once(f"spool-{name}: interrupted")
        os._exit(INTERRUPTED)

    def run() -> None:
        previous = signal.getsignal(signal.SIGINT)
        if previous is signal.default_int_handler:  # (a shell ignores the signal for background programs)
            signal.signal(signal.SIGINT, end)
        program = _import(name)
        signal.signal(signal.SIGINT, previous)
        try:
            program()
        except KeyboardInterrupt:
            end()
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # no traceback while the interpreter ends

    run.__name__ = name
    return run


admin, intake, recover, forward, worker, serve = map(
    _program, ("admin", "intake", "recover", "forward", "worker", "serve")
)
