"""The sockets at which a server listens: at a host and port, at a path (a Unix socket), or those of systemd."""

import errno
import grp
import ipaddress
import os
import socket
import stat
from contextlib import suppress

from spool.errors import InvalidArgument

_FIRST_DESCRIPTOR = 3  # of systemd: see sd_listen_fds(3)


def is_loopback(host: str) -> bool:
    """Return whether only programs of this machine reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


_OTHER_LOOPBACK = {"127.0.0.1": (socket.AF_INET6, "::1"), "::1": (socket.AF_INET, "127.0.0.1")}


def listening(host: str, port: int) -> list[socket.socket]:
    """Return the sockets that listen at all addresses of a host. Port 0 takes a free port.

    A client may take 127.0.0.1 or ::1 for ``localhost``. So a server at one of these two addresses also listens at the
    other. Otherwise another user of the machine could listen at the other address, and would get the tokens and cookies
    of this server's clients.

    Raises OSError if an address cannot be used; ``filename`` names the other address if another program listens at it.
    Raises UnicodeError if ``host`` cannot be the name of a host.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    wanted = dict.fromkeys((family, str(at[0])) for family, _, _, _, at in found)
    others = {_OTHER_LOOPBACK[address] for _, address in wanted if address in _OTHER_LOOPBACK} - wanted.keys()
    listeners: list[socket.socket] = []
    try:
        for family, address in [*wanted, *others]:
            taken = listeners[0].getsockname()[1] if listeners else port
            is_dual = address == "::" and socket.has_dualstack_ipv6()
            try:
                listener = socket.create_server((address, taken), family=family, dualstack_ipv6=is_dual)
                # (asyncio does not set this for such a socket: then an answer in two parts waits 40 ms for the client)
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                listeners.append(listener)
            except OSError as error:
                if error.errno == errno.EADDRINUSE and listeners:
                    raise OSError(error.errno, os.strerror(error.errno), address) from None
                if (family, address) in wanted:
                    raise
                # (otherwise the machine does not have the other address)
    except OSError as error:
        for each in listeners:
            each.close()
        if port == 0 and error.filename is not None:
            return listening(host, port)
        raise
    return listeners


def in_url(host: str) -> str:
    """Return the host as a URL contains it."""
    return f"[{host}]" if ":" in host else host


def listening_at_path(path: str, group: str | None = None) -> socket.socket:
    """Return a Unix socket that listens at a path. A socket that a dead server has left is replaced.

    group: the group whose members may connect, too; otherwise only this user may.

    Raises OSError if another program listens at the path, the path is no socket, or this user is not in the group.
    Raises InvalidArgument if this machine has no such group.
    """
    try:
        owner = -1 if group is None else grp.getgrnam(group).gr_gid
    except KeyError:
        raise InvalidArgument(f"this machine has no group {group!r}: getent group lists the groups") from None
    listener = socket.socket(socket.AF_UNIX)
    try:
        if _is_left(path):
            os.unlink(path)
        before = os.umask(0o177)
        try:
            listener.bind(path)
        finally:
            os.umask(before)
        if group is not None:
            os.chown(path, -1, owner)
            os.chmod(path, 0o660)
        listener.listen()
    except BaseException:
        listener.close()
        raise
    return listener


def _is_left(path: str) -> bool:
    """Return whether the path is a socket at which no program listens any more."""
    with suppress(FileNotFoundError), socket.socket(socket.AF_UNIX) as client:
        if stat.S_ISSOCK(os.stat(path).st_mode):
            return client.connect_ex(path) == errno.ECONNREFUSED
    return False


def sockets_of_systemd() -> list[socket.socket]:
    """Return the sockets that systemd has opened for this process; [] if there are none.

    Raises InvalidArgument if a descriptor is no listening socket.
    """
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return []
    count = os.environ.get("LISTEN_FDS", "")
    for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        os.environ.pop(name, None)
    found = []
    for number in range(_FIRST_DESCRIPTOR, _FIRST_DESCRIPTOR + (int(count) if count.isdigit() else 0)):
        os.set_inheritable(number, False)
        try:
            listener = socket.socket(fileno=number)
            listens = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            is_stream = listener.type == socket.SOCK_STREAM and listens
        except OSError as error:
            raise InvalidArgument(f"LISTEN_FDS: descriptor {number} is no socket: {error}") from None
        if not is_stream:
            raise InvalidArgument(f"LISTEN_FDS: descriptor {number} does not listen: write ListenStream= in .socket")
        found.append(listener)
    return found
