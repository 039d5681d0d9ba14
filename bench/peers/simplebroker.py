"""SimpleBroker: a queue in SQLite, durable by its default synchronous=FULL."""

from bench.peers.base import Line, Peer, text_of


class SimpleBroker(Peer):
    name = "SimpleBroker"
    package = "simplebroker"
    module = "simplebroker"
    how = "SQLite in WAL mode, and the default BROKER_SYNC_MODE=FULL"
    batches = False

    def line(self, queue: str) -> Line:
        return SimpleBrokerLine(f"{self.directory}/broker.db", queue)


class SimpleBrokerLine(Line):
    def __init__(self, path: str, queue: str) -> None:
        import simplebroker

        self.queue = simplebroker.Queue(queue, db_path=path, persistent=True)

    def put(self, count: int) -> None:
        for _ in range(count):
            self.queue.write(text_of(self.body))

    def get(self, count: int) -> int:
        for place in range(count):
            if self.queue.read() is None:
                return place
        return count

    def close(self) -> None:
        self.queue.close()
