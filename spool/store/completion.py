"""Call a function once, when several parties are done, in whatever order they end.

The count starts at one, for the maker of the completion, which releases that one last, when it has named every party:
a party that is done before the next one is named cannot complete it early. The first error counts.
"""

import threading
from collections.abc import Callable


class Completion:
    """``on_done`` is called once, by the party that is done last, with the first error or None; outside of any lock."""

    def __init__(self, on_done: Callable[[BaseException | None], None]) -> None:
        self._told = on_done
        self._missing = 1
        self._error: BaseException | None = None
        self._mutex = threading.Lock()

    def expect(self) -> None:
        """Name one party more. The caller is a party that is not released yet."""
        with self._mutex:
            if not self._missing:
                raise RuntimeError("the completion is complete: a party must be named before the last one is released")
            self._missing += 1

    def release(self, error: BaseException | None = None) -> None:
        """Release one party: it is done, or failed with ``error``."""
        with self._mutex:
            if not self._missing:
                raise RuntimeError("the completion is complete: a party is released once")
            self._error = self._error or error
            self._missing -= 1
            last = not self._missing
        if last:
            self._told(self._error)
