"""What several parties must have done before anybody is told: counted down once, whatever their order.

The count starts at one, for who makes the completion; he releases it last, when he has named every party. So a party
that is done before the next one is named cannot complete it early (the race of QPID-2921). The first error counts.
"""

import threading
from collections.abc import Callable


class Completion:
    """``told`` is called once, by the party that is done last, with the first error or None; outside of any lock."""

    def __init__(self, told: Callable[[BaseException | None], None]) -> None:
        self._told = told
        self._missing = 1
        self._error: BaseException | None = None
        self._mutex = threading.Lock()

    def expect(self) -> None:
        """One party more; by who has not released his own yet."""
        with self._mutex:
            if not self._missing:
                raise RuntimeError("the completion is complete: a party must be named before the last one is released")
            self._missing += 1

    def release(self, error: BaseException | None = None) -> None:
        """One party is done, or has failed."""
        with self._mutex:
            if not self._missing:
                raise RuntimeError("the completion is complete: a party is released once")
            self._error = self._error or error
            self._missing -= 1
            last = not self._missing
        if last:
            self._told(self._error)
