"""The server of ``spool-admin metrics --listen`` outlives bad figures, bad clients and a stopped space."""

import grp
import http.client
import os
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import spool
from spool.watch.published import publish
from tests import door
from tests.scripts.exporters import parsed, serving, value
from tests.threads import beside
from xaspool_scripts.watch import metrics as program


@pytest.mark.every(3, first=1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_metrics_server_serves_until_a_signal(path: Path, number: signal.Signals) -> None:
    with serving(path) as served:
        assert value(served.get(), "xaspool_up") == 1
        assert served.end(number) == ""
    with spool.open(path) as alone:
        assert alone.recovery.alone


@pytest.mark.slow
def test_only_get_and_two_paths_are_answered(path: Path) -> None:
    with serving(path) as served:
        host = served.address.split("/")[2]
        for method, where, status in (
            ("GET", "/", 200), ("GET", "/metrics?x=1", 200), ("GET", "/favicon.ico", 404), ("GET", "/../metrics", 404),
            ("POST", "/metrics", 405), ("HEAD", "/metrics", 405), ("DELETE", "/", 405), ("BREW", "/", 501),
        ):  # fmt: skip
            connection = http.client.HTTPConnection(host, timeout=30)
            connection.request(method, where)
            response = connection.getresponse()
            body = response.read()
            assert response.status == status, (method, where)
            assert "Python" not in response.headers["Server"]
            if status == 405:
                assert response.headers["Allow"] == "GET"
            elif (method, where) == ("GET", "/"):
                assert body == b"The metrics are at /metrics.\n"
            connection.close()
        assert served.end() == ""


def test_a_stopped_space_is_reported_by_a_server_that_lives(path: Path) -> None:
    with spool.open(path) as space, serving(path) as served:
        assert value(served.get(), "xaspool_stopped") == 0
        door.store(space).shared.counters.stop()
        served.until("xaspool_stopped", 1)
        served.get()
        served.end()


@pytest.mark.slow
def test_missing_published_metrics_are_reported_by_a_server_that_lives(path: Path) -> None:
    with serving(path, "--published") as served:
        first = parsed(served.get())
        assert first["xaspool_up"] == {frozenset(): 0}
        assert set(first) == {
            "xaspool_up",
            "xaspool_build_info",
            "xaspool_collection_duration_seconds",
            "xaspool_omitted_label_sets",
        }
        with spool.open(path) as space:
            publish(door.disk(space), space.metrics(), grp.getgrgid(os.getgid()).gr_name)
        served.until("xaspool_up", 1)
        (path / "run" / "status").write_bytes(b"garbage")
        served.until("xaspool_up", 0)
        lines = served.end().splitlines()
    assert len(lines) == 3, lines
    assert "publishes no metrics" in lines[0]
    assert "can be read again" in lines[1]
    assert "is damaged" in lines[2]


class Readings:
    """The figures of a space that are read: counted, or with an error."""

    def __init__(self, figures: spool.SpaceMetrics) -> None:
        self.figures = figures
        self.number = 0
        self.error: Exception | None = None

    def __call__(self) -> spool.SpaceMetrics:
        self.number += 1
        if self.error is not None:
            raise self.error
        return replace(self.figures, commits=self.number)


@pytest.fixture
def readings(figures: spool.SpaceMetrics) -> Readings:
    return Readings(figures)


def test_a_space_is_read_at_most_once_a_second(readings: Readings, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(program.time, "monotonic", lambda: now)
    exporter = program.Exporter("/space", readings)
    texts = {exporter.text() for _ in range(5)}
    assert (len(texts), readings.number) == (1, 1)
    now = 100.99
    exporter.text()
    assert readings.number == 1
    now = 101.0
    assert value(exporter.text(), "xaspool_commits_total") == 2


@pytest.mark.parametrize(
    ("error", "stopped"),
    [
        (spool.SpaceStopped("stopped"), 1), (spool.NotOpen("closed"), None), (PermissionError(13, "no"), None),
        (ValueError("a mistake of ours"), None),
    ],
)  # fmt: skip
def test_each_error_is_logged_once(
    readings: Readings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: Exception,
    stopped: float | None,
) -> None:  # fmt: skip
    monkeypatch.setattr(program, "_CACHED_SECONDS", 0.0)
    exporter = program.Exporter("/space", readings)
    readings.error = error
    for _ in range(3):
        text = exporter.text()
        assert value(text, "xaspool_up") == 0
        assert parsed(text).get("xaspool_stopped", {}).get(frozenset()) == stopped
    assert capsys.readouterr().err.count("cannot be read") == 1
    readings.error = None
    assert value(exporter.text(), "xaspool_up") == 1
    assert "can be read again" in capsys.readouterr().err


def test_figures_of_the_wrong_form_do_not_end_the_server(readings: Readings) -> None:
    readings.figures = replace(readings.figures, counts={("rounds", 5): "x"})  # type: ignore[dict-item]
    assert value(program.Exporter("/space", readings).text(), "xaspool_up") == 0


@contextmanager
def server(readings: Readings) -> Iterator[int]:
    """A server in this process; yields its port."""
    with program._Server(program.Exporter("/space", readings), "127.0.0.1", 0) as found:
        with beside(partial(found.serve_forever, 0.01), found.shutdown):
            yield found.port


def is_served(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as response:
            return value(response.read(), "xaspool_up") == 1
    except (OSError, http.client.HTTPException):
        return False


def test_a_client_that_sends_a_byte_now_and_then_is_disconnected(readings: Readings, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(program, "_CONNECTION_SECONDS", 0.2)
    with server(readings) as port, socket.create_connection(("127.0.0.1", port), timeout=30) as slow:
        slow.sendall(b"GET /metrics HTTP/1.0\r\nX-Slow: ")
        deadline, is_open = time.monotonic() + 30, True
        while is_open and time.monotonic() < deadline:
            try:
                slow.settimeout(0.05)
                slow.sendall(b"x")
                is_open = slow.recv(1) != b""
            except TimeoutError:
                pass
            except OSError:
                is_open = False
        assert not is_open
        monkeypatch.setattr(program, "_CONNECTION_SECONDS", 100.0)
        assert is_served(port)


def test_a_request_is_served_beside_many_slow_connections(readings: Readings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "_CONNECTION_SECONDS", 100.0)
    monkeypatch.setattr(program._Handler, "timeout", 100.0)
    with ExitStack() as stack, server(readings) as port:
        held = [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30)) for _ in range(40)]
        for connection in held[-5:]:
            connection.sendall(b"GET /metrics HTTP/1.1\r\n")
        assert is_served(port)
        for connection in held[: -program._MOST_CONNECTIONS]:  # the oldest ones were ended
            with suppress(ConnectionResetError):
                assert connection.recv(1) == b""


def test_many_slow_connections_end_no_answer(readings: Readings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection of the answer is the oldest one, but the only one that has sent a request."""
    monkeypatch.setattr(program, "_CONNECTION_SECONDS", 100.0)
    asked, answer = threading.Event(), threading.Event()
    text = program.Exporter.text

    def slow_text(exporter: program.Exporter) -> bytes:
        asked.set()
        assert answer.wait(60)
        return text(exporter)

    monkeypatch.setattr(program.Exporter, "text", slow_text)
    with ExitStack() as stack, ThreadPoolExecutor() as pool, server(readings) as port:
        served = pool.submit(is_served, port)
        assert asked.wait(60)
        held = [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30)) for _ in range(40)]
        assert held[0].recv(1) == b""
        answer.set()
        assert served.result(60)


def test_requests_of_garbage_do_not_end_the_server(readings: Readings, capfd: pytest.CaptureFixture[str]) -> None:
    with server(readings) as port:
        for garbage in (b"\0" * 100, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"A" * 100_000, b""):
            with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
                with suppress(ConnectionError):
                    connection.sendall(garbage)
                    with suppress(OSError):  # (the server may have closed the connection meanwhile)
                        connection.shutdown(socket.SHUT_WR)
                    while connection.recv(65_536):
                        pass
        assert is_served(port)
    assert "Traceback" not in capfd.readouterr().err
