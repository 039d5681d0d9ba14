"""``python -m bench.ten_million``: put ten million messages, count them, then take them, in little memory.

One process puts the messages, a second process counts them, and a third process takes them. Each process runs under
RLIMIT_DATA and, if the user may create one, in a cgroup with ``memory.max``. Each body begins with a sequence number.
So the third process detects a lost, doubled or misplaced message at once and in bounded memory.
"""

import argparse
import multiprocessing
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

import spool

_QUEUE = "queue"
_BODY_BYTES = 1024
_PADDING = os.urandom(_BODY_BYTES - 8)
_SAY_EVERY_SECONDS = 5.0
_CGROUPS = "/sys/fs/cgroup"


def put(path: str, messages: int, a_commit: int) -> None:
    """Put all messages, numbered from 0."""
    with spool.create(path) as space:
        space.create_queue(_QUEUE)
        for first in _progress("put", messages, a_commit):
            count = min(a_commit, messages - first)
            space.put_many(_QUEUE, [n.to_bytes(8) + _PADDING for n in range(first, first + count)])


def count(path: str, messages: int, a_commit: int) -> None:
    """Check that exactly all messages are ready."""
    with spool.open(path) as space:
        found = space.stats(_QUEUE)
    if (found.ready, found.enqueued, found.dequeued) != (messages, messages, 0):
        raise AssertionError(f"{messages:,} were put, and now there are {found}")


def take(path: str, messages: int, a_commit: int) -> None:
    """Take all messages, in order, each once, and check that none is left."""
    expected = 0
    with spool.open(path) as space:
        for first in _progress("got", messages, a_commit):
            while expected < min(first + a_commit, messages):
                for message in space.get_many(_QUEUE, min(a_commit, messages - expected)):
                    number = int.from_bytes(message.body[:8])
                    if number != expected or len(message.body) != _BODY_BYTES:
                        raise AssertionError(f"message {expected:,} was expected, and {number:,} came")
                    expected += 1
        with suppress(spool.Empty):
            raise AssertionError(f"one more came than were put: {space.get(_QUEUE).id}")


def _progress(what: str, messages: int, a_commit: int) -> Iterator[int]:
    """Yield the first number of each commit, and print a progress line every few seconds."""
    begun = said = time.monotonic()
    for first in range(0, messages, a_commit):
        yield first
        now = time.monotonic()
        if now - said >= _SAY_EVERY_SECONDS:
            said, done = now, first + a_commit
            text = f"{what} {done:>12,} of {messages:,}, {done / (now - begun):>9,.0f}/s, {_resident():,.0f} MB"
            print(text, file=sys.stderr, flush=True)


def _resident() -> float:
    return _status("VmRSS")


def _status(field: str) -> float:
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(field)) / 1000


# -- each phase in a process of its own, limited ----------------------------------------------------------------------


def in_limits(phase: Callable[[str, int, int], None], limit_bytes: int, *arguments: Any) -> tuple[float, float]:
    """Run a phase; return its seconds and its peak memory in MB. RuntimeError if the phase failed."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    with cgroup(limit_bytes) as group:
        process = spawn.Process(target=_limited, args=(phase, limit_bytes, group, there, arguments))
        begun = time.monotonic()
        process.start()
        there.close()
        try:
            peak = here.recv()
        except EOFError:
            peak = None
        process.join()
    if peak is None or process.exitcode:
        raise RuntimeError(f"{phase.__name__} failed, with exit status {process.exitcode}: what it said is above")
    return time.monotonic() - begun, peak


def _limited(
    phase: Callable[..., None], limit_bytes: int, group: str | None, back: Connection, arguments: tuple[Any, ...]
) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))
    if group is not None:
        with open(f"{group}/cgroup.procs", "w", encoding="ascii") as file:
            file.write("0\n")
    phase(*arguments)
    back.send(_status("VmHWM"))


@contextmanager
def cgroup(limit_bytes: int) -> Iterator[str | None]:
    """Yield a cgroup (v2, or v1's memory controller) with this limit; None if the user may not create a cgroup."""
    for parent, limit in ((_CGROUPS, "memory.max"), (f"{_CGROUPS}/memory", "memory.limit_in_bytes")):
        path = f"{parent}/xaspool-bench-{os.getpid()}"
        try:
            os.mkdir(path)
        except OSError:
            continue
        try:
            if os.path.exists(f"{path}/{limit}"):
                with open(f"{path}/{limit}", "w", encoding="ascii") as file:
                    file.write(f"{limit_bytes}\n")
                yield path
                return
        finally:
            os.rmdir(path)
    yield None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.ten_million", description=__doc__)
    parser.add_argument("--directory", default=".", help="on the disk to use; default: here")
    parser.add_argument("--messages", type=int, default=10_000_000, help="default: 10,000,000, which take 11 GB")
    parser.add_argument("--a-commit", type=int, default=1_000, help="messages a commit; default: 1,000")
    parser.add_argument("--limit-mb", type=int, default=512, help="memory of each process; default: 512")
    asked = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="xaspool-bench-", dir=os.path.abspath(asked.directory))
    arguments = f"{directory}/space", asked.messages, asked.a_commit
    said = []
    with cgroup(asked.limit_mb << 20) as group:
        how = "RLIMIT_DATA" if group is None else "RLIMIT_DATA and a cgroup"
    try:
        for phase in (put, count, take):
            seconds, peak = in_limits(phase, asked.limit_mb << 20, *arguments)
            said.append(f"{phase.__name__} {seconds:,.0f} s, {peak:,.0f} MB at most")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(
        f"{asked.messages:,} messages of 1 KiB, {asked.a_commit:,} a commit, {asked.limit_mb} MiB a process ({how}): "
        f"all in, all present, all out, none lost, doubled or out of order. {'; '.join(said)}"
    )


if __name__ == "__main__":
    main()
