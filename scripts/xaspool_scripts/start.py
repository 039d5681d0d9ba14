"""Where the installed programs begin: from here on Ctrl-C is one line and exit code 130, imports included."""

import os
import signal
import sys
from importlib import import_module
from typing import NoReturn

INTERRUPTED = 130


def ended_by(number: int) -> int:
    """The exit code of a program that a signal ended at once: 130 by Ctrl-C, 143 by SIGTERM."""
    return 128 + number


def admin() -> None:
    _run("admin")


def intake() -> None:
    _run("intake")


def recover() -> None:
    _run("recover")


def forward() -> None:
    _run("forward")


def worker() -> None:
    _run("worker")


def write_at_once(line: str) -> None:
    """To standard error, past what Python keeps back."""
    if sys.stderr is not None:  # (else the number may be a file's)
        try:
            os.write(sys.stderr.fileno(), f"{line}\n".encode())
        except OSError:
            pass  # standard error is closed


def _run(name: str) -> None:
    def end(*_: object) -> NoReturn:
        """At once: an import that is broken off complains in many lines, and there is nothing to clean up."""
        write_at_once(f"spool-{name}: interrupted")
        os._exit(INTERRUPTED)

    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:  # (else it is ignored, as in the background of a shell)
        signal.signal(signal.SIGINT, end)
    program = import_module(f"xaspool_scripts.{name}").main
    signal.signal(signal.SIGINT, usual)
    try:
        program()
    except KeyboardInterrupt:
        end()
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the interpreter's own end is not worth a traceback
