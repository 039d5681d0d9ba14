"""diskcache.Deque with synchronous=2."""

from bench.peers.base import Line, Peer


class DiskCache(Peer):
    name = "diskcache"
    package = "diskcache"
    module = "diskcache"
    how = "Deque over a cache with sqlite_synchronous=2 (its default is 1: not durable)"

    def line(self, queue: str) -> Line:
        return DiskCacheLine(f"{self.directory}/{queue}")


class DiskCacheLine(Line):
    def __init__(self, path: str) -> None:
        import diskcache

        self.cache = diskcache.Cache(path, eviction_policy="none", sqlite_synchronous=2, timeout=60)
        self.deque = diskcache.Deque.fromcache(self.cache)

    def put(self, count: int) -> None:
        if count == 1:
            self.deque.append(self.body)
            return
        with self.deque.transact():
            for _ in range(count):
                self.deque.append(self.body)

    def get(self, count: int) -> int:
        if count == 1:
            try:
                self.deque.popleft()
            except IndexError:
                return 0
            return 1
        with self.deque.transact():
            taken = min(count, len(self.deque))
            for _ in range(taken):
                self.deque.popleft()
        return taken

    def close(self) -> None:
        self.cache.close()
