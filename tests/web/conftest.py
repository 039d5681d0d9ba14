"""A server of spaces in this process, an ordinary client, and connections that send any bytes."""

import json
import logging
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
httpx = pytest.importorskip("httpx")

import spool  # noqa: E402
from forwarder.web.server import WebServer  # noqa: E402
from forwarder.web.sockets import listening  # noqa: E402
from forwarder.web.tokens import Tokens  # noqa: E402
from tests.spaces import space_with  # noqa: E402

space = space_with("orders", "results")


class Served:
    """A running server of the space ``shop``."""

    def __init__(self, space: spool.Space, server: WebServer, port: int) -> None:
        self.space, self.server, self.port = space, server, port
        self.url = f"http://127.0.0.1:{port}"
        self.leases = server._state.spaces["shop"].leases

    def client(self, token: str | None = None, **options: Any) -> Any:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return httpx.Client(base_url=f"{self.url}/v1/shop", headers=headers, timeout=30, verify=False, **options)

    @contextmanager
    def connected(self, *sent: bytes) -> Iterator[socket.socket]:
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as client:
            for each in sent:
                client.sendall(each)
            yield client

    def answers(self, *sent: bytes) -> list[tuple[int, dict[str, str], bytes]]:
        """Send bytes, and return the status, the headers and the body of each answer until the server closes."""
        with self.connected(*sent) as client:
            return parsed(received(client))


def received(client: socket.socket) -> bytes:
    """Return all bytes until the end of a connection."""
    found = b""
    with suppress(ConnectionResetError):
        while part := client.recv(1 << 16):
            found += part
    return found


def parsed(data: bytes) -> list[tuple[int, dict[str, str], bytes]]:
    found = []
    while data:
        head, _, data = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        size = int(headers.get("content-length", 0))
        if not first.startswith("HTTP/1.1 100"):
            found.append((int(first.split()[1]), headers, data[:size]))
        data = data[size:]
    return found


def request(method: str, path: str, body: bytes = b"", *headers: tuple[str, str] | bytes, last: bool = False) -> bytes:
    """Return the bytes of a request. A header may be raw bytes. ``last``: whether to close afterwards."""
    lines = [f"{method} {path} HTTP/1.1".encode("latin-1"), b"Host: x"]
    lines += [each if isinstance(each, bytes) else f"{each[0]}: {each[1]}".encode("latin-1") for each in headers]
    names = {line.partition(b":")[0].lower() for line in lines}
    if not names & {b"content-length", b"transfer-encoding"}:
        lines.append(b"Content-Length: %d" % len(body))
    if last:
        lines.append(b"Connection: close")
    return b"\r\n".join([*lines, b"", body])


Serve = Callable[..., Served]


@pytest.fixture
def serve(space: spool.Space, caplog: pytest.LogCaptureFixture) -> Iterator[Serve]:
    """Start a server of the space ``shop``, with the tokens of these lines. No test may cause a line of an error."""
    with ExitStack() as opened:

        def serve(tokens: Sequence[str] = (), **options: Any) -> Served:
            listeners = listening("127.0.0.1", 0)
            port = listeners[0].getsockname()[1]
            server = WebServer(listeners, {"shop": space.path}, Tokens(tokens), **options)
            opened.callback(server.close)
            return Served(space, server, port)

        yield serve
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.fixture
def served(serve: Serve) -> Served:
    return serve()


def problem(answer: tuple[int, dict[str, str], bytes]) -> dict[str, Any]:
    """Return the problem of an answer, after a check of its form."""
    status, headers, body = answer
    found: dict[str, Any] = json.loads(body)
    assert headers["content-type"] == "application/problem+json"
    assert (found["status"], found["type"]) == (status, "about:blank")
    assert found["detail"]
    assert found["error"]
    return found
