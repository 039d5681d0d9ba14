"""Several processes that serve the same sockets, because one process of Python uses one processor.

The parent opens no space. It starts its children by a fork, so that they inherit the sockets, the tokens and the key of
tickets. It starts a child again that has died: the kernel has released the claims of the child, and a receipt of the
child is answered by the status 410.
"""

import logging
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

import spool
from forwarder.web.server import WebServer
from forwarder.web.sockets import listening_at_path
from spool.errors import SystemFailure

_END_SECONDS = 20.0
_LEAST_SECONDS = 1.0  # between two starts of a process

log = logging.getLogger("spool.server")

Start = Callable[..., WebServer]
Wait = Callable[[WebServer, Callable[[], object]], object]


@dataclass
class _Child:
    process: multiprocessing.process.BaseProcess
    opening: "Connection[None, BaseException | None]"
    begun: float
    is_open: bool = False

    def wait_until_open(self) -> None:
        """Wait until the process has opened its spaces. Raise its error."""
        try:
            error = self.opening.recv()
        except EOFError:
            raise SystemFailure("a process of the server ended before it had opened its spaces") from None
        if error is not None:
            raise error
        self.is_open = True


class Processes:
    """The processes of a server, from its creation until ``close``.

    Args:
        start: called in each process with its private socket, ``index`` and ``peers``; it returns the process's server.
        wait: called in each process with its server and a check, which raises an error once the parent has died. It
            returns when the process is to end.

    Raises:
        the error of ``start`` in a process.
    """

    spaces: Sequence[spool.Space] = ()

    def __init__(self, count: int, start: Start, wait: Wait) -> None:
        self._start, self._wait = start, wait
        self._directory = tempfile.mkdtemp(prefix="spool-serve-")
        self._peers = [os.path.join(self._directory, str(index)) for index in range(count)]
        self._children: list[_Child] = []
        try:
            self._children += [self._started(index) for index in range(count)]
            for each in self._children:
                each.wait_until_open()
        except BaseException:
            self.close()
            raise

    def _started(self, index: int) -> _Child:
        context = multiprocessing.get_context("fork")
        opening, opened = context.Pipe(duplex=False)
        process = context.Process(target=self._run, args=(index, opened, os.getpid()), name=f"process {index}")
        process.start()
        opened.close()
        return _Child(process, opening, time.monotonic())

    def _run(self, index: int, opened: "Connection[BaseException | None, None]", parent: int) -> None:
        try:
            listener = listening_at_path(self._peers[index])
            server = self._start(listener, index=index, peers=self._peers)
        except Exception as error:
            opened.send(error)
            return
        opened.send(None)
        try:
            self._wait(server, lambda: _check_parent(parent, server))
        except Exception as error:
            log.error("process %d of the server ends: %s", index, error)
            sys.exit(1)
        finally:
            server.close()

    def check(self) -> None:
        """Start the processes again that have died. Raise the error of a process that could not open its spaces."""
        for index, child in enumerate(self._children):
            if not child.is_open and child.opening.poll():
                child.wait_until_open()
            if child.process.is_alive() or time.monotonic() - child.begun < _LEAST_SECONDS:
                continue
            log.warning("process %d of the server ended with %s, and starts again", index, child.process.exitcode)
            child.process.close()
            self._children[index] = self._started(index)

    def close(self) -> bool:
        """End all processes; return whether they have ended by themselves."""
        for each in self._children:
            each.process.terminate()
        until, have_ended = time.monotonic() + _END_SECONDS, True
        for each in self._children:
            each.process.join(max(0.0, until - time.monotonic()))
            if each.process.is_alive():
                have_ended = False
                each.process.kill()
                each.process.join()
        shutil.rmtree(self._directory, ignore_errors=True)
        return have_ended


def _check_parent(parent: int, server: WebServer) -> None:
    if os.getppid() != parent:
        raise SystemFailure("the program that started this process has ended")
    server.check()
