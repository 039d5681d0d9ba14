"""The coordinator of a write: a lock that lives from before its first task until its outcome is decided.

The processes and their calls (PySpark 4.3, ``pyspark/sql/worker``; batch and stream alike):

* ``writer()`` or ``streamWriter()`` runs in a Python worker beside the driver, never in the program's own process, once
  for each write or micro-batch, before its tasks. The worker may end a minute later, when it was idle.
* ``write()`` runs in a worker of an executor, once for each attempt of a task. A task that failed or was lost with its
  machine has another attempt, and speculation makes two at the same time. Of the attempts that returned, Spark chooses
  one a task.
* ``commit()`` or ``abort()`` runs in another worker beside the driver, with the messages of the chosen attempts, None
  for a task that has none. ``abort()`` follows when a task failed for good, but also when ``commit()`` raised or its
  process died, before or after the commit. A stream's ``abort()`` gets a writer of its own, which has only the options.

So none of these processes lives as long as the write. The prepared branches of a write belong to the process that holds
its lock (rule 6: alive means holding a lock), and that is a small process of its own, ``lock_holder``. The worker that
makes the writer opens the space, which recovers it if need be, locks the coordinator's id and, once more, the space as
open, and starts the holder, which inherits both locks and nothing else. The holder ends

* when ``commit()`` or ``abort()`` ends it: branches that are undecided then are rolled back, by this process or by
  the next that meets it, late attempts as well;
* when the daemon of its worker ends, which lives as long as the Spark context: so a write whose driver was killed,
  or whose context was stopped, is rolled back like any transaction of a process that died;
* when it is killed: its branches are rolled back, and ``commit()`` finds none to adopt and raises. A commit and
  a rollback of one branch exclude each other, so that no write is committed in part.

The holder takes no part in the decision: that is the commit which adopts the branches, made by the process that runs
``commit()``. Whether it is made is therefore read from the space, never from the holder.

A process ends the holder through a socket in Linux's abstract namespace, which leaves no file. A writer of a stream
that is aborted without any message does not know its coordinator, so the name of that socket is then a hash of the
space and of the stream's name; the next batch of the same stream also ends a holder that still lives. (A stream whose
checkpoint was set for the session, and that has no application id, has none: a holder that is left over by such an
abort stays until the Spark context ends. Its only harm is that its branches stay prepared, too.)
"""

import contextlib
import hashlib
import logging
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import spool
from forwarder.dataframes.coordination import lock_holder
from spool.errors import SystemFailure

log = logging.getLogger("spool.forwarder")

_ID_BYTES = 16
_END_SECONDS = 10.0


@dataclass(frozen=True)
class Coordinator:
    """The coordinator of one write. ``id``: of all its branches; ``address``: of the socket of its holder."""

    id: bytes
    address: str

    def end(self) -> bool:
        """End the holder, and wait until its locks are free; False if it does not end. It may have ended before."""
        return end_at(self.address)


def start(space: spool.Space, key: str | None = None, parent: int | None = None) -> Coordinator:
    """Start a coordinator's holder; it is locked when this returns. The caller has the space open.

    Args:
        key: names the stream in the space; the coordinator of its batch before, if there still is one, is ended.
        parent: the process with which the holder ends; by default the one that started this process.

    Raises:
        SystemFailure: the holder cannot be started, or the one of the batch before does not end.
    """
    coordinator = Coordinator(os.urandom(_ID_BYTES), address_of(space.path, key))
    with contextlib.ExitStack() as opened:
        try:
            listening = opened.enter_context(_listen(coordinator.address))
            watched = os.pidfd_open(os.getppid() if parent is None else parent)
            opened.callback(os.close, watched)
            locks = opened.enter_context(space.engine.locked_coordinator(coordinator.id))  # the holder inherits them
            _spawn([listening.fileno(), watched, *locks])
        except OSError as error:
            raise SystemFailure(f"the process that coordinates the write cannot be started: {error}") from error
    return coordinator


def address_of(path: str, key: str | None) -> str:
    """Return the address of a holder: a stream's, which ``key`` names, or a new one."""
    text = os.urandom(_ID_BYTES).hex() if key is None else f"{os.path.realpath(path)}\0{key}"
    return "\0xaspool-" + hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def end_at(address: str) -> bool:
    """End the holder at an address, if there is one, and wait until its locks are free; False if it does not end."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_END_SECONDS)
            connection.connect(address)
            return connection.recv(1) == b""
    except ConnectionError:  # there is none, or it ended at this moment
        return True
    except OSError as error:
        log.warning("the process that coordinates a write does not end: %s", error)
        return False


def _listen(address: str) -> socket.socket:
    until = time.monotonic() + _END_SECONDS
    while True:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(address)
            listening.listen()
            return listening
        except OSError:
            listening.close()
            # Its locks are free before the address is: the process has a few instructions to go.
            if not end_at(address) or time.monotonic() > until:
                raise
            time.sleep(0.001)


def _spawn(descriptors: list[int]) -> None:
    program = Path(lock_holder.__file__)
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(program), *map(str, descriptors)],
        pass_fds=descriptors,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
    )
    if process.wait() != 0:
        raise OSError(f"{sys.executable} ended with code {process.returncode}")
