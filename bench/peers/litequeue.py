"""litequeue: it always uses synchronous=NORMAL, so a commit is in the log, but not on the disk."""

from bench.peers.base import Line, Peer, text_of


class LiteQueue(Peer):
    name = "litequeue"
    package = "litequeue"
    module = "litequeue"
    durable = False
    how = "sets synchronous=NORMAL: no flush at a commit, only at checkpoints"
    batches = False
    concurrent = False
    get_with = "two commits: taken, done"

    def line(self, queue: str) -> Line:
        return LiteQueueLine(f"{self.directory}/{queue}.sqlite")


class LiteQueueLine(Line):
    def __init__(self, path: str) -> None:
        import litequeue

        self.queue = litequeue.LiteQueue(path, timeout=60)
        self.taken = 0

    def put(self, count: int) -> None:
        for _ in range(count):
            self.queue.put(text_of(self.body))

    def get(self, count: int) -> int:
        for place in range(count):
            message = self.queue.pop()
            if message is None:
                return place
            self.queue.done(message.message_id)
            self.taken += 1
            if self.taken % 500 == 0:
                self.queue.prune()
        return count

    def close(self) -> None:
        self.queue.close()
