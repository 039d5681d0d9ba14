"""Clients that send no proper requests, or never end: each gets an answer with a problem, or loses its connection."""

import json
import socket
import threading
from contextlib import ExitStack, suppress

import pytest

from forwarder.web import connection_limits, web_call
from tests.web.conftest import Serve, Served, parsed, problem, received, request

PUT = "/v1/shop/queues/orders/messages"
CLAIM = "/v1/shop/queues/orders/claims"
LINES = ("Content-Type", "application/x-ndjson")
CHUNKED = ("Transfer-Encoding", "chunked")
TOKEN = "a-token-of-the-tests-0123456789"

MALFORMED = {
    "no request": b"\0\1\2\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "two lengths that differ": request("POST", PUT, b"abcdef", ("Content-Length", "3"), ("Content-Length", "6")),
    "a negative length": request("POST", PUT, b"abc", ("Content-Length", "-3")),
    "a length with a sign": request("POST", PUT, b"abc", ("Content-Length", "+3")),
    "an enormous length": request("POST", PUT, b"abc", ("Content-Length", "9" * 40)),
    "a length that is a word": request("POST", PUT, b"abc", ("Content-Length", "three")),
    "a length and chunks": request("POST", PUT, b"0\r\n\r\n", ("Content-Length", "5"), CHUNKED),
    "chunks and a length": request("POST", PUT, b"0\r\n\r\n", CHUNKED, ("Content-Length", "5")),
    "an unknown coding": request("POST", PUT, b"abc", ("Transfer-Encoding", "gzip")),
    "a hidden coding": request("POST", PUT, b"0\r\n\r\n", b"Transfer-Encoding: xchunked"),
    "no size of a chunk": request("POST", PUT, b"x\r\nabc\r\n0\r\n\r\n", CHUNKED),
    "a negative size of a chunk": request("POST", PUT, b"-1\r\nabc\r\n0\r\n\r\n", CHUNKED),
    "an enormous chunk": request("POST", PUT, b"f" * 25 + b"\r\nabc", CHUNKED),
    "a chunk that is longer": request("POST", PUT, b"1\r\nabc\r\n0\r\n\r\n", CHUNKED),
    "a blank before the colon": request("POST", PUT, b"", b"Spool-Delay : 1"),
    "a folded header": request("POST", PUT, b"", b"Spool-Delay: 1\r\n 2", last=True),
    "a NUL in a header": request("POST", PUT, b"", b"Spool-Delay: \0"),
    "a NUL in a name": request("POST", PUT, b"", b"Spool\0Delay: 1"),
    "a line feed in a target": b"POST /v1\n/shop HTTP/1.1\r\nHost: x\r\n\r\n",
    "a NUL in a target": b"POST /v1/\0/queues HTTP/1.1\r\nHost: x\r\n\r\n",
    "a head that never ends": b"GET / HTTP/1.1\r\nX: " + b"x" * 600_000,
    "too many headers": b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 200_000,
    "a target that never ends": b"GET /" + b"x" * 600_000,
}


def test_a_malformed_request_is_a_bad_request_and_ends_the_connection(served: Served) -> None:
    for case, sent in MALFORMED.items():
        with served.connected() as client:
            with suppress(BrokenPipeError, ConnectionResetError):  # (the server has closed before it got all)
                client.sendall(sent)
            answers = parsed(received(client))
        if len(sent) < 10_000 or answers:
            [answer] = answers
            assert answer[0] in (400, 431), (case, answer)
            assert problem(answer)
            assert answer[1]["connection"] == "close"
    assert served.space.stats("orders").ready == 0


