"""Limit the log lines about refused clients, so that no client can fill the log or forge a line."""

import threading
from collections.abc import Callable
from time import monotonic

from spool.model.text import printable

_MOST_LINES, _LINES_SECONDS = 20, 60.0
_MOST_CHARACTERS = 500  # the longest sentence; it may quote the request


class Refusals:
    """Reports a few refusals in each minute; of the other refusals, it reports only the number.

    Args:
        tell: called with the sentence about a refusal.
        tell_number: called with the number of refusals that were not reported.
    """

    def __init__(self, tell: Callable[[str], None], tell_number: Callable[[int], None]) -> None:
        self._tell, self._tell_number = tell, tell_number
        self._mutex = threading.Lock()
        self._begun, self._count = monotonic(), 0

    def record(self, sentence: str) -> None:
        now = monotonic()
        with self._mutex:
            if now - self._begun >= _LINES_SECONDS:
                if self._count > _MOST_LINES:
                    self._tell_number(self._count - _MOST_LINES)
                self._begun, self._count = now, 0
            self._count += 1
            if self._count <= _MOST_LINES:
                self._tell(printable(sentence[:_MOST_CHARACTERS]))
