"""The reads in progress of clients that may only read, of which each keeps a batch in the server's memory.

gRPC lets a client begin any number of reads over one connection, and take nothing of them.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from forwarder.serving.gate import MOST_OF_A_TOKEN, MOST_READERS
from spool.errors import InvalidArgument

_TOO_MANY = "reads of clients that may only read in progress: end one, then try again, or use a token that may write"


class Reads:
    """Counts reads. Each process of Spark reads once at a time, so as many reads as connections are possible."""

    def __init__(self) -> None:
        self._mutex = threading.RLock()  # (the garbage collector may end an abandoned read in the middle of a count)
        self._counts: Counter[str] = Counter()

    @contextmanager
    def one(self, token: str) -> Iterator[None]:
        """Count a read of the token during the block. InvalidArgument if the read is one too many."""
        with self._mutex:
            if self._counts[token] >= MOST_OF_A_TOKEN:
                raise InvalidArgument(f"the token has {MOST_OF_A_TOKEN} {_TOO_MANY}")
            if self._counts.total() >= MOST_READERS:
                raise InvalidArgument(f"the server has {MOST_READERS} {_TOO_MANY}")
            self._counts[token] += 1
        try:
            yield
        finally:
            with self._mutex:
                self._counts[token] -= 1
                if not self._counts[token]:
                    del self._counts[token]
