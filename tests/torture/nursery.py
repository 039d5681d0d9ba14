"""Brings up workers in milliseconds: a process that has imported everything once, opened nothing, and forks.

Run as ``python -m tests.torture.nursery FD``, where FD is a socket. Each request is a JSON list, the worker's
arguments, with its standard input, output and error; the answer is its pid.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from tests.torture import worker

ROOT = Path(__file__).parents[2]
_MAX_REQUEST_BYTES = 64 << 10


class Child:
    """A worker, as its parent sees it: ``stdin`` and ``stdout`` are text files."""

    def __init__(self, pid: int, to_child: int, from_child: int) -> None:
        self.stdin = os.fdopen(to_child, "w", buffering=1)
        self.stdout = os.fdopen(from_child, "r")
        self._pid = pid
        self._handle = os.pidfd_open(pid)

    def kill(self) -> None:
        """SIGKILL; it is gone, with its locks, when this returns."""
        try:
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        except ProcessLookupError:
            return  # it ended before
        assert self.wait(60.0)

    def stop(self) -> None:
        """SIGSTOP: it neither goes on nor dies, and keeps its locks."""
        signal.pidfd_send_signal(self._handle, signal.SIGSTOP)

    def await_stop(self) -> None:
        """Wait until the process has finished its system call, however long that takes."""
        while "T (stopped)" not in Path(f"/proc/{self._pid}/status").read_text():
            time.sleep(0.001)  # only the parent, the nursery, is notified

    def go_on(self) -> None:
        signal.pidfd_send_signal(self._handle, signal.SIGCONT)

    def wait(self, seconds: float) -> bool:
        """Return whether the process ended within that time."""
        return bool(select.select([self._handle], [], [], seconds)[0])

    def close(self) -> None:
        for file in (self.stdin, self.stdout):
            with suppress(BrokenPipeError):
                file.close()
        os.close(self._handle)


class Nursery:
    """The parent's end."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "tests.torture.nursery", str(theirs.fileno())]
            self._process = subprocess.Popen(command, cwd=ROOT, pass_fds=(theirs.fileno(),))

    def bear(self, arguments: list[str], error_log: str) -> Child:
        """A worker with these arguments."""
        child_in, to_child = os.pipe()
        from_child, child_out = os.pipe()
        errors = os.open(error_log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            socket.send_fds(self._socket, [json.dumps(arguments).encode()], [child_in, child_out, errors])
            return Child(int(self._socket.recv(100)), to_child, from_child)
        finally:
            for handle in (child_in, child_out, errors):
                os.close(handle)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


def main(connection: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for dead children
    while True:
        request, handles, _, _ = socket.recv_fds(connection, _MAX_REQUEST_BYTES, 3)
        if not request:
            return
        pid = os.fork()
        if pid == 0:
            connection.close()
            live(json.loads(request), handles)
        for handle in handles:
            os.close(handle)
        connection.send(str(pid).encode())


def live(arguments: list[str], handles: list[int]) -> NoReturn:
    """The life of the forked child."""
    for place, handle in enumerate(handles):
        os.dup2(handle, place)
        os.close(handle)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w", buffering=1)
    try:
        worker.main(*arguments)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    print("bye")
    os._exit(0)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
