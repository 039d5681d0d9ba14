"""Measure large numbers of things: ``python -m bench.many queues|waiting|dropped|large|doubt [NUMBER]``.

Each figure is one run in an empty directory. The things are 10,000 queues, 200 processes that wait for one queue,
20,000 dropped files, a message of 2.5 GiB, or 3,000 branches in doubt.
"""

import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import spool
import xa
from spool.intake import Intake, IntakeCounts

GIB = 1 << 30


def timed(what: str, act: Callable[[], object]) -> None:
    begun = time.perf_counter()
    act()
    print(f"{what}: {time.perf_counter() - begun:.2f} s")


def queues(path: Path, number: int) -> None:
    with spool.create(path) as space:
        names = [f"q{place}" for place in range(number)]
        timed(f"create {number:,} queues at once", lambda: space.create_queues(names, create_missing=True))
        timed("create one more", lambda: space.create_queue("more"))
        timed("put into one of them", lambda: space.put(names[-1], "x"))
    timed("open the space", lambda: spool.open(path).close())


def waiting(path: Path, number: int) -> None:
    processes = multiprocessing.get_context("fork")
    ready, got = processes.Semaphore(0), processes.Semaphore(0)

    def wait() -> None:
        with spool.open(path) as space:
            ready.release()
            space.get("orders", timeout=None)
            got.release()

    with spool.create(path) as space:
        space.create_queue("orders")
    waiters = [processes.Process(target=wait, daemon=True) for _ in range(number)]

    def start() -> None:
        for one in waiters:
            one.start()
        _acquire(ready, number)

    timed(f"{number} processes open the space", start)
    time.sleep(2)
    with spool.open(path) as space:
        begun = time.perf_counter()
        for place in range(number):
            space.put("orders", place)
        print(f"put {number} messages, one by one: {time.perf_counter() - begun:.2f} s")
        _acquire(got, number)
        print(f"from the first put until the last get: {time.perf_counter() - begun:.2f} s")
    for one in waiters:
        one.join()


def _acquire(semaphore: object, number: int) -> None:
    for _ in range(number):
        semaphore.acquire()  # type: ignore[attr-defined]


def dropped(path: Path, number: int) -> None:
    with spool.create(path) as space:
        space.create_queue("orders")
        _drop(path / "drop" / "orders", number)
        begun, first = time.perf_counter(), list[float]()

        def note(_: IntakeCounts) -> None:
            if not first:
                first.append(time.perf_counter() - begun)

        Intake(space, note).run(once=True)
        taken = time.perf_counter() - begun
        print(f"{number:,} dropped files: the first after {first[0]:.2f} s, all after {taken:.1f} s")
    bare = _take_bare(path / "bare", number)
    print(f"a bare loop: {bare:.1f} s, so the intake takes {taken / bare:.2f} times as long")


def _drop(folder: Path, number: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for place in range(number):
        (folder / f"{place}.txt").write_text("x")
    os.sync()


def _take_bare(path: Path, number: int) -> float:
    """Rename, read, log and unlink dropped files, with a flush of the log for each hundred. Return the seconds."""
    dropped, taken = path / "dropped", path / "taken"
    _drop(dropped, number)
    taken.mkdir()
    begun, names = time.perf_counter(), os.listdir(dropped)
    with (path / "log").open("ab", buffering=0) as log:
        for first in range(0, number, 100):
            for name in names[first : first + 100]:
                os.rename(dropped / name, taken / name)
                log.write((taken / name).read_bytes())
            os.fdatasync(log.fileno())
            for name in names[first : first + 100]:
                os.unlink(taken / name)
    return time.perf_counter() - begun


def large(path: Path, size: int) -> None:
    with spool.create(path, max_body_bytes=4 * GIB - 1) as space:
        space.create_queue("orders")
        body = bytes(size)
        timed(f"put {size / GIB:.1f} GiB", lambda: space.put("orders", body))
        timed("get it", lambda: space.get("orders"))


def doubt(path: Path, number: int) -> None:
    with spool.create(path) as space:
        space.create_queue("orders")
        manager = xa.ResourceManager(space)

        def prepare(first: int) -> None:
            for place in range(first, number, 8):
                xid = xa.Xid(7, b"%d" % place, b"")
                manager.start(xid)
                space.put("orders", place)
                manager.end(xid)
                manager.prepare(xid)

        threads = [Thread(target=prepare, args=(first,)) for first in range(8)]

        def prepare_all() -> None:
            for one in threads:
                one.start()
            for one in threads:
                one.join()

        timed(f"prepare {number:,} branches", prepare_all)
        timed("list them", manager.recover)
    timed("open the space", lambda: spool.open(path).close())


FIGURES: dict[str, tuple[Callable[[Path, int], None], int]] = {
    "queues": (queues, 10_000),
    "waiting": (waiting, 200),
    "dropped": (dropped, 20_000),
    "large": (large, 5 * GIB // 2),
    "doubt": (doubt, 3_000),
}

if __name__ == "__main__":
    figure, usual = FIGURES[sys.argv[1]]
    with tempfile.TemporaryDirectory() as directory:
        figure(Path(directory) / "space", int(sys.argv[2]) if len(sys.argv) > 2 else usual)
