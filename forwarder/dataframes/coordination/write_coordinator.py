"""The coordinator of a write: a lock, held from before the first task until the outcome is decided.

Batch writes and stream writes have the same processes and calls (PySpark 4.3, ``pyspark/sql/worker``):

* ``writer()`` or ``streamWriter()`` runs in a Python worker on the driver's machine, and never in the program's own
  process. The call runs once for each write or micro-batch, before the tasks. The worker may end after a minute without
  work.
* ``write()`` runs in a worker of an executor, once for each attempt at a task. A task that failed or was lost with its
  machine gets another attempt, and speculation makes two attempts at the same time. For each task, Spark chooses one of
  the attempts that returned a result.
* ``commit()`` or ``abort()`` runs in another worker on the driver's machine, with the messages of the chosen attempts.
  For a task without a chosen attempt, the message is None. Spark calls ``abort()`` when a task failed for good. Spark
  also calls ``abort()`` when ``commit()`` raised an error or the process of ``commit()`` died. The rows may already be
  committed at that time. For a stream, Spark calls ``abort()`` on a separate writer, which has only the options.

So each of these processes may end before the write ends. A separate small process, the holder (``lock_holder``), holds
the lock of the write. The prepared branches belong to the holder (rule 6: a process is alive while it holds a lock).
The worker that creates the writer opens the space, and thereby recovers the space if the space needs recovery. The
worker then locks the coordinator's id, and takes a second lock that marks the space as open. Finally the worker starts
the holder, which inherits only these two locks. The holder ends

* when ``commit()`` or ``abort()`` ends the holder. The process that runs the call then rolls back the undecided
  branches. A late attempt may leave another branch; any later process that finds this branch rolls it back;
* when the daemon of the worker ends, together with the Spark context. This happens if the driver is killed or the
  context is stopped. The write is then rolled back, like any transaction of a dead process;
* when the holder is killed. The branches are then rolled back, and ``commit()`` finds no branch and raises. A commit
  and a rollback of the same branch exclude each other, so no write is committed in part.

The holder does not decide about the write. The process that runs ``commit()`` decides: its commit in the space adopts
the branches. So only the space, and never the holder, knows whether a write is committed.

A process ends the holder through a socket in Linux's abstract namespace, which leaves no file. If a micro-batch is
aborted without any message, the writer does not know its coordinator. For a stream, the name of the socket is therefore
a hash of the space and of the stream's name. The next batch of the same stream also ends a holder that still lives.

A stream has no name if the program gave no application id and set the checkpoint for the whole session. If a
micro-batch of this stream is aborted without any message, the holder remains until the Spark context ends. The only
harm is that the branches also remain prepared until then.
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
class WriteCoordinator:
    """The coordinator of one write. ``id``: the gtrid of its branches. ``address``: the address of its holder."""

    id: bytes
    address: str

    def end(self) -> bool:
        """End the holder, if it exists, and wait for the release of its locks. Return False if the holder goes on."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(_END_SECONDS)
                connection.connect(self.address)
                return connection.recv(1) == b""
        except ConnectionError:  # no holder exists, or the holder has just ended
            return True
        except OSError as error:
            log.warning("the process that coordinates a write does not end: %s", error)
            return False


def start(space: spool.Space, key: str | None = None) -> WriteCoordinator:
    """Start the holder of a new coordinator, and return the coordinator. The caller has the space open.

    The holder ends at the latest with the parent of this process.

    Args:
        key: the name of the stream in the space, or None. ``start`` ends a holder of the stream's previous batch.

    Raises:
        SystemFailure: the holder cannot be started, or the holder of the previous batch does not end.
    """
    coordinator = WriteCoordinator(os.urandom(_ID_BYTES), address_of(space.path, key))
    with contextlib.ExitStack() as opened:
        try:
            listening = opened.enter_context(_listen(coordinator))
            watched = os.pidfd_open(os.getppid())
            opened.callback(os.close, watched)
            locks = opened.enter_context(space.engine.locked_coordinator(coordinator.id))  # the holder inherits them
            _spawn([listening.fileno(), watched, *locks])
        except OSError as error:
            raise SystemFailure(f"the process that coordinates the write cannot be started: {error}") from error
    return coordinator


def address_of(path: str, key: str | None) -> str:
    """Return the address of the holder for the stream named ``key``. If ``key`` is None, return a new address."""
    text = os.urandom(_ID_BYTES).hex() if key is None else f"{os.path.realpath(path)}\0{key}"
    return "\0xaspool-" + hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def _listen(coordinator: WriteCoordinator) -> socket.socket:
    until = time.monotonic() + _END_SECONDS
    while True:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(coordinator.address)
            listening.listen()
            return listening
        except OSError:
            listening.close()
            # The old holder releases its locks first and its address later, because its process still runs a few
            # instructions.
            if not coordinator.end() or time.monotonic() > until:
                raise
            time.sleep(0.001)


def _spawn(descriptors: list[int]) -> None:
    command = [sys.executable, "-I", "-S", str(Path(lock_holder.__file__)), *map(str, descriptors)]
    null = subprocess.DEVNULL
    code = subprocess.call(command, pass_fds=descriptors, stdin=null, stdout=null, stderr=null, cwd="/")
    if code != 0:
        raise OSError(f"{sys.executable} ended with code {code}")
