"""Futures of messages that were submitted in a transaction, until the transaction has ended.

Each future gets its outcome at the end of the thread's call, because callbacks of futures may call the space.

When the space closes, the space fails the futures. So the space refers to the object that holds the futures. This
object does not refer to the transaction, because the space must not keep alive a transaction that the program has
dropped.
"""

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from spool.errors import SpoolError, TransactionRolledBack
from spool.runtime.call_guard import call_later


class Promises:
    """The futures of one transaction.

    ``at_end``: functions that are called when the space closes. While a future waits, ``_closed`` is one of these
    functions.
    """

    def __init__(self, at_end: dict[Callable[[], None], None]) -> None:
        self._at_end = at_end
        self._promised: list[tuple[Future[str], str]] = []

    def add(self, future: "Future[str]", id: str) -> None:
        """Add a future, whose result will be the message's ``id``."""
        self._promised.append((future, id))
        self._at_end[self._closed] = None

    def fulfil(self) -> None:
        """Give each future its result, because the transaction was committed."""
        for future, id in self._take_all():
            call_later(partial(future.set_result, id))

    def fail(self, error: Callable[[str], SpoolError]) -> None:
        """Fail each future; ``error`` returns the exception for a message's id."""
        for future, id in self._take_all():
            call_later(partial(future.set_exception, error(id)))

    def roll_back(self, why: str) -> None:
        """Fail each future, because the transaction was rolled back."""
        self.fail(lambda id: TransactionRolledBack(f"its transaction was rolled back: {why}"))

    def _take_all(self) -> "list[tuple[Future[str], str]]":
        promised, self._promised = self._promised, []
        if promised:
            self._at_end.pop(self._closed, None)
        return promised

    def _closed(self) -> None:
        """Fail each future, because the space was closed first. The next opener rolls the transaction back."""
        self.roll_back("the space was closed")
