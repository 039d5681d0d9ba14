"""``spool-admin metrics``: print or serve the metrics of a space for Prometheus."""

import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any

import click

from xaspool_scripts.terminal.listening import address, announce, end, end_signal, reason_of, wait_for_end
from xaspool_scripts.terminal.output import write_bytes, write_json
from xaspool_scripts.terminal.program import Failure, SpaceCommand, describe, extra, json_option, note, space_path
from xaspool_scripts.watch import prometheus
from xaspool_scripts.watch.watched_space import Watched, published_option, watched_space

if TYPE_CHECKING:
    from spool import SpaceMetrics

_POLL_SECONDS = 0.2  # the longest time until the server ends
_CACHED_SECONDS = 1.0  # the shortest time between two readings of the space
_MOST_CONNECTIONS = 16
_CONNECTION_SECONDS = 10.0  # the longest life of a connection
_SILENT_SECONDS = 5.0  # the longest wait for the next bytes of a connection
_PATHS = {"/", "/metrics"}


@click.command(cls=SpaceCommand)
@click.option(
    "--listen", metavar="HOST:PORT", callback=address,
    help="Serve the metrics at http://HOST:PORT/metrics until SIGTERM or Ctrl-C. Port 0 takes a free port.",
)  # fmt: skip
@published_option
@json_option
def metrics(listen: tuple[str, int] | None, published: bool, as_json: bool) -> None:
    """Print the metrics of the space once, in the text format of Prometheus, or serve them.

    With --json, each sample is one object; with --listen and --json, the beginning and the end of the server are.

    The command needs the package prometheus-client: pip install './xaspool[metrics]'.

    \b
    Examples:
      spool-admin metrics
      spool-admin -s /var/spool/shop metrics --listen 127.0.0.1:8814
      spool-admin -s /var/spool/shop metrics --published --listen 127.0.0.1:8814
    """
    with extra("metrics", "metrics"):
        import prometheus_client  # noqa: F401
    path = space_path()
    with watched_space(published=published) as watched:
        exporter = Exporter(path, watched.metrics)
        if listen is not None:
            _serve(watched, exporter, *listen, as_json=as_json)
        elif as_json:
            for sample in exporter.samples():
                write_json(sample)
        else:
            write_bytes(prometheus.text_of(exporter.collect()))


class Exporter:
    """The metrics of one space. Several threads may call ``text``.

    path: the directory of the space.
    """

    def __init__(self, path: str, read: "Callable[[], SpaceMetrics]") -> None:
        """``read``: a function that returns the figures of the space."""
        self.path = os.path.abspath(path)
        self._read = read
        self._mutex = threading.Lock()
        self._text = b""
        self._text_until = float("-inf")  # in monotonic time
        self._failure = ""

    def collect(self) -> prometheus.Collection:
        """Read the figures of the space. Errors of the space are raised."""
        begun = time.monotonic()
        found = self._read()
        return prometheus.Collection(found.space, found, seconds=time.monotonic() - begun)

    def samples(self) -> list[dict[str, Any]]:
        """Read the figures of the space, and return each sample as a JSON object."""
        return [
            {"name": sample.name, "labels": sample.labels, "value": sample.value}
            for family in self.collect().collect()
            for sample in family.samples
        ]

    def text(self) -> bytes:
        """Return the metrics. Figures that are less than a second old are not read again.

        If the space raises an error, the text says that the space is not up.
        """
        with self._mutex:
            if time.monotonic() >= self._text_until:
                self._text = self._read_text()
                self._text_until = time.monotonic() + _CACHED_SECONDS
            return self._text

    def _read_text(self) -> bytes:
        """Read the figures. A repeated error is logged only once."""
        from spool import SpaceStopped

        begun = time.monotonic()
        try:
            text = prometheus.text_of(self.collect())
        except Exception as error:  # the server must outlive every error of the space
            if (failure := describe(error)) != self._failure:
                note(f"warning: the metrics cannot be read: {failure}")
            self._failure = failure
            seconds, is_stopped = time.monotonic() - begun, isinstance(error, SpaceStopped)
            return prometheus.text_of(prometheus.Collection(self.path, None, is_stopped, seconds))
        if self._failure:
            note("the metrics can be read again")
        self._failure = ""
        return text


