"""The limit: append to one file, then fdatasync. A get has no counterpart, so it is compared with the same append. A
transaction and a two-phase commit are also compared with one append."""

import os
from collections.abc import Callable

from bench.peers.base import Line, Peer


class Raw(Peer):
    name = "raw append"
    how = "fdatasync after each append"
    concurrent = False
    get_with = "an append as well"

    def line(self, queue: str) -> Line:
        return RawLine(f"{self.directory}/{queue}")

    def version(self) -> str:
        return "append + fdatasync"


class RawLine(Line):
    def __init__(self, path: str) -> None:
        self.file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def put(self, count: int) -> None:
        os.write(self.file, self.body * count)
        os.fdatasync(self.file)

    def get(self, count: int) -> int:
        self.put(count)
        return count

    def move(self, work: Callable[[bytes], bytes]) -> None:
        work(self.body)
        self.put(1)

    def put_in_two_phases(self) -> None:
        self.put(1)

    def close(self) -> None:
        os.close(self.file)
