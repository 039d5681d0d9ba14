"""The signals at which a program ends in order: SIGTERM, Ctrl-C, and signals that would otherwise kill the program."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# SIGHUP comes from a closed terminal, or from a program that takes the signal for the order "reload". An alarm or a
# user signal may come from a library of the application, or by mistake. By default each of these signals kills the
# process.
ENDING = (
    signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM,
    signal.SIGPROF,
)  # fmt: skip


def handle_ending(handler: Callable[[int, Any], object]) -> dict[int, Any]:
    """Call ``handler`` with the number of each ending signal from now on. Return the previous handlers.

    An ignored signal remains ignored, e.g. SIGHUP under nohup. This does not apply to SIGTERM and SIGINT.
    """
    always = (signal.SIGTERM, signal.SIGINT)
    caught = [number for number in ENDING if number in always or signal.getsignal(number) is not signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in caught}


@contextmanager
def ending_signals(handler: Callable[[int, Any], object]) -> Iterator[None]:
    """Call ``handler`` at the ending signals during the block."""
    previous = handle_ending(handler)
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)


def name_of(number: int) -> str:
    """Return the name of an ending signal for the user, e.g. "SIGHUP"."""
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
