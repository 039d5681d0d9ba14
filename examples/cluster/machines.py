"""Machines of a cluster, made of this machine: each has a network and file systems of its own (namespaces of Linux).

A machine has an address on a private bridge. It sees the files of this machine, but an empty directory instead of a
hidden one. Only root can make machines.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

# In its own mount namespace, a machine has an empty file system at the hidden directory ($0), and its own name ($1).
_BEGIN = 'mount -t tmpfs tmpfs "$0" && hostname "$1" && shift && exec "$@"'


class Machines:
    """Two machines, and the bridge between them and this machine. ``address``: that of this machine on the bridge.

    Args:
        hidden: the directory whose content the machines do not see.
        names: the names of the machines.
    """

    def __init__(self, hidden: Path, names: Sequence[str] = ("worker-1", "worker-2")) -> None:
        self.hidden = hidden
        self.names = names
        number = os.getpid() % 250 + 1
        self._tag = f"xs{os.getpid()}"
        self._network = f"10.213.{number}"
        self.address = f"{self._network}.1"

    def address_of(self, name: str) -> str:
        return f"{self._network}.{self.names.index(name) + 2}"

    def __enter__(self) -> Self:
        try:
            bridge = self._tag
            _ip("link", "add", bridge, "type", "bridge")
            _ip("addr", "add", f"{self.address}/24", "dev", bridge)
            _ip("link", "set", bridge, "up")
            for name in self.names:
                space, cable = self._namespace(name), self._cable(name)
                _ip("netns", "add", space)
                _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", space)
                _ip("link", "set", cable, "master", bridge, "up")
                _ip("-n", space, "addr", "add", f"{self.address_of(name)}/24", "dev", "eth0")
                for link in ("eth0", "lo"):
                    _ip("-n", space, "link", "set", link, "up")
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._remove()

    def start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> "subprocess.Popen[bytes]":
        """Start a program on a machine. The program's output goes to the end of a file."""
        before = ["ip", "netns", "exec", self._namespace(name), "unshare", "--mount", "--uts"]
        begin = ["sh", "-c", _BEGIN, str(self.hidden), name]
        with log.open("ab") as output:
            return subprocess.Popen([*before, *begin, *command], env=environment, stdout=output, stderr=output)

    def connect(self, name: str, connected: bool = True) -> None:
        """Connect a machine's cable, or pull it out."""
        _ip("link", "set", self._cable(name), "up" if connected else "down")

    def processes(self, name: str) -> list[int]:
        """Return the ids of all processes on a machine."""
        return [int(line) for line in _ip("netns", "pids", self._namespace(name)).split()]

    def _namespace(self, name: str) -> str:
        return f"{self._tag}-{name}"

    def _cable(self, name: str) -> str:
        return f"{self._tag}-{self.names.index(name)}"

    def _remove(self) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "del", self._namespace(name)], stderr=subprocess.DEVNULL, check=False)
        subprocess.run(["ip", "link", "del", self._tag], stderr=subprocess.DEVNULL, check=False)


def _ip(*words: str) -> str:
    """Run ``ip``; return its output. OSError with its reason if it fails."""
    try:
        return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout
    except subprocess.CalledProcessError as error:
        raise OSError(f"ip {' '.join(words)}: {error.stderr.strip()}") from None
