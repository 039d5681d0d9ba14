"""The program of the process that holds the locks of a write's coordinator (see ``write_coordinator``).

The process is called the holder. Its program is run by path and uses only the standard library, so the holder is small
and starts in a hundredth of a second. The arguments are inherited descriptors:

* the socket by which another process ends the holder;
* the pidfd of the process with which the holder ends;
* the descriptors whose locks the holder keeps.
"""

import os
import select
import socket
import struct
import sys

_PEER = struct.Struct("3i")  # the ids of a peer's process, user and group (SO_PEERCRED)


def hold(listening: socket.socket, parent: int) -> socket.socket | None:
    """Wait until a process of the same user connects, and return the connection. Return None if the parent ends."""
    poll = select.poll()
    poll.register(parent, select.POLLIN)
    poll.register(listening, select.POLLIN)
    while True:
        ready = [descriptor for descriptor, _ in poll.poll()]
        if parent in ready:
            return None
        connection, _ = listening.accept()
        _, user, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        if user in (os.geteuid(), 0):
            return connection
        connection.close()


def main() -> None:
    if os.fork():
        os._exit(0)  # the starter waits only for this process; the child of this process holds the locks
    listening, parent, *locks = map(int, sys.argv[1:])
    connection = hold(socket.socket(fileno=listening), parent)
    for descriptor in locks:
        os.close(descriptor)
    if connection is not None:
        connection.close()  # closed last, because the close tells the peer that the locks are free


if __name__ == "__main__":
    main()