def test_the_faults_of_clients_are_logged_with_their_address_and_no_more_than_twenty_a_minute(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(25):
        assert served.answers(b"\0\r\n\r\n")[0][0] == 400
    assert [each.getMessage() for each in caplog.records] == [
        "a call was refused: 127.0.0.1: Invalid HTTP request received."
    ] * 20


WRONG: dict[str, tuple[int, bytes]] = {
    "no address": (404, request("GET", "/v1")),
    "the address of a file": (404, request("GET", "/v1/shop/../../etc/passwd")),
    "no space": (404, request("GET", "/v1/none/queues")),
    "no queue": (404, request("POST", "/v1/shop/queues/none/messages", b"x")),
    "a queue with a NUL": (400, request("POST", "/v1/shop/queues/a%00b/messages", b"x")),
    "a queue that is no UTF-8": (400, request("POST", "/v1/shop/queues/%ff%fe/messages", b"x")),
    "a queue that is a path": (400, request("POST", "/v1/shop/queues/..%2f..%2fetc/messages", b"x")),
    "no method of HTTP": (405, request("PATCH", PUT, b"x")),
    "a wait that is NaN": (400, request("POST", f"{CLAIM}?wait=nan")),
    "an enormous number": (400, request("POST", f"{CLAIM}?max=" + "9" * 5000)),
    "a negative number": (400, request("POST", f"{CLAIM}?lease=-1")),
    "a query that is no UTF-8": (400, request("POST", f"{CLAIM}?correlation_id=%ff%fe")),
    "an unknown argument": (400, request("POST", f"{CLAIM}?message-id=" + "0" * 32)),
    "an option in the address": (400, request("POST", f"{PUT}?priority=5", b"x")),
    "a key that is no UTF-8": (400, request("POST", PUT, b"x", ("Idempotency-Key", "M%FCller"))),
    "a text that is not encoded": (400, request("POST", PUT, b"x", ("Spool-Correlation-Id", "gr\xfcn"))),
    "an unknown header": (400, request("POST", PUT, b"x", ("Spool-Colour", "red"))),
    "a priority beyond its bounds": (400, request("POST", PUT, b"x", ("Spool-Priority", "9" * 6000))),
    "a delay that is NaN": (400, request("POST", PUT, b"x", ("Spool-Delay", "nan"))),
    "a header beyond ASCII": (400, request("POST", PUT, b"x", ("Spool-Delay", "\xff\xfe"))),
    "JSON that is none": (400, request("POST", PUT, b"{", ("Content-Type", "application/json"))),
    "JSON in capitals that is none": (400, request("POST", PUT, b"{", ("Content-Type", "Application/JSON"))),
    "two headers of a name": (400, request("POST", PUT, b"x", *[("Spool-Header-A", "b")] * 2)),
    "a line that is no JSON": (400, request("POST", PUT, b"{\n", LINES)),
    "a line without a body": (400, request("POST", PUT, b"{}\n", LINES)),
    "a line that is a list": (400, request("POST", PUT, b"[]\n", LINES)),
    "a line that is no UTF-8": (400, request("POST", PUT, b'{"body":"\xff"}\n', LINES)),
    "NaN": (400, request("POST", PUT, b'{"body":NaN}\n', LINES)),
    "a number that is infinite": (400, request("POST", PUT, b'{"body":[1e999]}\n', LINES)),
    "half a surrogate": (400, request("POST", PUT, b'{"body":["\\ud800"]}\n', LINES)),
    "half a surrogate as text": (400, request("POST", PUT, b'{"body":"\\ud800"}\n', LINES)),
    "deep JSON": (400, request("POST", PUT, b'{"body":' + b"[" * 100_000 + b"\n", LINES)),
    "an option of the wrong kind": (400, request("POST", PUT, b'{"body":1,"priority":{}}\n', LINES)),
    "an enormous integer": (400, request("POST", PUT, b'{"body":1,"priority":' + b"9" * 5000 + b"}\n", LINES)),
    "no receipt": (410, request("DELETE", "/v1/shop/claims/%00%ff")),
    "a receipt of no process": (410, request("DELETE", "/v1/shop/claims/99999999999999999999.x")),
    "a commit that is a list": (400, request("POST", "/v1/shop/claims/x/commit", b"[]")),
    "a commit of unknown length": (410, request("POST", "/v1/shop/claims/x/commit", b"2\r\n[]\r\n0\r\n\r\n", CHUNKED)),
    "two types of a body": (400, request("POST", PUT, b"x", ("Content-Type", "text/plain"), ("Content-Type", "a/b"))),
    "a failure of no receipt": (410, request("POST", "/v1/shop/claims/x/fail", b'{"delay": []}')),
    "a filter that is unknown": (400, request("GET", f"{PUT}?filters=%7B%22x%22%3A1%7D")),
    "a filter that is no JSON": (400, request("GET", f"{PUT}?filters=%7B")),
    "a filter of the wrong kind": (400, request("GET", f"{PUT}?filters=%7B%22correlation_id%22%3A%7B%7D%7D")),
    "a compressed body": (415, request("POST", PUT, b"x", ("Content-Encoding", "gzip"))),
    "a body that is too large": (413, request("POST", f"{CLAIM}", b"{" + b" " * 600_000 + b"}")),
    "a body that is announced as too large": (413, request("POST", PUT, b"", ("Content-Length", str(1 << 40)))),
}


def test_a_wrong_request_is_a_problem_and_the_next_request_is_answered(served: Served) -> None:
    for case, (status, sent) in WRONG.items():
        first, *others = served.answers(sent + request("GET", "/healthz", last=True))
        assert first[0] == status, (case, first)
        assert problem(first)
        assert status == 413 or [each[0] for each in others] == [200]  # (413 may end the connection)
    assert served.space.stats("orders").ready == 0


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a server have little patience with silent clients."""
    monkeypatch.setattr(connection_limits, "_LOOK_SECONDS", 0.1)
    monkeypatch.setattr(connection_limits, "_SILENT_SECONDS", 0.3)


def test_a_receipt_with_a_wrong_delay_remains(served: Served) -> None:
    served.space.put("orders", "held")
    with served.client() as client:
        receipt = client.post("/queues/orders/claims").headers["spool-receipt"]
        wrong = (b'{"delay": "x"}', b'{"delay": 1e999}', b'{"delay": -1}', b'{"reason": 3}')
        answers = [client.post(f"/claims/{receipt}/fail", content=body) for body in wrong]
        assert [(each.status_code, "Spool-" in each.text) for each in answers] == [(400, False)] * 4
        assert client.delete(f"/claims/{receipt}").status_code == 204


ABSOLUTE = b"GET http://elsewhere:99/healthz?x=1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def test_a_whole_url_a_head_request_and_options_are_answered(served: Served) -> None:
    assert [status for status, *_ in served.answers(ABSOLUTE)] == [200]
    with served.client() as client:
        head, get = client.head("/queues/orders"), client.get("/queues/orders")
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == get.headers["content-length"]
        assert client.options("/queues/orders/messages").headers["allow"] == "GET, HEAD, OPTIONS, POST"
        wrong = client.put("/queues/orders/messages", content=b"x")
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET, HEAD, OPTIONS, POST")


def test_a_request_for_another_protocol_is_answered_as_usual(served: Served) -> None:
    """Java's client asks for HTTP/2 with its first request."""
    upgrade = [("Connection", "Upgrade, HTTP2-Settings"), ("Upgrade", "h2c"), ("HTTP2-Settings", "AAEAAEAAAAIAAAAB")]
    sent = request("POST", PUT, b"first", *upgrade) + request("POST", PUT, b"second", last=True)
    assert [status for status, *_ in served.answers(sent)] == [201, 201]
    assert [each.body for each in served.space.browse("orders")] == [b"first", b"second"]


def test_pipelined_requests_are_answered_in_their_order(served: Served) -> None:
    answers = served.answers(b"".join(request("POST", PUT, b"%d" % number, last=number == 19) for number in range(20)))
    assert [status for status, *_ in answers] == [201] * 20
    found = {each.id: each.body for each in served.space.browse("orders")}
    assert [found[json.loads(body)["id"]] for _, _, body in answers] == [b"%d" % number for number in range(20)]


def test_a_client_cannot_let_any_number_of_requests_wait(served: Served) -> None:
    with served.connected(request("POST", f"{CLAIM}?wait=60")) as client:
        with suppress(OSError):
            client.sendall(request("GET", "/healthz") * 200)
        assert received(client) == b""


def test_a_trailer_is_no_header(served: Served) -> None:
    sent = request("POST", PUT, b"1\r\nx\r\n0\r\nSpool-Priority: 7\r\n\r\n", CHUNKED, last=True)
    assert [status for status, *_ in served.answers(sent)] == [201]
    [message] = served.space.browse("orders")
    assert message.priority == 50


def test_a_body_is_asked_for_only_when_it_is_wanted(serve: Serve) -> None:
    """``Expect: 100-continue``: a client without a token, or with too large a body, need not send it."""
    served = serve([TOKEN])
    expect, token = ("Expect", "100-continue"), ("Authorization", f"Bearer {TOKEN}")
    for headers, size, wanted in (([expect], 5, 401), ([expect, token], 1 << 40, 413)):
        with served.connected(request("POST", PUT, b"", *headers, ("Content-Length", str(size)))) as client:
            [answer] = parsed(received(client))
            assert (answer[0], answer[1]["connection"]) == (wanted, "close")
            assert problem(answer)
    with served.connected(request("POST", PUT, b"", expect, token, ("Content-Length", "5"), last=True)) as client:
        assert client.recv(100).startswith(b"HTTP/1.1 100")
        client.sendall(b"hello")
        assert parsed(received(client))[0][0] == 201


def test_a_body_without_a_token_is_not_read(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server answers at once, and reads little of the rest."""
    monkeypatch.setattr(connection_limits, "_LINGER_SECONDS", 0.2)
    served = serve([TOKEN])
    with served.connected(request("POST", PUT, b"", ("Content-Length", str(1 << 30)))) as client:
        sent = 0
        with suppress(OSError):
            while sent < 1 << 28:
                sent += client.send(bytes(1 << 16))
        assert sent < 1 << 27
    with served.connected(request("POST", PUT, b"x" * 1000, ("Content-Length", "2000"))) as client:
        [answer] = parsed(received(client))
    assert answer[0] == 401
    assert answer[1]["www-authenticate"] == "Bearer"


def test_many_bodies_at_once_have_a_limit(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_call, "MOST_BYTES_AT_ONCE", 1 << 20)
    half = request("POST", PUT, b"x" * 400_000, ("Content-Length", "400001"))
    with ExitStack() as opened:
        clients = [opened.enter_context(served.connected(half)) for _ in range(3)]
        refused = threading.Event()
        found: list[bytes] = [b""] * 3

        def read(number: int) -> None:
            found[number] = clients[number].recv(4096)
            refused.set()

        threads = [threading.Thread(target=read, args=(number,)) for number in range(3)]
        for each in threads:
            each.start()
        assert refused.wait(30)
        [late] = [number for number in range(3) if found[number]]
        assert b" 429 " in found[late].splitlines()[0]
        assert b"retry-after: 5" in found[late]
        for number, client in enumerate(clients):
            if number != late:
                client.sendall(b"x")
        for each in threads:
            each.join()
        assert all(b" 201 " in each for number, each in enumerate(found) if number != late)
    assert served.server._state.bytes_held == 0


SLOW = (
    b"",
    b"POST /v1/shop/queues",
    request("POST", PUT, b"x" * 10, ("Content-Length", "20")),
    request("POST", PUT, b"5\r\nab", CHUNKED),
)
"""Nothing, half a head, half a body, and half a chunk."""


def test_a_client_that_sends_no_more_loses_its_connection(impatient: None, served: Served) -> None:
    with ExitStack() as opened:
        for client in [opened.enter_context(served.connected(sent)) for sent in SLOW]:
            assert received(client) == b""
    assert served.space.stats("orders").ready == 0


def test_a_head_that_arrives_byte_by_byte_has_a_time_limit(impatient: None, served: Served) -> None:
    ended = threading.Event()
    with served.connected(b"GET /healthz HTTP/1.1\r\nX: ") as client:

        def trickle() -> None:
            with suppress(OSError):
                while not ended.wait(0.02):
                    client.sendall(b"x")

        thread = threading.Thread(target=trickle)
        thread.start()
        assert received(client) == b""
        ended.set()
        thread.join()


def test_a_long_poll_outlives_the_limits_of_connections(impatient: None, served: Served) -> None:
    with served.client() as client:
        assert client.post("/queues/orders/claims?wait=1").status_code == 204


def test_many_connections_that_wait_keep_no_client_out(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forwarder.web.server.most_connections", lambda: 50)
    served = serve()
    with ExitStack() as opened:
        for number in range(200):
            sent = [b"", b"POST /v1", request("POST", PUT, b"x", ("Content-Length", "9"))][number % 3]
            opened.enter_context(served.connected(sent))
        with served.client() as client:
            assert client.post("/queues/orders/messages", content=b"x").status_code == 201


def test_an_answer_that_nobody_reads_ends_with_its_connection(impatient: None, served: Served) -> None:
    served.space.put_many("orders", [b"x" * 1_000_000] * 40)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(30)
        client.connect(("127.0.0.1", served.port))
        client.sendall(request("GET", PUT, b"", ("Accept", "application/x-ndjson")))
        while served.server._http.server_state.connections:
            threading.Event().wait(0.05)
    assert served.server._state.bytes_held == 0


def test_a_message_that_was_claimed_for_a_large_answer_is_counted_while_it_is_sent(served: Served) -> None:
    served.space.put("orders", b"x" * (8 << 20))
    with served.client() as client, client.stream("POST", "/queues/orders/claims") as answer:
        assert served.server._state.bytes_held in (0, 8 << 20)
        assert sum(map(len, answer.iter_bytes())) == 8 << 20
