"""A client whose server dies, starts again, cannot be reached, or refuses it; and a connection that is cut."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Semaphore
from typing import Any
from unittest import mock

import pytest

import spool
from spool.client import claims as leases
from spool.client.connection import HttpConnection
from spool.client.problems import Unreachable
from spool.client.space import RemoteSpace
from tests.client.conftest import WAIT, served
from tests.forwarder.network.test_machines import certificate
from tests.ports import free_port

SERVER = """
import socket, sys, time
from forwarder.web.server import WebServer
server = WebServer([socket.create_server(("127.0.0.1", int(sys.argv[1])))], {"shop": sys.argv[2]})
print("ready", flush=True)
time.sleep(600)
"""


class Server:
    """A server in a process of its own, which a test kills and starts again at the same port."""

    def __init__(self, directory: Path) -> None:
        self.port, self._directory = free_port(), directory
        self.address = f"http://127.0.0.1:{self.port}/shop"
        self.start()

    def start(self) -> None:
        arguments = [sys.executable, "-c", SERVER, str(self.port), str(self._directory)]
        self._process = subprocess.Popen(arguments, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(WAIT)
        self._process.stdout.close()  # type: ignore[union-attr]

    def restart(self) -> None:
        self.kill()
        self.start()


@pytest.fixture
def server(directory: Path) -> Iterator[Server]:
    found = Server(directory)
    yield found
    found.kill()


@pytest.fixture
def remote(server: Server) -> Iterator[RemoteSpace]:
    with spool.connect(server.address) as space:
        yield space


class Proxy:
    """Passes connections on to a server. ``cut``: the number of the connections whose answers are dropped from now on;
    such a connection is closed once the server has answered."""

    def __init__(self, port: int) -> None:
        self._server, self.cut = port, 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listening.getsockname()[1]}/shop"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(("127.0.0.1", self._server))
                for source, target, is_answer in ((client, server, False), (server, client, True)):
                    threading.Thread(target=self._copy, args=(source, target, is_answer), daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if is_answer and self.cut:
                    self.cut -= 1
                    break
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listening.close()


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    found = Proxy(server.port)
    yield found
    found.close()


@pytest.fixture
def through(proxy: Proxy) -> Iterator[RemoteSpace]:
    with spool.connect(proxy.address) as space:
        yield space


@contextmanager
def before(server: Server, *path: str, act: Callable[[], object]) -> Iterator[None]:
    """Call ``act`` once before the first call of the client whose address ends so."""
    call, acts = HttpConnection.call, [act]

    def noticed(self: HttpConnection, method: str, *given: str, **options: Any) -> Any:
        if given[-len(path) :] == path and acts:
            acts.pop()()
        return call(self, method, *given, **options)

    with mock.patch.object(HttpConnection, "call", noticed):
        yield
    assert not acts


# -- a lost answer ----------------------------------------------------------------------------------------------------


def test_a_put_whose_answer_is_lost_is_unknown(through: RemoteSpace, proxy: Proxy) -> None:
    proxy.cut = 1
    with pytest.raises(spool.CommitUnknown, match="may have taken effect, or not"):
        through.put("other", "x")
    assert [message.body for message in through.browse("other")] == ["x"]


def test_a_put_with_a_key_repeats_itself(through: RemoteSpace, proxy: Proxy) -> None:
    proxy.cut = 3
    id_ = through.put("once", "x", deduplication_key="k")
    assert isinstance(id_, spool.MessageId)
    assert id_.duplicate
    assert [message.id for message in through.browse("once")] == [id_]


def test_a_get_repeats_its_acknowledgement(through: RemoteSpace, proxy: Proxy, server: Server) -> None:
    through.put_many("other", ["a", "b", "c"])
    with before(server, "commit", act=lambda: setattr(proxy, "cut", 2)):
        assert through.get("other").body == "a"
    assert through.stats("other").dequeued == 1


def test_a_claim_whose_answer_is_lost_comes_again(through: RemoteSpace, proxy: Proxy) -> None:
    through.put("other", "a")
    proxy.cut = 1
    with mock.patch.object(leases, "LEASE_SECONDS", 1.0), pytest.raises(Unreachable):
        through.get("other")
    found = through.get("other", timeout=WAIT)
    assert (found.body, found.attempts) == ("a", 1)


def test_a_worker_repeats_the_end_of_a_call(through: RemoteSpace, proxy: Proxy, server: Server) -> None:
    through.put_many("orders", ["a", "b"])
    with before(server, "conclude", act=lambda: setattr(proxy, "cut", 2)):
        summary = through.work("orders", lambda message: message.body, once=True)
    assert (summary.delivered, summary.retried) == (2, 0)
    assert [message.body for message in through.browse("replies")] == ["a", "b"]


# -- a server that dies -----------------------------------------------------------------------------------------------


def test_an_unreachable_server_is_an_error_at_once(directory: Path) -> None:
    address = f"http://127.0.0.1:{free_port()}/shop"
    with spool.connect(address) as space:
        for call in (lambda: space.put("other", "x"), lambda: space.get("other"), space.stats):
            with pytest.raises(spool.SystemFailure, match="cannot be reached: start it"):
                call()


@pytest.mark.parametrize("at", [("claims",), ("commit",)], ids=["claim", "acknowledgement"])
def test_a_get_survives_a_restart(remote: RemoteSpace, server: Server, at: tuple[str, ...]) -> None:
    remote.put("other", "a")
    with before(server, *at, act=server.restart):
        assert remote.get("other", timeout=WAIT).body == "a"
    with pytest.raises(spool.Empty):
        remote.get("other")
    assert remote.stats("other").dequeued == 1


@pytest.mark.parametrize("is_done", [False, True])
def test_a_get_whose_acknowledgement_is_unknown_looks_for_its_message(
    through: RemoteSpace, proxy: Proxy, server: Server, is_done: bool
) -> None:
    """The server dies during the acknowledgement: before it, or after it, and the answer is lost in both cases."""
    through.put("other", "a")
    call, died = HttpConnection.call, list[bool]()

    def die(self: HttpConnection, method: str, *path: str, **given: Any) -> Any:
        if path[-1] == "commit" and not died:
            died.append(True)
            if is_done:
                call(self, method, *path, **given)
            server.restart()
            raise Unreachable("it has died", is_sent=True)
        return call(self, method, *path, **given)

    with mock.patch.object(HttpConnection, "call", die):
        assert through.get("other", timeout=WAIT).body == "a"
    assert through.stats("other").dequeued == 1
    assert through.stats("other").ready == 0


def test_a_get_whose_message_nobody_can_look_for_is_unknown(remote: RemoteSpace, server: Server) -> None:
    def lose(*_: object) -> None:
        server.kill()
        raise spool.CommitUnknown("the answer is lost")

    remote.put("other", "a")
    with mock.patch.object(leases.RemoteClaims, "end", lose), pytest.raises(spool.CommitUnknown, match="is lost"):
        remote.get("other")


def test_messages_of_a_process_that_died_do_not_keep_those_of_the_others(remote: RemoteSpace) -> None:
    remote.put_many("other", range(4))
    with remote.claims() as claims:
        messages = claims.take("other", 4)
        for lost in messages[::2]:
            claims._held[lost.id].receipt = "dead.0"
        claims.extend()
        with pytest.raises(spool.BadMessageId):
            claims.remove(messages[:2]).result(WAIT)
        claims.release(messages[2:])
        assert (remote.stats("other").ready, remote.stats("other").claimed) == (1, 2)


def test_claims_after_a_restart_are_gone(remote: RemoteSpace, server: Server) -> None:
    remote.put_many("other", ["a", "b"])
    with remote.claims() as claims:
        a, b = claims.take("other", 2)
        server.restart()
        with pytest.raises(spool.BadMessageId, match="started again"):
            claims.remove([a]).result(WAIT)
        assert claims.held == 1
        with suppress(spool.BadMessageId):
            claims.extend()
        claims.begin(b)
    assert sorted(message.body for message in remote.get_many("other", 2, timeout=WAIT)) == ["a", "b"]


def test_a_worker_goes_on_after_restarts(remote: RemoteSpace, server: Server) -> None:
    """A server dies between any two calls of a worker: nothing is lost, and only an attempt that it cut is repeated."""
    bodies = list(range(40))
    remote.put_many("orders", bodies, time_to_live=None)
    seen, stop = list[int](), threading.Event()

    def function(message: spool.Message) -> int:
        seen.append(message.body)
        if message.body in (7, 21) and seen.count(message.body) == 1:
            server.restart()
        return int(message.body)

    results: list[Any] = []
    with mock.patch("spool.workers.pauses.FIRST_PAUSE_SECONDS", 0.05):
        thread = threading.Thread(target=lambda: results.append(remote.work("orders", function, threads=2, stop=stop)))
        thread.start()
        deadline = time.monotonic() + WAIT
        with spool.open(server._directory) as local:
            while local.stats("replies").enqueued < 40 and time.monotonic() < deadline:
                time.sleep(0.05)
            stop.set()
            thread.join(WAIT)
            assert sorted(message.body for message in local.browse("replies")) == bodies
            assert local.stats("orders").ready == local.stats("orders").claimed == 0
    assert set(seen) == set(bodies)
    assert results[0].delivered >= 36


def test_a_worker_waits_for_its_server(
    remote: RemoteSpace, server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spool.workers.pauses.LONGEST_PAUSE_SECONDS", 0.2)
    called, stop = Semaphore(0), threading.Event()
    thread = threading.Thread(target=lambda: remote.work("orders", lambda _: called.release(), stop=stop))
    thread.start()
    remote.put("orders", "x")
    assert called.acquire(timeout=WAIT)
    remote.get("replies", timeout=WAIT)  # (the end of the call has been answered)
    server.kill()
    deadline = time.monotonic() + WAIT
    while "next attempt in 0.2 s" not in caplog.text and time.monotonic() < deadline:
        time.sleep(0.02)
    server.start()
    remote.put("orders", "y")
    assert called.acquire(timeout=WAIT)
    stop.set()
    thread.join(WAIT)
    assert "cannot be reached" in caplog.text


# -- refusals ---------------------------------------------------------------------------------------------------------

ALL, TAKES, LOOKS = "a-token-for-everything", "a-token-that-takes-orders", "a-token-that-only-looks"


def test_tokens(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (ALL, f"{TAKES} shop:take=orders", f"{LOOKS} shop:look")
    (tmp_path / "token").write_text(f"{ALL}\n")
    monkeypatch.delenv("XASPOOL_TOKEN", raising=False)
    with served(directory, *lines) as address:
        for given in ({"token": ALL}, {"token_file": tmp_path / "token"}):
            with spool.connect(address, **given) as remote:
                remote.put("orders", "x")
        monkeypatch.setenv("XASPOOL_TOKEN", ALL)
        with spool.connect(address) as remote:
            remote.put("orders", "x")
        monkeypatch.delenv("XASPOOL_TOKEN")
        for token in (None, "another token".replace(" ", "-")):
            with spool.connect(address, token=token) as remote, pytest.raises(spool.AccessDenied, match="token"):
                remote.get("orders")
        with spool.connect(address, token=LOOKS) as remote:
            assert remote.stats("orders").ready == 3
            with pytest.raises(spool.AccessDenied, match="shop:put"):
                remote.put("orders", "x")
        with spool.connect(address, token=TAKES) as remote:
            stop, seen = threading.Event(), list[str]()

            def function(message: spool.Message) -> Any:
                seen.append(message.body)
                stop.set()
                return spool.Translated([spool.NewMessage("other", "x")]) if len(seen) == 2 else "reply"

            assert remote.work("orders", function, stop=stop).delivered == 1
            stop.clear()
            summary = remote.work("orders", function, stop=stop)
            assert "shop:put=other" in summary.reasons["retried"]
            with pytest.raises(spool.AccessDenied):
                remote.stats()


@pytest.mark.parametrize(
    ("address", "given", "text"),
    [
        ("/var/spool/shop", {}, "is not the address of a space"),
        ("https://host:8815", {}, "https://HOST:PORT/NAME"),
        ("http://host:99999/shop", {}, "is not the address"),
        ("spool+grpc://host:8815/shop", {}, "write http://host:8815/shop"),
        ("http://host/shop", {"token": "two\nlines"}, "one line"),
        ("http://host/shop", {"token_file": "missing"}, "missing"),
        ("https://host/shop", {"certificate_file": "/dev/null"}, "no certificate"),
    ],
)
def test_a_wrong_address_token_or_file(address: str, given: dict[str, str], text: str) -> None:
    with pytest.raises(spool.InvalidArgument, match=text):
        spool.connect(address, **given)


def test_a_server_with_tls(directory: Path, tmp_path: Path) -> None:
    certificate(tmp_path, "127.0.0.1")
    cert, key = (str(tmp_path / name) for name in ("cert.pem", "key.pem"))
    with served(directory, certificate=cert, key=key) as address:
        assert address.startswith("https://")
        with spool.connect(address, certificate_file=cert) as remote:
            remote.put("other", "x")
            assert remote.get("other").body == "x"
        with spool.connect(address) as remote, pytest.raises(Unreachable, match="certificate"):
            remote.put("other", "x")
        with spool.connect(address.replace("https", "http")) as remote, pytest.raises(spool.SystemFailure):
            remote.get("other")


def test_an_address_of_no_space_or_no_server_of_spaces(directory: Path) -> None:
    with served(directory) as address:
        with spool.connect(address.replace("shop", "shap")) as remote, pytest.raises(spool.SpoolError, match="shap"):
            remote.put("other", "x")
        with spool.connect(address.replace("http", "https")) as remote, pytest.raises(Unreachable, match="http://"):
            remote.put("other", "x")


def test_calls_that_a_space_by_http_cannot_have(directory: Path) -> None:
    with served(directory) as address, spool.connect(address) as remote:
        for name in ("transaction", "submit", "consume", "replace", "engine", "create_queue", "path"):
            with pytest.raises(spool.ProtocolError, match=rf"no {name}: claims\(\)\.commit"):
                getattr(remote, name)
        assert not hasattr(remote, "nothing")
        late: list[Any] = []

        def function(message: spool.Message) -> None:
            with pytest.raises(spool.ProtocolError, match="transaction=None"):
                remote.get("other")
            goes_on.wait(WAIT)
            with pytest.raises(spool.ProtocolError, match="took too long"):
                remote.put("other", "late")
            late.append(message)

        goes_on = threading.Event()
        remote.put("orders", "x")
        assert remote.work("orders", function, once=True, timeout=0.3).abandoned == 1
        goes_on.set()
        deadline = time.monotonic() + WAIT
        while not late and time.monotonic() < deadline:
            time.sleep(0.01)
        assert late
        assert remote.stats("other").enqueued == 0
        assert "127.0.0.1" in repr(remote)


# -- bodies -----------------------------------------------------------------------------------------------------------


class Money:
    def __init__(self, cents: int) -> None:
        self.cents = cents


MONEY = spool.Codec("application/x-money", lambda money: b"%d" % money.cents, lambda raw: Money(int(raw)))


@pytest.fixture
def money() -> Iterator[None]:
    spool.register_codec("money", MONEY, Money)
    yield
    from spool.model import codecs

    codecs.CODECS.pop("money", None)
    codecs._TYPES.pop(Money, None)


@pytest.mark.usefixtures("money")
def test_a_registered_codec_needs_no_codec_in_the_server(remote: RemoteSpace) -> None:
    from spool.model import codecs

    remote.put("other", Money(5))
    remote.put_many("other", [Money(6), Money(7)])
    assert [message.body.cents for message in remote.get_many("other", 2)] == [5, 6]
    with remote.claims() as claims:
        assert claims.take("other")[0].body.cents == 7
    codecs.CODECS.pop("money")
    with pytest.raises(spool.UnknownCodec, match="money") as raised:
        remote.get("other")
    [there] = remote.browse("other")
    assert (there.body, there.id, there.attempts) == (b"7", raised.value.message_id, 0)
    with remote.claims() as claims:
        assert claims.take("other", undecoded=True)[0].body == b"7"
    summary = remote.work("other", lambda message: None, once=True)
    assert "money" in summary.reasons["retried"]


def test_more_bytes_than_a_server_takes_are_refused_at_once() -> None:
    most = 64 << 20
    with spool.connect("http://127.0.0.1:9/shop") as remote:
        for call in (
            lambda: remote.put("other", bytes(most + 1)),
            lambda: remote.put_many("other", [bytes(most), bytes(most)]),
            lambda: remote.request("orders", bytes(most + 1)),
        ):
            with pytest.raises(spool.InvalidArgument, match="bytes"):
                call()


@pytest.mark.slow
def test_bodies_up_to_the_limit(directory: Path) -> None:
    largest = os.urandom(1 << 20) * 64
    with served(directory) as address, spool.connect(address) as remote:
        remote.put("other", largest)
        assert remote.get("other").body == largest
        remote.put("orders", "x")
        assert remote.work("orders", lambda message: largest, once=True).delivered == 1
        assert remote.get("replies").body == largest
        remote.put("orders", "x")
        assert remote.work("orders", lambda message: largest + b"x", once=True).rejected == 1
