"""The queue under huey's SqliteHuey, with fsync=True; enqueue and dequeue without huey's own work for a task."""

from bench.peers.base import Line, Peer


class Huey(Peer):
    name = "huey"
    package = "huey"
    module = "huey"
    how = "SqliteHuey with fsync=True: synchronous=FULL"
    batches = False

    def line(self, queue: str) -> Line:
        return HueyLine(f"{self.directory}/{queue}.sqlite")


class HueyLine(Line):
    def __init__(self, path: str) -> None:
        from huey import SqliteHuey

        self.storage = SqliteHuey(filename=path, fsync=True, strict_fifo=True, timeout=60).storage

    def put(self, count: int) -> None:
        for _ in range(count):
            self.storage.enqueue(self.body)

    def get(self, count: int) -> int:
        for place in range(count):
            if self.storage.dequeue() is None:
                return place
        return count

    def close(self) -> None:
        self.storage.close()
