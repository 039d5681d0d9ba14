"""The stream reads of a server's clients. A reader remembers only sizes of commits, which it can read again."""

import hashlib
import threading
from collections import OrderedDict

from pyspark.sql.types import StructType

import spool
from forwarder.dataframes.columns import StreamOptions
from forwarder.dataframes.stream import StreamReader

MOST_STREAMS, MOST_OF_A_TOKEN = 256, 16

Stream = tuple[StreamReader, threading.Lock]


class Streams:
    """The readers of the latest streams, each with a lock for its calls. All readers use the server's open spaces."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._streams: OrderedDict[tuple[str, bytes], Stream] = OrderedDict()  # the least recently used first

    def reader(self, space: spool.Space, options: StreamOptions, schema: StructType, owner: str) -> Stream:
        """Return the reader of a stream, and its lock. ``owner``: the client's token; "" if the server has no tokens.

        If the token or the server has too many readers, the least recently used reader is forgotten.
        """
        named = repr((options, schema.names)).encode("utf-8", "surrogatepass")
        key = owner, hashlib.blake2b(named, digest_size=32).digest()
        with self._mutex:
            known = self._streams.pop(key, None)
            if known is None:
                self._make_room(owner)
                known = StreamReader(options, schema, space), threading.Lock()
            self._streams[key] = known
        return known

    def _make_room(self, owner: str) -> None:
        own = [key for key in self._streams if owner and key[0] == owner]
        if len(own) >= MOST_OF_A_TOKEN:
            del self._streams[own[0]]
        elif len(self._streams) >= MOST_STREAMS:
            self._streams.popitem(last=False)
