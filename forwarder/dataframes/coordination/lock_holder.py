"""The program of the process that holds the locks of a write's coordinator (see ``coordinator``).

It is run by its path and uses only the standard library, so it starts in a hundredth of a second and is small. Its
arguments are inherited descriptors: the socket on which another process ends it, a process with which it ends (as a
pidfd), and the descriptors whose locks it holds.
"""

import os
import select
import socket
import struct
import sys

_PEER = struct.Struct("3i")  # process, user and group of a peer (SO_PEERCRED)


def hold(listening: socket.socket, parent: int) -> socket.socket | None:
    """Return once the parent has ended, or a process of the same user connects; returns that connection."""
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
        os._exit(0)  # the process that started this one waits for no other
    listening, parent, *locks = map(int, sys.argv[1:])
    connection = hold(socket.socket(fileno=listening), parent)
    for descriptor in locks:
        os.close(descriptor)
    if connection is not None:
        connection.close()  # after the locks: for the peer the close means that they are free


if __name__ == "__main__":
    main()
