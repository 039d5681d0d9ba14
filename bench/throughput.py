"""Put and get with 1 KiB bodies, against raw append + fdatasync and SQLite (WAL, synchronous=FULL), as ratios.

Run it on the disk that matters: ``python bench/throughput.py [DIRECTORY]``. All take turns in one run, one commit at
a time, because machines are noisy and only ratios of interleaved runs mean something. Ours is named by how it flushes:
"strict" twice a commit, "ordered" once; without a star as the file system asks for. Starred "ordered" only shows what
one flush would cost here: a power cut on this file system could lose what it acknowledged.
"""

import argparse
import os
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

import spool

BODY = os.urandom(1024)
SIZES = (1, 100, 1000)

# Commits that wait in the queue all the time: a queue that is always empty stays in SQLite's cache.
BACKLOG = 50
# Until SQLite overwrites its log in place, and all our files come from the pool.
WARM_UP_ROUNDS = 300


class Raw:
    """The limit: append to one file, fdatasync. A get has no counterpart; it is measured against appending the same."""

    def __init__(self, directory: str, size: int) -> None:
        self.file = os.open(f"{directory}/raw", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        self.data = BODY * size

    def put(self) -> None:
        os.write(self.file, self.data)
        os.fdatasync(self.file)

    get = put


class SQLite:
    """A table as a queue: insert and delete in order of the row id, one transaction a commit."""

    def __init__(self, directory: str, size: int) -> None:
        self.size = size
        self.db = sqlite3.connect(f"{directory}/queue.sqlite", isolation_level=None)
        self.db.execute("pragma journal_mode=wal")
        self.db.execute("pragma synchronous=full")
        self.db.execute("create table queue (id integer primary key autoincrement, body blob)")

    def put(self) -> None:
        self.db.execute("begin immediate")
        self.db.executemany("insert into queue (body) values (?)", [(BODY,)] * self.size)
        self.db.execute("commit")

    def get(self) -> None:
        self.db.execute("begin immediate")
        rows = self.db.execute("select id, body from queue order by id limit ?", (self.size,)).fetchall()
        self.db.execute("delete from queue where id <= ?", (rows[-1][0],))
        self.db.execute("commit")
        assert len(rows) == self.size


class Ours:
    """A queue space, with the flushing that its file system asks for, or as told."""

    def __init__(self, directory: str, size: int, flush: str) -> None:
        self.size = size
        self.space = spool.create(f"{directory}/space-{flush}", flush=flush)
        self.space.create_queue("queue")
        self.bodies = [BODY] * size

    def put(self) -> None:
        if self.size == 1:
            self.space.put("queue", BODY)
        else:
            self.space.put_many("queue", self.bodies)

    def get(self) -> None:
        found = self.space.get_many("queue", self.size)
        assert len(found) == self.size
        assert found[0].body == BODY


Contender = Raw | SQLite | Ours


def interleaved(contenders: dict[str, Contender], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Seconds of each put and each get, all taking turns; a commit is put, and the oldest one is got."""
    seconds: dict[str, dict[str, list[float]]] = {what: {name: [] for name in contenders} for what in ("put", "get")}
    for _ in range(rounds):
        for what, found in seconds.items():
            for name, contender in contenders.items():
                step = getattr(contender, what)
                begun = time.perf_counter()
                step()
                found[name].append(time.perf_counter() - begun)
    return seconds


def report(what: str, size: int, seconds: dict[str, list[float]]) -> None:
    """One line a contender: messages a second by the median, and ratios: of the medians, and of the totals, which
    also contain what is done now and then (checkpoints, reclaim)."""
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    totals = {name: sum(times) for name, times in seconds.items()}
    for name, times in seconds.items():
        low, *_, high = statistics.quantiles(times, n=10)
        print(
            f"{what:4} {size:5} a commit  {name:14} {size / medians[name]:>9,.0f}/s"
            f" ({size / high:>7,.0f} to {size / low:>7,.0f})"
            f"  x raw {medians['raw'] / medians[name]:5.2f} (totals {totals['raw'] / totals[name]:5.2f})"
            f"  x SQLite {medians['sqlite'] / medians[name]:5.2f} (totals {totals['sqlite'] / totals[name]:5.2f})"
        )


@contextmanager
def scratch(where: str) -> Iterator[str]:
    directory = tempfile.mkdtemp(prefix="bench-", dir=where)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def measure(where: str, rounds: int) -> None:
    for size in SIZES:
        with scratch(where) as directory:
            contenders: dict[str, Contender] = {"raw": Raw(directory, size), "sqlite": SQLite(directory, size)}
            ours = Ours(directory, size, "auto")
            if ours.space._store.disk.ordered:
                contenders["ours, ordered"] = ours
            else:
                contenders["ours, strict"] = ours
                contenders["*ours, ordered"] = Ours(directory, size, "ordered")
            for contender in contenders.values():
                for _ in range(BACKLOG):
                    contender.put()
            interleaved(contenders, WARM_UP_ROUNDS)
            for what, seconds in interleaved(contenders, rounds).items():
                report(what, size, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", nargs="?", default=".", help="on the disk to measure; default: here")
    parser.add_argument("--rounds", type=int, default=600, help="commits of each kind and size; default: 600")
    arguments = parser.parse_args()
    measure(arguments.directory, arguments.rounds)


if __name__ == "__main__":
    main()
