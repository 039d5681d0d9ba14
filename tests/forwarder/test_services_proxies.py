"""A message keeps its attempts if a proxy refuses its call: calls through a proxy, and the exceptions of NO_PROXY."""

import select
import socket
import threading
from base64 import b64encode
from collections.abc import Iterator
from functools import partial
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from forwarder.services import ServiceError, parse
from forwarder.services.proxies import is_excepted, proxy_for
from spool.workers.outcome import Outcome, Rejected, Replied, Retried
from tests.forwarder.test_services import assert_not_reached, call
from tests.forwarder.test_services_http import Answer, Handler, serving

VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


class Proxy(BaseHTTPRequestHandler):
    """A proxy that passes requests on, with CONNECT, too. It asks for the user ``joe`` with the password ``secret``.

    If the service cannot be reached, the proxy answers 502, or as ``unreached`` says.
    """

    protocol_version = "HTTP/1.1"
    unreached: tuple[int, dict[str, str]] = (502, {})

    def do_CONNECT(self) -> None:
        if not self._is_allowed():
            return None
        try:
            there = socket.create_connection(self.path.rsplit(":", 1))  # type: ignore[arg-type]
        except OSError:
            return self._answer(*self.unreached)
        self.send_response(200)
        self.end_headers()
        self.close_connection = True
        with there:
            ends = {self.connection: there, there: self.connection}
            while True:
                for one in select.select(list(ends), [], [])[0]:
                    if not (data := one.recv(1 << 16)):
                        return None
                    ends[one].sendall(data)

    def do_POST(self) -> None:
        if not self._is_allowed():
            return
        address, body = urlsplit(self.path), self.rfile.read(int(self.headers["Content-Length"]))
        there = HTTPConnection(address.hostname or "", address.port)
        try:
            there.request("POST", address.path, body, {"Host": address.netloc})
            response = there.getresponse()
            self._answer(response.status, {"Via": "1.1 proxy"}, response.read())
        except OSError:
            self._answer(*self.unreached)
        finally:
            there.close()

    def _is_allowed(self) -> bool:
        allowed = self.headers["Proxy-Authorization"] == f"Basic {b64encode(b'joe:secret').decode()}"
        if not allowed:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self._answer(407, {"Proxy-Authenticate": "Basic"})
        return allowed

    def _answer(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with serving(Proxy) as server:
        yield f"127.0.0.1:{server.server_port}"


@pytest.fixture
def answer() -> Answer:
    return Answer()


@pytest.fixture
def service(answer: Answer) -> Iterator[str]:
    with serving(partial(Handler, answer)) as server:
        yield f"127.0.0.1:{server.server_port}"


@pytest.fixture
def nowhere() -> Iterator[str]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and does not listen
        yield f"127.0.0.1:{bound.getsockname()[1]}"


def assert_refused_by(proxy: str, outcome: Outcome) -> None:
    assert_not_reached(outcome, f"the proxy http://{proxy}")
    assert "secret" not in str(outcome)


def test_a_proxy_passes_message_on(proxy: str, service: str, answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"joe:secret@{proxy}")
    answer.body = b"done"
    assert call(parse(f"http://{service}/orders", timeout=11)) == Replied(b"done")
    answer.status = 422
    assert call(parse(f"http://{service}/orders", timeout=11)) == Rejected("HTTP 422: done", Replied(b"done"))


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("user", ["", "joe:wrong@"])
def test_a_message_keeps_its_attempts_if_the_proxy_asks_for_a_password(
    proxy: str, service: str, answer: Answer, scheme: str, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", f"http://{user}{proxy}")
    outcome = call(parse(f"{scheme}://{service}/orders?{user or 'none'}"))
    assert_refused_by(proxy, outcome)
    assert "407" in outcome.reason  # type: ignore[union-attr]
    assert answer.got == []


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_message_keeps_its_attempts_if_the_proxy_is_down(
    nowhere: str, service: str, answer: Answer, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{scheme}_proxy", f"http://joe:secret@{nowhere}")
    assert_refused_by(nowhere, call(parse(f"{scheme}://{service}/orders?down")))
    assert answer.got == []


@pytest.mark.parametrize("ends", [True, False])
def test_a_message_keeps_its_attempts_if_the_proxy_answers_no_connect(
    service: str, answer: Answer, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy ends the connection, or is silent for longer than the timeout, before it has reached the service."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("HTTPS_PROXY", f"http://joe:secret@{address}")

        def answer_none() -> None:
            connection, _ = silent.accept()
            with connection:
                while connection.recv(1 << 16) and not ends:
                    pass

        threading.Thread(target=answer_none, daemon=True).start()
        assert_refused_by(address, call(parse(f"https://{service}/orders?{ends}", timeout=30 if ends else 0.2)))
    assert answer.got == []


@pytest.mark.parametrize(
    ("status", "header"),
    [
        (502, {"Proxy-Status": "proxy.example; error=connection_refused"}),
        (504, {"Proxy-Status": 'a, b; error="dns_timeout"; details="none"'}),
        (503, {"X-Squid-Error": "ERR_CONNECT_FAIL 111"}),
        (403, {"X-Squid-Error": "ERR_ACCESS_DENIED 0"}),
    ],
)
def test_a_message_keeps_its_attempts_if_the_proxy_says_that_it_did_not_reach_the_service(
    proxy: str, nowhere: str, status: int, header: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"joe:secret@{proxy}")
    monkeypatch.setattr(Proxy, "unreached", (status, header))
    assert_refused_by(proxy, call(parse(f"http://{nowhere}/orders?{status}")))


def test_a_lost_connection_behind_the_proxy_is_an_attempt(proxy: str, nowhere: str, monkeypatch: pytest.MonkeyPatch):
    """The message may be the cause, so it must not be delivered for ever."""
    monkeypatch.setenv("HTTP_PROXY", f"joe:secret@{proxy}")
    for header in ({"Proxy-Status": "p; error=connection_terminated"}, {"X-Squid-Error": "ERR_ZERO_SIZE_OBJECT 0"}):
        monkeypatch.setattr(Proxy, "unreached", (502, header))
        assert call(parse(f"http://{nowhere}/orders?{len(str(header))}")) == Retried("HTTP 502")


def test_the_service_itself_may_be_behind_such_a_proxy(service: str, answer: Answer) -> None:
    answer.status, answer.headers = 403, {"X-Squid-Error": "ERR_ACCESS_DENIED 0"}
    assert call(parse(f"http://{service}/orders")) == Rejected("HTTP 403", Replied(b""))


def test_a_proxy_that_cannot_be_used_is_named(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "gopher://joe:secret@old:70")
    with pytest.raises(ServiceError, match=r"the proxy gopher://old:70 cannot be used .*: correct HTTP_PROXY"):
        parse(f"http://{service}/").check()


def test_certificates_that_cannot_be_read_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty.pem").write_text("")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "empty.pem"))
    with pytest.raises(ServiceError, match="correct SSL_CERT_FILE"):
        parse("https://localhost/").check()


@pytest.mark.parametrize(
    ("entries", "host", "excepted"),
    [
        ("[::1]", "::1", True),
        ("::1", "::1", True),
        ("[::1]:8080", "::1", False),
        ("[::1]:80", "::1", True),
        ("fd00::/8", "fd12::7", True),
        ("[fd00::]/8", "fd12::7", True),
        ("fd00::/8", "fe80::1", False),
        ("10.0.0.0/8, 192.168.1.1", "10.200.3.4", True),
        ("10.0.0.0/8, 192.168.1.1", "192.168.1.1", True),
        ("10.0.0.0/8", "shop.internal", False),
        ("localhost .internal", "shop.internal", True),
        ("*.internal", "internal", True),
        ("internal", "notinternal", False),
        ("Shop.Internal:80", "shop.internal", True),
        ("shop.internal:443", "shop.internal", False),
        ("all://shop.internal", "shop.internal", True),
        ("*", "shop.internal", True),
        ("*", "10.0.0.1", True),
        ("", "shop.internal", False),
        (",,:, [, ]:, fd00::/999, 10.0.0.0/x, .", "shop.internal", False),
        (",,:, [, ]:, fd00::/999, 10.0.0.0/x, .", "10.0.0.1", False),
    ],
)
def test_no_proxy_excepts_names_addresses_and_networks(entries: str, host: str, excepted: bool) -> None:
    assert is_excepted(host, 80, entries) is excepted


@pytest.mark.parametrize("entries", ["localhost,[::1]", "fd00::/8", "10.0.0.0/8"])
def test_a_web_service_starts_with_each_no_proxy(
    proxy: str, service: str, entries: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://{proxy}")
    monkeypatch.setenv("NO_PROXY", f"{entries},127.0.0.1")
    parse(f"http://{service}/").check()
    assert call(parse(f"http://{service}/?{entries}")) == Replied(b"")


def test_the_url_of_an_ipv6_service_needs_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "proxy:3128")
    monkeypatch.setenv("NO_PROXY", "[::1]")
    assert proxy_for("https://[::1]:8443/orders") is None
    assert proxy_for("https://[::2]:8443/orders") == "http://proxy:3128"
