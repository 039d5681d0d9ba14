"""Block devices in user space: nbdkit serves one, nbdfuse shows it as a file, and a loop device makes it a disk."""

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from tests.filesystems.volume import run

PROGRAMS = ("nbdkit", "nbdfuse", "findmnt")
_SECONDS = 20.0


class Device:
    """The two processes of a device. ``file``: the block device as a file, which can be formatted and mounted."""

    def __init__(self, directory: Path, arguments: Sequence[str]) -> None:
        self.file = directory / "device"
        self._socket = directory / "socket"
        self._arguments = arguments
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self.file.touch()
        try:
            self._begin("nbdkit", "-f", "-U", str(self._socket), *self._arguments)
            self._await(self._socket.exists, "nbdkit makes no socket")
            self._begin("nbdfuse", str(self.file), f"nbd+unix:///?socket={self._socket}")
            self._await(lambda: self.file.stat().st_size > 0, "nbdfuse shows no device")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _begin(self, *command: str) -> None:
        self._processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL))

    def _await(self, ready: Callable[[], bool], otherwise: str) -> None:
        until = time.monotonic() + _SECONDS
        while not ready():
            assert time.monotonic() < until, otherwise
            assert all(process.poll() is None for process in self._processes), otherwise
            time.sleep(0.01)  # neither program says when it is ready

    def __exit__(self, *_: object) -> None:
        if os.path.ismount(self.file):
            run("umount", str(self.file), allowed=(0, 1, 32))
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._socket.unlink(missing_ok=True)
