"""A process under strace whose children are killed on entering the n-th call of one kind; the call is not made.

``strace -e inject=…:signal=KILL:when=N`` counts each kind of call in each process by itself, and N is fixed when
strace starts, which takes most of a second. So N is one large number, and a child makes so many calls of that kind in
vain, that it has n left. Run as ``python -m tests.kills.scaffold FD``, where FD is a socket: each request is a JSON
list, the victim's name, its arguments, the call and n; the answer is how it ended.
"""

import ctypes
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from tests.kills import claims, session

ROOT = Path(__file__).parents[2]


_libc = ctypes.CDLL(None)
_NOWHERE = b""
_CLOSED = (1 << 20) - 1  # a descriptor that no process has open


def _in_vain(call: Callable[[], object]) -> Callable[[], None]:
    def make() -> None:
        with suppress(OSError):
            call()

    return make


# Every call of the seam that changes something, and how to make it in vain.
CALLS: dict[str, Callable[[], None]] = {
    "pwrite64": _in_vain(lambda: os.pwrite(_CLOSED, b"", 0)),
    "ftruncate": _in_vain(lambda: os.ftruncate(_CLOSED, 0)),
    "renameat": _in_vain(lambda: os.rename(_NOWHERE, _NOWHERE, src_dir_fd=_CLOSED, dst_dir_fd=_CLOSED)),
    "renameat2": _in_vain(lambda: _libc.renameat2(-1, _NOWHERE, -1, _NOWHERE, 1)),
    "unlinkat": _in_vain(lambda: os.unlink(_NOWHERE, dir_fd=_CLOSED)),  # of files and of directories
    "mkdirat": _in_vain(lambda: os.mkdir(_NOWHERE, dir_fd=_CLOSED)),
    "fsync": _in_vain(lambda: os.fsync(_CLOSED)),
    "fdatasync": _in_vain(lambda: os.fdatasync(_CLOSED)),
    "fcntl": _in_vain(lambda: fcntl.fcntl(0, fcntl.F_GETFD)),
    "openat": _in_vain(lambda: os.open(_NOWHERE, os.O_RDONLY)),
}

QUIET = frozenset({"fcntl", "openat"})  # they change no file, but between them lie the locks and the new, empty files


def most(call: str) -> int:
    """Return the number of the call of that kind at which strace kills."""
    return 1000 if call in QUIET else 200


def recovery(root: str) -> None:
    """Open the space and close it."""
    import spool

    spool.open(root).close()


def intake(root: str) -> None:
    """``spool-intake --once``"""
    from xaspool_scripts.intake import main

    main(["--once", "-s", root])


VICTIMS: dict[str, Callable[..., None]] = {
    "session": session.live, "recovery": recovery, "intake": intake, "claims": claims.live
}  # fmt: skip


class Scaffold:
    """The parent's end."""

    def __init__(self, error_log: Path) -> None:
        self.error_log = error_log
        self._socket, theirs = socket.socketpair()
        strace = ["strace", "-f", "-qqq", "-o", "/dev/null", "-e", f"trace={','.join(CALLS)}", "-e", "signal=none"]
        for call in CALLS:
            strace += ["-e", f"inject={call}:signal=KILL:when={most(call)}"]
        with theirs, error_log.open("a") as errors:
            python = [sys.executable, "-m", "tests.kills.scaffold"]
            self._process = subprocess.Popen(
                [*strace, *python, str(theirs.fileno())], cwd=ROOT, pass_fds=(theirs.fileno(),), stderr=errors
            )

    def kill_at(self, call: str, n: int, victim: str, *arguments: str) -> bool:
        """Run a victim that dies on entering its n-th ``call``; False if it came to its end before."""
        self._socket.send(json.dumps([victim, arguments, call, n]).encode())
        ended = self._socket.recv(100).decode()
        assert ended in ("killed", "0"), f"{victim}, {call} {n}: {ended}\n{self.error_log.read_text()[-4000:]}"
        return ended == "killed"

    def let_live(self, victim: str, *arguments: str) -> None:
        """Run it to its end."""
        assert not self.kill_at("mkdirat", most("mkdirat"), victim, *arguments)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


def main(connection: socket.socket) -> None:
    while request := connection.recv(4096):
        victim, arguments, call, n = json.loads(request)
        pid = os.fork()
        if pid == 0:
            connection.close()
            _live(VICTIMS[victim], arguments, call, n)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        connection.send(b"killed" if code == -signal.SIGKILL else str(code).encode())


def _live(victim: Callable[..., None], arguments: Sequence[str], call: str, n: int) -> NoReturn:
    for _ in range(most(call) - n):
        CALLS[call]()
    code = 1
    try:
        victim(*arguments)
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