# -- the server --------------------------------------------------------------------------------------------------------


class _Handler(BaseHTTPRequestHandler):
    """Answers one request of a connection."""

    server: "_Server"
    timeout = _SILENT_SECONDS
    server_version, sys_version = "xaspool", ""  # (do not publish the version of Python)

    def do_GET(self) -> None:
        self.server.mark_asked(self.request)
        path = self.path.partition("?")[0]
        if path not in _PATHS:
            self._answer(HTTPStatus.NOT_FOUND, b"The metrics are at /metrics.\n")
        elif path == "/":
            self._answer(HTTPStatus.OK, b"The metrics are at /metrics.\n")
        else:
            self._answer(HTTPStatus.OK, self.server.exporter.text(), prometheus.CONTENT_TYPE)

    def _refuse(self) -> None:
        self._answer(HTTPStatus.METHOD_NOT_ALLOWED, b"The only method is GET.\n")

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _refuse

    def _answer(self, status: HTTPStatus, body: bytes, content_type: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET")
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log no request, because Prometheus sends a request every few seconds."""


class _Server(ThreadingMixIn, TCPServer):
    """Serves the metrics of one exporter, with at most 16 connections, each for at most ten seconds.

    A further connection ends the oldest connection without a whole request, or otherwise the oldest connection. So
    clients that send half a request, or nothing, keep no other client out.
    """

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 64  # the most connections that wait

    def __init__(self, exporter: Exporter, host: str, port: int) -> None:
        family, _, _, _, at = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self.address_family = family
        self.exporter = exporter
        self._begun: dict[Any, float] = {}  # the connections, oldest first, with the monotonic time of each beginning
        self._asked: set[Any] = set()  # the connections that have sent a whole request
        self._begun_mutex = threading.Lock()
        super().__init__(at[:2], _Handler)  # type: ignore[arg-type]

    @property
    def port(self) -> int:
        return int(self.socket.getsockname()[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a new thread. If there are too many connections, first end another connection."""
        with self._begun_mutex:
            if len(self._begun) >= _MOST_CONNECTIONS:
                silent = (each for each in self._begun if each not in self._asked)
                self._end(next(silent, next(iter(self._begun))))
            self._begun[request] = time.monotonic()
        super().process_request(request, client_address)

    def mark_asked(self, request: Any) -> None:
        """Note that the connection has sent a whole request."""
        with self._begun_mutex:
            if request in self._begun:
                self._asked.add(request)

    def shutdown_request(self, request: Any) -> None:
        with self._begun_mutex:
            self._begun.pop(request, None)
            self._asked.discard(request)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """End connections that last too long, because a client that sends a byte now and then would keep its thread."""
        latest = time.monotonic() - _CONNECTION_SECONDS
        with self._begun_mutex:
            for request in [request for request, begun in self._begun.items() if begun < latest]:
                self._end(request)

    def _end(self, request: Any) -> None:
        """End a connection; the connection's thread then closes the socket. The caller holds the mutex."""
        del self._begun[request]
        self._asked.discard(request)
        with suppress(OSError):  # (the client may have ended the connection)
            request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report an error of the server itself. Do not report a client that has disconnected."""
        error = sys.exception()
        if error is not None and not isinstance(error, OSError):
            note(f"warning: {describe(error)}")


def _serve(watched: Watched, exporter: Exporter, host: str, port: int, *, as_json: bool) -> None:
    """Serve the metrics until a signal."""
    from forwarder.web.sockets import in_url, is_loopback

    try:
        server = _Server(exporter, host, port)
    except (OSError, UnicodeError) as error:
        raise Failure(f"cannot listen at {in_url(host)}:{port}: {reason_of(error)}") from error
    ended = end_signal()
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(_POLL_SECONDS,), daemon=True)
        thread.start()
        announce("serving", exporter.path, f"http://{in_url(host)}:{server.port}/metrics", as_json=as_json)
        reader = "user of this machine" if is_loopback(host) else "user who reaches this address"
        note(f"every {reader} can read these metrics")
        try:
            wait_for_end(ended, watched.spaces)
        finally:
            server.shutdown()
            thread.join()
    end("ended", as_json=as_json)
