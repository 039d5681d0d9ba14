"""The cost of the web console: the time to get pages of a large space, and the CPU time of an open console.

    python -m bench.console [--queues 1000] [--messages 200000] [--seconds 60]

A visible page requests its changing part every five seconds, like this program. A hidden page requests nothing.
"""

import argparse
import http.client
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

import spool

_PAGES = ("/", "/?page=5", "/?sort=depth", "/flow", "/activity", "/queues/queue-0000")
_REFRESH_SECONDS, _SAMPLES, _PUT_AT_ONCE = 5.0, 7, 10_000
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def build(path: Path, queues: int, messages: int) -> None:
    """Create a space with all messages in ten of its queues."""
    spool.create(path).close()
    with open(path / "space.toml", "a") as settings:
        settings.write("".join(f"[queues.queue-{number:04}]\n" for number in range(queues)))
    with spool.open(path) as space:
        for first in range(0, messages, _PUT_AT_ONCE):
            queue = f"queue-{first // _PUT_AT_ONCE % 10:04}"
            space.put_many(queue, [b"x" * 200] * min(_PUT_AT_ONCE, messages - first))


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


def fetch(address: str, page: str, *, is_refresh: bool = False) -> float:
    """Return the seconds until the whole answer has arrived."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    begun = time.perf_counter()
    connection.request("GET", page, headers={"X-Fragment": "1"} if is_refresh else {})
    answer = connection.getresponse()
    answer.read()
    seconds = time.perf_counter() - begun
    connection.close()
    assert answer.status == 200, (page, answer.status)
    return seconds


def per_minute(pid: int, seconds: float, address: str = "") -> float:
    """Return the console's CPU seconds per minute. ``address``: the address of a visible page, if any."""
    before, begun = cpu_seconds(pid), time.monotonic()
    while (left := begun + seconds - time.monotonic()) > 0:
        if address:
            fetch(address, "/", is_refresh=True)
        time.sleep(min(_REFRESH_SECONDS, max(0.0, left)))
    return (cpu_seconds(pid) - before) / (time.monotonic() - begun) * 60


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost of the web console.")
    parser.add_argument("--queues", type=int, default=1_000)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long each state of the console is watched")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        path = Path(made) / "space"
        build(path, asked.queues, asked.messages)
        code = "from xaspool_scripts.start import admin; admin()"
        words = [sys.executable, "-c", code, "-s", str(path), "console", "--listen", "127.0.0.1:0", "--json"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            address = json.loads(process.stdout.readline())["address"]
            print(f"{asked.queues:,} queues, {asked.messages:,} messages")
            for page in _PAGES:
                times = []
                for _ in range(_SAMPLES):
                    time.sleep(1.1)  # the metrics are computed again
                    times.append(fetch(address, page))
                print(f"{page:22} median {statistics.median(times) * 1000:7.1f} ms, worst {max(times) * 1000:7.1f} ms")
            hidden = per_minute(process.pid, asked.seconds)
            visible = per_minute(process.pid, asked.seconds, address)
            for state, used in (("no visible page", hidden), ("a visible overview", visible)):
                print(f"{state:22} {used:.2f} CPU seconds a minute, {used / 0.6:.2f} % of a core")
            process.send_signal(signal.SIGTERM)


if __name__ == "__main__":
    main()
