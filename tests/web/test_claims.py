"""Claims by HTTP: clients that wait are served in their order, and a client that leaves loses no message."""

import asyncio
import json
import resource
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from forwarder.web import leases
from tests.clocks import LONG, until
from tests.web.conftest import Serve, Served, parsed, received, request

CLAIM = "/v1/shop/queues/orders/claims"


def waiting(served: Served) -> int:
    """Return the number of clients that wait for messages."""
    return sum(len(line.waiters) for line in [*served.leases._lines.values()])


@contextmanager
def open_files(count: int) -> Iterator[None]:
    """Let this process open so many files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), max(hard, count)))
    except (ValueError, OSError):
        pytest.skip(f"this process may open at most {hard} files")
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def memory() -> int:
    """Return the bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize("count", [200, pytest.param(9_500, marks=pytest.mark.slow)])
@pytest.mark.timeout(600)
def test_clients_that_wait_are_served_in_their_order(served: Served, count: int) -> None:
    """The clients come in groups, because the server reads the requests of one moment in any order."""
    group, polls = count // 20, dict[int, int]()
    with open_files(2 * count + 500), ExitStack() as opened:
        before, poller = memory(), select.epoll()
        opened.callback(poller.close)
        for begin in range(0, count, group):
            for _ in range(group):
                client = opened.enter_context(served.connected(request("POST", f"{CLAIM}?wait=60")))
                polls[client.fileno()] = begin // group
                poller.register(client.fileno(), select.EPOLLIN)
            until(lambda begin=begin: waiting(served) == begin + group)
        bytes_a_poll = (memory() - before) / count  # of the server and of the test's client
        assert bytes_a_poll < 40_000
        for served_before in range(0, count // 2, group):
            served.space.put_many("orders", [b"x"] * group)
            answered = set[int]()
            while len(answered) < group:
                found = [number for number, _ in poller.poll(LONG)]
                assert found
                for number in found:
                    poller.unregister(number)
                answered |= set(found)
            assert {polls[number] for number in answered} == {served_before // group}
        assert waiting(served) == count - count // 2
        assert len(served.leases) == count // 2


def test_a_message_reaches_a_client_that_waits(served: Served) -> None:
    with served.connected(request("POST", f"{CLAIM}?wait=60")) as client:
        until(lambda: waiting(served))
        served.space.put("orders", b"hello", correlation_id="c", headers={"tenant": "blå"})
        [(status, headers, body)] = parsed(client.recv(1 << 16))
    assert (status, body) == (200, b"hello")
    assert (headers["spool-correlation-id"], headers["spool-header-tenant"]) == ("c", "bl%C3%A5")


def test_a_client_that_has_left_gets_no_message(served: Served) -> None:
    with served.connected(request("POST", f"{CLAIM}?wait=60")):
        until(lambda: waiting(served))
    until(lambda: not waiting(served))
    served.space.put("orders", b"hello")
    with served.client() as client:
        assert client.post("/queues/orders/claims").headers["spool-attempts"] == "0"


@pytest.mark.parametrize("behind", [b"", request("GET", "/healthz")])
def test_a_client_that_leaves_while_a_message_is_claimed_for_it_costs_no_attempt(
    served: Served, behind: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``behind``: a further request of the client, which waits for the answer of the first."""
    claimed, go_on, taken = threading.Event(), threading.Event(), leases._taken

    def take(*arguments: Any) -> Any:
        if found := taken(*arguments):
            claimed.set()
            assert go_on.wait(LONG)
        return found

    monkeypatch.setattr(leases, "_taken", take)
    with served.connected(request("POST", f"{CLAIM}?wait=60"), behind) as client:
        until(lambda: waiting(served))
        served.space.put("orders", b"hello")
        assert claimed.wait(LONG)
        client.shutdown(socket.SHUT_RDWR)
    until(lambda: not served.server._http.server_state.connections)
    go_on.set()
    with served.client() as client:
        answer = client.post("/queues/orders/claims?wait=30")
        assert (answer.content, answer.headers["spool-attempts"]) == (b"hello", "0")
    assert len(served.leases) == 1


def test_the_end_of_the_server_ends_the_waits_and_releases_the_messages(served: Served) -> None:
    served.space.put("orders", b"held")
    with served.client() as client:
        client.post("/queues/orders/claims")
        with served.connected(request("POST", f"{CLAIM}?wait=60")) as waits:
            until(lambda: waiting(served))
            assert served.server.close()
            assert parsed(waits.recv(1 << 16))[0][0] == 204
    with served.space.claims() as claims:
        [message] = claims.take("orders")
        assert (message.body, message.attempts) == (b"held", 0)


def test_a_claim_of_fewer_messages_turns_no_client_away(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim leaves out messages that were removed at the same moment, although later messages are free."""
    taken = leases._taken

    def take_one(claims: Any, queue: str, most: int, wanted: Any) -> Any:
        until(lambda: waiting(served) + len(served.leases) == 3)
        return taken(claims, queue, 1, wanted)

    monkeypatch.setattr(leases, "_taken", take_one)
    served.space.put_many("orders", [b"1", b"2", b"3"])
    with ExitStack() as opened:
        clients = [opened.enter_context(served.connected(request("POST", CLAIM))) for _ in range(3)]
        assert [parsed(client.recv(1 << 16))[0][0] for client in clients] == [200] * 3


def test_a_call_after_the_release_of_all_messages_is_refused_as_by_a_server_that_ends(served: Served) -> None:
    """The server accepts a connection at the last moment, after it has released the messages."""
    served.space.put("orders", b"held")
    with served.client() as client:
        receipt = client.post("/queues/orders/claims").headers["spool-receipt"]
        asyncio.run_coroutine_threadsafe(served.leases.close(), served.server._loop).result(LONG)
        answer = client.post("/queues/orders/claims?wait=20")
        assert (answer.status_code, answer.json()["detail"]) == (503, leases.ENDED)
        assert client.delete(f"/claims/{receipt}").status_code == 410


def test_a_lease_that_ends_counts_an_attempt_and_its_receipt_is_gone(served: Served) -> None:
    served.space.put("orders", b"hello")
    with served.client() as client:
        receipt = client.post("/queues/orders/claims?lease=1").headers["spool-receipt"]
        again = client.post("/queues/orders/claims?wait=30")
        assert again.headers["spool-attempts"] == "1"
        assert client.delete(f"/claims/{receipt}").status_code == 410
        assert client.delete(f"/claims/{again.headers['spool-receipt']}").status_code == 204


def test_a_repeated_call_gets_the_same_answer(served: Served) -> None:
    """A client that got no answer may repeat its call."""
    served.space.put("orders", b"hello")
    with served.client() as client:
        at = f"/claims/{client.post('/queues/orders/claims').headers['spool-receipt']}"
        put = {"put": [{"queue": "results", "body": "done"}]}
        answers = [client.post(f"{at}/commit", json=put) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 200]
        assert answers[0].json() == answers[1].json()
        assert client.delete(at).status_code == 410
    assert served.space.stats("results").ready == 1


def test_a_full_queue_refuses_with_the_time_to_wait(served: Served) -> None:
    served.space.create_queue("small", max_messages=1)
    with served.client() as client:
        assert client.post("/queues/small/messages", content=b"x").status_code == 201
        full = client.post("/queues/small/messages", content=b"x")
        assert (full.status_code, full.headers["retry-after"], full.json()["error"]) == (507, "5", "Full")


def test_too_many_leases_are_refused(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "MOST_LEASES", 1)
    served.space.put_many("orders", [b"1", b"2"])
    with served.client() as client:
        assert client.post("/queues/orders/claims").status_code == 200
        refused = client.post("/queues/orders/claims")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")


def test_a_claim_has_bounded_bytes_and_an_ended_lease_is_over(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "_MOST_BYTES", 10)
    served.space.put_many("orders", [b"four"] * 9)
    with served.client() as client:
        lines = client.post(f"{CLAIM}?max=9".removeprefix("/v1/shop")).text.splitlines()
        assert len(lines) == 4
        [*map(setattr, served.leases._leases.values(), ["ending"] * 4, [("expiry", None)] * 4)]
        assert client.post(f"/claims/{json.loads(lines[0])['receipt']}/extend").status_code == 410


def test_a_put_that_the_end_of_the_server_cuts_is_unknown(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forwarder.web.server._GRACE_SECONDS", 1)
    served, begun = serve(), threading.Event()
    monkeypatch.setattr("spool.aio.Space.put", lambda *_, **__: asyncio.sleep(LONG, begun.set()))
    with served.connected(request("POST", "/v1/shop/queues/orders/messages", b"x", last=True)) as client:
        assert begun.wait(LONG)
        served.server.close()
        [(status, _, body)] = parsed(received(client))
    assert (status, json.loads(body)["error"]) == (503, "CommitUnknown")
