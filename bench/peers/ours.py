"""A queue space, flushing as its file system asks for; and, on request, as if its file system ordered renames."""

from contextlib import suppress
from typing import ClassVar, Literal

import spool
from bench.peers.base import BODY, Line, Peer, release


class Ours(Peer):
    name = "xaspool"
    how = "flushes each commit as the file system needs it"
    shared = True
    flush: ClassVar[Literal["auto", "ordered"]] = "auto"

    def line(self, queue: str) -> Line:
        return OurLine(f"{self.directory}/{queue}", queue, self.flush)

    def version(self) -> str:
        return release("xaspool")


class OursOrdered(Ours):
    """What it would cost on ext4 with a journal, xfs or btrfs; elsewhere a power cut may take what it acknowledged."""

    name = "xaspool ordered"
    durable = False
    how = "one flush a commit, whatever the file system: durable only on an ordered one"
    on_request = True
    flush = "ordered"


class OurLine(Line):
    """A space of its own for each queue, so that no case inherits what another left."""

    def __init__(self, path: str, queue: str, flush: Literal["auto", "ordered"]) -> None:
        with suppress(spool.SpaceExists), spool.create(path, flush=flush) as space:
            space.create_queue(queue)
        self.space, self.queue = spool.open(path), queue

    def put(self, count: int) -> None:
        if count == 1:
            self.space.put(self.queue, BODY)
        else:
            self.space.put_many(self.queue, [BODY] * count)

    def get(self, count: int) -> int:
        try:
            found = self.space.get_many(self.queue, count)
        except spool.Empty:
            return 0
        assert found[0].body == BODY
        return len(found)

    def get_waiting(self) -> None:
        self.space.get(self.queue, timeout=None)

    def close(self) -> None:
        self.space.close()
