"""Count the flushes of each contender with strace, while the contender puts and gets."""

import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from multiprocessing.connection import Connection

from bench.peers.base import Peer
from bench.setting import Bench

_COMMITS = 50
_ATTACHED_SECONDS = 5.0
_CALLS = "fsync,fdatasync,sync_file_range,syncfs,sync,msync"


def count_flushes(bench: Bench) -> list[tuple[str, ...]]:
    """Return the table of contenders. A dash means that strace is not installed, or may not trace."""
    rows: list[tuple[str, ...]] = []
    for name, peer in bench.peers.items():
        flushes = _flushes(peer)
        durable = "yes" if peer.durable else "**no**"
        gets = f"{flushes[1]} ({peer.get_with})" if peer.get_with else flushes[1]
        rows.append((name, peer.version(), durable, peer.how, flushes[0], gets))
    return rows


def _flushes(peer: Peer) -> tuple[str, str]:
    if shutil.which("strace") is None:
        return "–", "–"
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    worker = spawn.Process(target=_work, args=(peer, there), daemon=True)
    worker.start()
    try:
        here.recv()
        counts = [_count(here, [worker.pid or 0, *peer.servers()], what) for what in ("put", "get")]
    finally:
        here.send("end")
        worker.join()
    return tuple("–" if count is None else f"{count / _COMMITS:.1f}" for count in counts)  # type: ignore[return-value]


def _count(worker: Connection, pids: list[int], what: str) -> int | None:
    with tempfile.NamedTemporaryFile("r") as found:
        command = ["strace", "-f", "-e", f"trace={_CALLS}", "-o", found.name]
        command += [word for pid in pids for word in ("-p", str(pid))]
        strace = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        attached = _wait_until_traced(pids, strace)
        worker.send(what)
        worker.recv()
        strace.send_signal(signal.SIGINT)
        strace.wait()
        # An interrupted call has two lines; only the first line matches this pattern.
        calls = sum(1 for line in found if re.match(r"\d+ +[a-z_]+\(", line))
    return calls if attached else None


def _wait_until_traced(pids: list[int], strace: "subprocess.Popen[bytes]") -> bool:
    """Return True when every process has a tracer, and False if strace may not trace."""
    deadline = time.monotonic() + _ATTACHED_SECONDS
    while time.monotonic() < deadline and strace.poll() is None:
        if all(_traced(pid) for pid in pids):
            return True
        time.sleep(0.01)
    return False


def _traced(pid: int) -> bool:
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return True  # the process has ended
    for task in tasks:
        try:
            with open(f"/proc/{pid}/task/{task}/status", encoding="ascii", errors="replace") as file:
                if "TracerPid:\t0\n" in file.read():
                    return False
        except OSError:
            continue
    return True


def _work(peer: Peer, orders: Connection) -> None:
    line = peer.line("flushes")
    for _ in range(5):
        line.put(1)
        line.get(1)
    orders.send("ready")
    while (what := orders.recv()) != "end":
        for _ in range(_COMMITS):
            getattr(line, what)(1)
        orders.send("done")
    line.close()
