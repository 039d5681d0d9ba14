"""persist-queue's SQLiteAckQueue: a get and its acknowledgement are two commits."""

from bench.peers.base import Line, Peer

_CLEAR_EVERY = 500


class PersistQueue(Peer):
    name = "persist-queue"
    package = "persist-queue"
    module = "persistqueue"
    how = "SQLiteAckQueue: WAL, and SQLite's default synchronous=FULL"
    batches = False
    concurrent = False
    get_with = "two commits: taken, acknowledged"

    def line(self, queue: str) -> Line:
        return PersistQueueLine(f"{self.directory}/{queue}")


class PersistQueueLine(Line):
    def __init__(self, path: str) -> None:
        import persistqueue

        self.queue = persistqueue.SQLiteAckQueue(path, multithreading=True)
        self.taken = 0

    def put(self, count: int) -> None:
        for _ in range(count):
            self.queue.put(self.body)

    def get(self, count: int) -> int:
        import persistqueue

        for place in range(count):
            try:
                self.queue.ack(self.queue.get(block=False))
            except persistqueue.Empty:
                return place
            self.taken += 1
            if self.taken % _CLEAR_EVERY == 0:
                self.queue.clear_acked_data(max_delete=_CLEAR_EVERY, keep_latest=0)
        return count

    def close(self) -> None:
        self.queue.close()
