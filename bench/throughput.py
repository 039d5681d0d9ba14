"""Put and get with 1 KiB bodies, against raw append + fdatasync and SQLite (WAL, synchronous=FULL), as ratios.

Run it on the disk that matters: ``python bench/throughput.py [DIRECTORY]``. The three take turns within one run, one
commit at a time, because machines are noisy and only ratios of interleaved runs mean something.
"""

import argparse
import os
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import spool

BODY = os.urandom(1024)
SIZES = (1, 100, 1000)

Step = Callable[[], None]


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


def interleaved(steps: dict[str, Step], rounds: int) -> dict[str, list[float]]:
    """Seconds of each step in each round, taking turns."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            begun = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - begun)
    return seconds


def report(what: str, size: int, seconds: dict[str, list[float]]) -> None:
    """One line a contender: messages a second (median; 10th and 90th percentile), and ratios of the medians."""
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    for name, times in seconds.items():
        low, *_, high = statistics.quantiles(times, n=10)
        print(
            f"{what:4} {size:5} a commit  {name:13} {size / medians[name]:>11,.0f}/s"
            f"  ({size / high:>9,.0f} to {size / low:>9,.0f})"
            f"   {medians['raw'] / medians[name]:5.2f} x raw  {medians['sqlite'] / medians[name]:5.2f} x SQLite"
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
            ours = Ours(directory, size, "auto")
            contenders: dict[str, Raw | SQLite | Ours] = {
                "raw": Raw(directory, size), "sqlite": SQLite(directory, size), "ours": ours,
            }  # fmt: skip
            if not ours.space._store.disk.ordered:
                print("this file system does not order renames: two flushes a commit; 'ours (1 flush)' is what ext4")
                print("with a journal, xfs and btrfs would need")
                contenders["ours (1 flush)"] = Ours(directory, size, "ordered")
            puts, gets = ({name: getattr(one, what) for name, one in contenders.items()} for what in ("put", "get"))
            # Steady state: SQLite overwrites its log in place by now, and we consumed files from the pool.
            interleaved(puts, rounds)
            interleaved(gets, rounds)
            report("put", size, interleaved(puts, rounds))
            report("get", size, interleaved(gets, rounds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", nargs="?", default=".", help="on the disk to measure; default: here")
    parser.add_argument("--rounds", type=int, default=400, help="commits of each kind and size; default: 400")
    arguments = parser.parse_args()
    measure(arguments.directory, arguments.rounds)


if __name__ == "__main__":
    main()
