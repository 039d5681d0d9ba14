"""Ports of this machine."""

import socket


def free_port() -> int:
    """Return one that no program has."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port
