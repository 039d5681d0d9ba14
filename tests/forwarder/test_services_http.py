"""The outcomes of calls over HTTP: every row of the table of outcomes, against a real server."""

import shutil
import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

import pytest

import spool
from forwarder.services import parse
from forwarder.services.http import retry_after
from spool.client.fields import header_value
from spool.workers.outcome import LONGEST_DELAY, Outcome, Rejected, Replied, Retried
from tests.forwarder.test_services import assert_not_reached, call, request


@dataclass
class Answer:
    """The answer of the test server to the next request, and the requests that the server got."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    act: Callable[[BaseHTTPRequestHandler], None] | None = None
    got: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    connections: set[Any] = field(default_factory=set)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, answer: Answer, *args: Any) -> None:
        self.answer = answer
        super().__init__(*args)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer.got.append((self.path, dict(self.headers), body))
        self.answer.connections.add(self.client_address)
        if self.answer.act is not None:
            self.close_connection = True
            return self.answer.act(self)
        self.send_response(self.answer.status)
        for name, value in ({"Content-Length": str(len(self.answer.body))} | self.answer.headers).items():
            self.send_header(name, value)
        self.end_headers()
        return self.wfile.write(self.answer.body) and None

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


def reset(handler: BaseHTTPRequestHandler) -> None:
    """Close the connection so that the client gets ECONNRESET."""
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")


@pytest.fixture
def answer() -> Answer:
    return Answer()


@contextmanager
def serving(handler: Any) -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        server.block_on_close = False
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def server(answer: Answer) -> Iterator[ThreadingHTTPServer]:
    with serving(partial(Handler, answer)) as server:
        yield server


@pytest.fixture
def url(server: ThreadingHTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_port}/orders?a=b"


class TestHttpResponses:
    def test_2xx_is_the_reply(self, url: str, answer: Answer) -> None:
        answer.status, answer.body, answer.headers = 201, b'{"a": 1}', {"Content-Type": "application/json"}
        assert call(parse(url)) == Replied(b'{"a": 1}', "application/json")

    def test_an_empty_2xx_is_an_empty_reply(self, url: str, answer: Answer) -> None:
        answer.status = 204
        assert call(parse(url)) == Replied(b"")

    @pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
    def test_5xx_408_425_429_are_attempts(self, url: str, answer: Answer, status: int) -> None:
        answer.status = status
        assert call(parse(url)) == Retried(f"HTTP {status}")

    @pytest.mark.parametrize(("told", "delay"), [("120", 120.0), ("Fri, 01 Jan 2021 00:00:00 GMT", None)])
    def test_retry_after_is_honoured(self, url: str, answer: Answer, told: str, delay: float | None) -> None:
        answer.status, answer.headers = 503, {"Retry-After": told}
        assert call(parse(url)) == Retried("HTTP 503", delay)

    @pytest.mark.parametrize("status", [400, 401, 404, 410, 422])
    def test_other_4xx_are_final_and_their_body_is_the_reply(self, url: str, answer: Answer, status: int) -> None:
        answer.status, answer.body, answer.headers = status, b"no such account", {"Content-Type": "text/plain"}
        assert call(parse(url)) == Rejected(
            f"HTTP {status}: no such account", Replied(b"no such account", "text/plain")
        )

    @pytest.mark.parametrize("status", [422, 503])
    def test_e04_a_failure_reason_begins_as_the_answer_in_one_line(self, url: str, answer: Answer, status: int) -> None:
        answer.status, answer.body = status, "<html>\n\t<b>zu spät</b>\x1b\xff".encode() + b"\xff" + b"x" * 1000
        outcome = call(parse(url))
        assert isinstance(outcome, Rejected | Retried)
        assert outcome.reason.startswith(f"HTTP {status}: <html> <b>zu spät</b>")
        assert outcome.reason.isprintable()
        assert len(outcome.reason) == len(f"HTTP {status}: ") + 200

    @pytest.mark.parametrize("status", [301, 302, 307, 308])
    def test_redirects_are_not_followed_and_count_as_attempts(self, url: str, answer: Answer, status: int) -> None:
        answer.status, answer.headers = status, {"Location": "/elsewhere"}
        outcome = call(parse(url))
        assert isinstance(outcome, Retried)
        assert outcome.counted
        assert "/elsewhere" in outcome.reason
        assert len(answer.got) == 1

    @pytest.mark.parametrize("status", [200, 422])
    @pytest.mark.parametrize("announced", [True, False])
    def test_a_reply_over_the_limit_is_final(
        self, url: str, answer: Answer, status: int, announced: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def chunked(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(status)
            handler.send_header("Transfer-Encoding", "chunked")
            handler.end_headers()
            handler.wfile.write(b"5\r\n12345\r\n0\r\n\r\n")

        answer.status, answer.body, answer.act = status, b"12345", None if announced else chunked
        monkeypatch.setattr("forwarder.services.http.MAX_REPLY", 4)
        too_long = call(parse(url))
        assert isinstance(too_long, Rejected)
        assert too_long.reply is None
        whole = Replied(b"12345")
        monkeypatch.setattr("forwarder.services.http.MAX_REPLY", 5)
        assert call(parse(url)) == (whole if status == 200 else Rejected("HTTP 422: 12345", whole))


class TestHttpRequests:
    def test_the_headers_of_a_call_carry_the_attributes_of_its_message(self, url: str, answer: Answer) -> None:
        attributes = {"content_type": "text/csv", "correlation_id": "c-1", "attempts": 3, "headers": {"Tenant": "acme"}}
        call(parse(url), request(b"a,b", **attributes))
        path, headers, body = answer.got[0]
        assert (path, body) == ("/orders?a=b", b"a,b")
        assert (
            headers
            | {
                "Content-Type": "text/csv",
                "Idempotency-Key": "0" * 31 + "1",
                "Spool-Queue": "orders",
                "Spool-Correlation-Id": "c-1",
                "Spool-Attempts": "3",
                "Spool-Header-Tenant": "acme",
            }
            == headers
        )

    def test_a_request_has_the_user_agent_that_firewalls_ask_for(self, url: str, answer: Answer) -> None:
        call(parse(url))
        assert answer.got[0][1]["User-Agent"] == f"xaspool/{spool.__version__}"

    def test_without_a_correlation_id_there_is_no_such_header(self, url: str, answer: Answer) -> None:
        call(parse(url))
        assert "Spool-Correlation-Id" not in answer.got[0][1]

    def test_header_text_that_http_cannot_carry_is_percent_encoded(self, url: str, answer: Answer) -> None:
        odd = {
            "line": "a\r\nSet-Cookie: b", "euro": "€ 5", "latin": "é", "blanks": "  a b ", "per": "100%", "nul": "\0",
            "na me:\n€": "x", "": "y", "lone": "\ud800",
        }  # fmt: skip
        assert call(parse(url), request(headers=MappingProxyType(odd), correlation_id="ü\n")) == Replied(b"")
        headers = answer.got[0][1]
        carried = {unquote(k.removeprefix("Spool-Header-")): unquote(v) for k, v in headers.items()}
        assert odd | {"lone": "?"} | carried == carried
        assert unquote(headers["Spool-Correlation-Id"]) == "ü\n"
        assert headers["Spool-Header-per"] == "100%25"
        assert "Set-Cookie" not in headers

    def test_plain_values_go_as_they_are(self) -> None:
        plain = 'text/plain; charset="utf-8", (a) [b] {c} ~!@#$^&*_+=|\\<>?'
        assert header_value(plain) == plain

    def test_one_connection_serves_all_calls_of_a_thread(self, url: str, answer: Answer) -> None:
        caller = parse(url).open()
        assert [caller(request()) for _ in range(3)] == [Replied(b"")] * 3
        assert len(answer.connections) == 1
        caller.close()

    def test_calls_of_several_threads_have_connections_of_their_own(self, url: str, answer: Answer) -> None:
        together = threading.Barrier(4)

        def meet(handler: BaseHTTPRequestHandler) -> None:
            together.wait(30)
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

        answer.act = meet
        caller = parse(url).open()
        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(caller, [request()] * 4)) == [Replied(b"ok")] * 4


class TestHttpFailures:
    @staticmethod
    def assert_a_try(outcome: Outcome) -> None:
        assert isinstance(outcome, Retried)
        assert outcome.counted, outcome

    def test_refused(self) -> None:
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))  # and no server listens
            assert_not_reached(call(parse(f"http://127.0.0.1:{bound.getsockname()[1]}/")))

    def test_unknown_host(self) -> None:
        assert_not_reached(call(parse("http://no-such-host.invalid/")))

    def test_tls_failure(self, url: str) -> None:
        assert_not_reached(call(parse(url.replace("http:", "https:"))))

    def test_connect_timeout(self) -> None:
        with socket.socket() as busy:
            busy.bind(("127.0.0.1", 0))
            busy.listen(0)
            # The one connection that waits to be accepted keeps the next one from being made.
            with socket.create_connection(busy.getsockname()):
                assert_not_reached(call(parse(f"http://127.0.0.1:{busy.getsockname()[1]}/", timeout=0.2)))

    def test_read_timeout(self, url: str, answer: Answer) -> None:
        called = threading.Event()
        answer.act = lambda handler: called.wait(30) and None
        self.assert_a_try(call(parse(url, timeout=0.2)))
        called.set()

    def test_a_response_that_trickles_ends_at_the_timeout(self, url: str, answer: Answer) -> None:
        enough = threading.Event()

        def trickle(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(200)
            handler.send_header("Content-Length", "1000000")
            handler.end_headers()
            while not enough.wait(0.02):
                handler.wfile.write(b"x")

        answer.act = trickle
        self.assert_a_try(call(parse(url, timeout=0.3)))
        enough.set()

    def test_no_response(self, url: str, answer: Answer) -> None:
        answer.act = lambda handler: None
        self.assert_a_try(call(parse(url)))

    @pytest.mark.parametrize("how", [lambda handler: None, reset], ids=["closed", "reset"])
    def test_a_connection_that_the_server_closes_between_two_calls_costs_no_attempt(
        self, url: str, answer: Answer, how: Callable[[BaseHTTPRequestHandler], None]
    ) -> None:
        def close_once(handler: BaseHTTPRequestHandler) -> None:
            answer.act = None
            how(handler)

        with closing(parse(url).open()) as caller:
            assert caller(request()) == Replied(b"")
            answer.act = close_once
            assert caller(request()) == Replied(b"")
        assert len(answer.connections) == 2

    def test_a_new_connection_that_the_server_closes_is_an_attempt(self, url: str, answer: Answer) -> None:
        def last(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(200)
            for header, value in (("Connection", "close"), ("Content-Length", "0")):
                handler.send_header(header, value)
            handler.end_headers()

        with closing(parse(url).open()) as caller:
            assert caller(request()) == Replied(b"")
            answer.act = lambda handler: None
            self.assert_a_try(caller(request()))
            assert len(answer.got) == 3  # one request over the old connection, and one over a new connection
            self.assert_a_try(caller(request()))
            assert len(answer.got) == 4
            answer.act = last
            assert caller(request()) == Replied(b"")
            answer.act = lambda handler: None
            self.assert_a_try(caller(request()))
            assert len(answer.got) == 6, "the connection of the answer before was not used again"

    def test_a_response_cut_short(self, url: str, answer: Answer) -> None:
        def half(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(200)
            handler.send_header("Content-Length", "10")
            handler.end_headers()
            handler.wfile.write(b"12345")

        answer.act = half
        self.assert_a_try(call(parse(url)))

    def test_no_http_at_all(self, url: str, answer: Answer) -> None:
        answer.act = lambda handler: handler.wfile.write(b"SSH-2.0-OpenSSH\r\n") and None
        self.assert_a_try(call(parse(url)))

    @pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the program openssl to make a certificate")
    def test_a_server_that_wants_a_certificate_was_never_reached(
        self, server: ThreadingHTTPServer, answer: Answer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        certificate, key = make_certificate(tmp_path)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificate)
        context.load_cert_chain(certificate, key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        url = f"https://127.0.0.1:{server.server_port}/"
        # Each call gets a timeout of its own, hence a client that has read the certificate above.
        context.verify_mode = ssl.CERT_NONE
        assert call(parse(url, timeout=29.0)) == Replied(b"")
        context.verify_mode = ssl.CERT_REQUIRED
        assert_not_reached(call(parse(url, timeout=28.0)))


class TestRetryAfter:
    NOW = 1_800_000_000.0

    @pytest.mark.parametrize(
        ("value", "seconds"),
        [
            (None, None),
            ("0", 0.0),
            (" 120 ", 120.0),
            (formatdate(NOW + 90, usegmt=True), 90.0),
            (formatdate(NOW - 90, usegmt=True), 0.0),
            ("9" * 500, LONGEST_DELAY),
            ("-5", None),
            ("1.5", None),
            ("²", None),
            ("soon", None),
            ("", None),
            ("Fri, 99 Foo 20233 99:99:99 GMT", None),
        ],
    )
    def test_seconds_or_a_date(self, value: str | None, seconds: float | None) -> None:
        assert retry_after(value, self.NOW) == seconds


def make_certificate(directory: Path) -> tuple[Path, Path]:
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    subprocess.run(
        f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost "
        f"-addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {certificate}".split(),
        check=True,
        capture_output=True,
    )
    return certificate, key
