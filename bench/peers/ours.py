"""A queue space, with the flushes that its file system needs."""

import itertools
import os
from collections.abc import Callable
from contextlib import suppress

import spool
import xa
from bench.peers.base import Line, Peer


class Ours(Peer):
    name = "xaspool"
    package = "xaspool"
    how = "flushes each commit as the file system needs it"
    transactions = True
    two_phase = True
    shared = True

    def line(self, queue: str) -> Line:
        return OurLine(f"{self.directory}/{queue}", queue)


class OurLine(Line):
    """A separate space for each queue, so that no case finds messages of another case."""

    def __init__(self, path: str, queue: str) -> None:
        with suppress(spool.SpaceExists), spool.create(path) as space:
            space.create_queue(queue)
        self.space, self.queue = spool.open(path), queue
        self.manager, self.run, self.branches = xa.ResourceManager(self.space), os.urandom(8), itertools.count()

    def put(self, count: int) -> None:
        if count == 1:
            self.space.put(self.queue, self.body)
        else:
            self.space.put_many(self.queue, [self.body] * count)

    def get(self, count: int) -> int:
        try:
            found = self.space.get_many(self.queue, count)
        except spool.Empty:
            return 0
        return len(found)

    def put_each(self, count: int) -> None:
        with self.space.transaction() as transaction:
            for _ in range(count):
                transaction.put(self.queue, self.body)

    def get_each(self, count: int) -> int:
        with self.space.transaction() as transaction:
            for _ in range(count):
                transaction.get(self.queue)
        return count

    def move(self, work: Callable[[bytes], bytes]) -> None:
        with self.space.transaction() as transaction:
            transaction.put(self.queue, work(transaction.get(self.queue).body))

    def put_in_two_phases(self) -> None:
        xid = xa.Xid(1, self.run, b"%d" % next(self.branches))
        self.manager.start(xid)
        self.space.put(self.queue, self.body)
        self.manager.end(xid)
        self.manager.prepare(xid)
        self.manager.commit(xid)

    def get_waiting(self) -> None:
        self.space.get(self.queue, timeout=None)

    def close(self) -> None:
        self.space.close()
