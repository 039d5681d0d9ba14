"""The reads in progress of clients that may only read. Each read keeps a batch in the server's memory.

gRPC lets a client begin any number of reads over one connection without taking any data of these reads.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from forwarder.serving.gate import MOST_OF_A_TOKEN, MOST_READERS, check_room

_READS = "reads of clients that may only read in progress: end one, then try again, or use a token that may write"


class Reads:
    """Counts reads, up to the limit of connections, because each process of Spark makes one read at a time."""

    def __init__(self) -> None:
        self._mutex = threading.RLock()  # (the garbage collector may end a lost read while ``one`` has the lock)
        self._tokens: list[str] = []

    @contextmanager
    def one(self, token: str) -> Iterator[None]:
        """Count a read of the token during the block. InvalidArgument if too many reads are in progress."""
        with self._mutex:
            check_room(self._tokens, token, MOST_READERS, MOST_OF_A_TOKEN, _READS)
            self._tokens.append(token)
        try:
            yield
        finally:
            with self._mutex:
                self._tokens.remove(token)
