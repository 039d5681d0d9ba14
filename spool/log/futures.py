"""Futures of what was submitted in a transaction, until that has ended.

They are an object of their own, which knows nothing of the transaction. The space refers to them, to fail them when it
closes, and would otherwise keep a transaction alive that the program has dropped.
"""

from collections.abc import Callable
from concurrent.futures import Future

from spool.errors import SpoolError, TransactionRolledBack


class Promises:
    """``at_end``: what is called when the space closes; these are in it as long as there are any."""

    def __init__(self, at_end: dict[Callable[[], None], None]) -> None:
        self._at_end = at_end
        self._promised: list[tuple[Future[str], str]] = []

    def add(self, future: "Future[str]", id: str) -> None:
        """``id``: the message's, which the future is to have."""
        self._promised.append((future, id))
        self._at_end[self._closed] = None

    def keep(self) -> None:
        """The transaction was committed."""
        for future, id in self._taken():
            future.set_result(id)

    def fail(self, error: Callable[[str], SpoolError]) -> None:
        """``error``: makes it for the id of a message."""
        for future, id in self._taken():
            future.set_exception(error(id))

    def roll_back(self, why: str) -> None:
        """The transaction was rolled back."""
        self.fail(lambda id: TransactionRolledBack(f"its transaction was rolled back: {why}"))

    def _taken(self) -> "list[tuple[Future[str], str]]":
        promised, self._promised = self._promised, []
        if promised:
            self._at_end.pop(self._closed, None)
        return promised

    def _closed(self) -> None:
        """Before the transaction ended: the next process that looks rolls it back."""
        self.roll_back("the space was closed")
