"""Renew the lease of a write for its client, in a small process that ends with the client's Spark.

The process that begins a write ends before the tasks end, and the program may compute for hours between two tasks. So a
separate process renews the lease; on the space's machine, ``dataframes.coordination`` has a similar process. The
separate process ends when the write or the parent process ends.
"""

import os
import pickle
import select
import subprocess
import sys

from forwarder.network.server_calls import act
from spool.client.connection import HttpConnection
from spool.client.problems import Unreachable
from spool.errors import SpoolError, SystemFailure

_RENEWALS_A_LEASE = 6
_RETRY_SECONDS = 1.0
# The started process forks and ends at once, so that its parent need not wait for it later. The fork goes on.
_START = f"import os; os.fork() and os._exit(0); from {__name__} import main; main()"


def start(connection: HttpConnection, session: str) -> None:
    """Start the process. Raises SystemFailure if the process cannot be started."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    try:
        watched = os.pidfd_open(os.getppid())
        try:
            subprocess.run(
                [sys.executable, "-c", _START, str(watched)],
                pass_fds=[watched],
                cwd="/",
                start_new_session=True,
                input=pickle.dumps((connection, session)),
                stdout=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path},
            )
        finally:
            os.close(watched)
    except OSError as error:
        raise SystemFailure(f"the process that renews the lease of the write cannot be started: {error}") from error


def main() -> None:
    parent = int(sys.argv[1])
    connection, session = pickle.loads(sys.stdin.buffer.read())
    while True:
        try:
            seconds = act(connection, session, "renew")["seconds"] / _RENEWALS_A_LEASE
        except Unreachable:  # the network or the server is away
            seconds = _RETRY_SECONDS
        except SpoolError:  # the write has ended
            return
        if select.select([parent], [], [], seconds)[0]:
            return
