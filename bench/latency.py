"""How long a message takes from a put in one process to a waiting get in another, and what waiting costs.

Run it as ``python -m bench.latency [directory]``; the directory says which disk is measured. The machine should have
nothing else to do: what is measured is an idle system.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

import spool

PUTS = 300
PAUSE_SECONDS = 0.02
IDLE_SECONDS = 10.0

_CONSUMER = """
import sys, time
import spool
with spool.open(sys.argv[1]) as space:
    print("waits", flush=True)
    while (message := space.get("queue", timeout=None)).body != b"end":
        print(time.monotonic() - float(message.body), flush=True)
"""


class Figures(NamedTuple):
    """``p50`` and ``p99`` in seconds, from before the put to behind the get; ``idle_share``: of one core, by a process
    that waits for what does not come."""

    p50: float
    p99: float
    idle_share: float


def measure(directory: str, puts: int = PUTS, idle_seconds: float = IDLE_SECONDS) -> Figures:
    """One producer, one waiting consumer, in a new space in that directory."""
    with tempfile.TemporaryDirectory(dir=directory) as scratch, spool.create(f"{scratch}/space") as space:
        space.create_queue("queue")
        command = [sys.executable, "-c", _CONSUMER, space.path]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as consumer:
            assert consumer.stdout is not None
            consumer.stdout.readline()
            seconds = []
            for _ in range(puts):
                time.sleep(PAUSE_SECONDS)  # the consumer waits again, and has done so for a while
                space.put("queue", repr(time.monotonic()).encode())
                seconds.append(float(consumer.stdout.readline()))
            time.sleep(PAUSE_SECONDS)
            before = _processor_seconds(consumer.pid)
            time.sleep(idle_seconds)
            idle_share = (_processor_seconds(consumer.pid) - before) / idle_seconds
            space.put("queue", b"end")
    return Figures(statistics.median(seconds), statistics.quantiles(seconds, n=100)[98], idle_share)


def _processor_seconds(pid: int) -> float:
    """User and system time so far (proc(5), ``stat``)."""
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", nargs="?", default=".", help="on the disk to measure; default: here")
    found = measure(parser.parse_args().directory)
    print(f"put to get in another process: p50 {1e3 * found.p50:.2f} ms, p99 {1e3 * found.p99:.2f} ms")
    print(f"waiting process, idle: {100 * found.idle_share:.2f} % of a core")


if __name__ == "__main__":
    main()
