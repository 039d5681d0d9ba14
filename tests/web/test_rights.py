"""The rights of tokens: which calls each right allows."""

import json
from typing import Any

import httpx
import pytest

import spool
from forwarder.web import messages
from tests.web.conftest import Serve, Served

TOKENS = {
    "all": "",
    "look": "shop:look",
    "put": "shop:put",
    "put=orders": "shop:put=orders",
    "put=results": "shop:put=results",
    "take": "shop:take",
    "take=orders": "shop:take=orders",
    "take=orders put=results": "shop:take=orders shop:put=results",
    "put=orders take=results": "shop:put=orders shop:take=results",
    "read": "shop:read",
    "write": "shop:write",
    "subscribe=sales": "shop:subscribe=sales",
    "look elsewhere": "other:look",
}
ANY = set(TOKENS) - {"look elsewhere"}
PUT, CLAIM = "/queues/orders/messages", "/queues/orders/claims"
TAKE = {"all", "take", "take=orders", "take=orders put=results"}
PUTS = {"all", "put", "put=orders", "put=orders take=results", "write"}
LOOK = {"all", "look", "read", "write", "subscribe=sales"}
INTO_RESULTS = {"all", "put", "put=results", "take=orders put=results", "write"}
BOTH = b'{"put": [{"queue": "results", "body": 1}, {"queue": "orders", "body": 1}]}'
ONE, REPLY = (b'{"put": [{"queue": "results", "body": 1%s}]}' % more for more in (b"", b', "reply_queue": "orders"'))
ENDS, REQUEST = "/claims/0.none", "/queues/orders/request?timeout=0"
CALLS: dict[str, tuple[tuple[Any, ...], set[str]]] = {
    "put": (("POST", PUT, b"x"), PUTS),
    "put with a reply queue": (("POST", PUT, b"x", ("Spool-Reply-Queue", "results")), PUTS - {"put=orders"}),
    "claim": (("POST", CLAIM, b""), TAKE),
    "look at the queues": (("GET", "/queues", b""), LOOK),
    "look at a queue": (("GET", "/queues/orders", b""), LOOK),
    "browse": (("GET", PUT, b""), LOOK),
    "request": (("POST", REQUEST, b"x"), {"all", "put=orders take=results"}),
    "request with a failure queue": (("POST", REQUEST, b"x", ("Spool-Failure-Queue", "orders")), {"all"}),
    "end a lease": (("DELETE", ENDS, b""), ANY),
    "commit into a queue": (("POST", f"{ENDS}/commit", ONE), INTO_RESULTS),
    "commit with a reply queue": (("POST", f"{ENDS}/commit", REPLY), INTO_RESULTS - {"put=results"}),
    "commit into two queues": (("POST", f"{ENDS}/commit", BOTH), {"all", "put", "write"}),
    "conclude with a reply": (("POST", f"{ENDS}/conclude", b'{"reply": {"body": 1}}'), ANY),
    "conclude with a message": (("POST", f"{ENDS}/conclude", ONE), INTO_RESULTS),
    "conclude with a reply queue": (("POST", f"{ENDS}/conclude", REPLY), INTO_RESULTS - {"put=results"}),
    "pass on": (("POST", f"{ENDS}/conclude", b'{"pass": "results"}'), INTO_RESULTS),
}  # fmt: skip


def token(name: str) -> str:
    return name.replace(" ", "_").replace("=", "_").ljust(20, "0")


@pytest.fixture
def guarded(serve: Serve, space: spool.Space) -> Served:
    space.change_queue("orders", reply_queue="results")
    return serve([f"{token(name)} {rights}" for name, rights in TOKENS.items()])


def test_a_call_needs_its_right(guarded: Served) -> None:
    for name in TOKENS:
        with guarded.client(token(name)) as client:
            for call, ((method, at, body, *headers), allowed) in CALLS.items():
                status = client.request(method, at, content=body, headers=headers).status_code
                assert (status not in (401, 403, 404)) == (name in allowed), (name, call, status)


def test_a_claim_belongs_to_its_token(guarded: Served) -> None:
    guarded.space.put("orders", b"x")
    with guarded.client(token("take")) as client, guarded.client(token("all")) as other:
        receipt = client.post(CLAIM).headers["spool-receipt"]
        assert other.delete(f"/claims/{receipt}").status_code == 410
        assert other.post(f"/claims/{receipt}/extend").status_code == 410
        assert client.delete(f"/claims/{receipt}").status_code == 204


def test_an_unknown_or_missing_token_is_unauthorized_without_its_name_in_the_answer(guarded: Served) -> None:
    for header in (None, "Bearer unknown-token-0123456789", "Basic eDp5", f"bearer{token('all')}", "Bearer \xff"):
        headers = {} if header is None else {"Authorization": header.encode("latin-1")}
        with guarded.client() as client:
            answer = client.get("/queues", headers=headers)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert "unknown-token" not in answer.text
    with guarded.client() as client:
        assert client.get(f"{guarded.url}/openapi.json").status_code == 200


def test_a_space_of_another_token_is_not_named(guarded: Served) -> None:
    with guarded.client(token("look elsewhere")) as client:
        answer = client.get("/queues/orders")
        assert "shop" not in json.loads(answer.content)["detail"].replace("shop:look", "")
        assert client.get("/claims/x").status_code == 405


def test_a_whole_queue_can_be_paged_and_filtered(served: Served) -> None:
    ids = served.space.put_many("orders", [{"number": number} for number in range(25)])
    served.space.put("orders", b"\xff\0", correlation_id="c")
    with served.client() as client:
        found, after = list[Any](), {}
        while True:
            page = client.get(PUT, params={"limit": 10, **after}).json()
            found += page["messages"]
            if page["next"] is None:
                break
            after = {"after": page["next"]}
        assert [each["id"] for each in found][:25] == ids
        assert [each.get("value") for each in found][:3] == [{"number": 0}, {"number": 1}, {"number": 2}]
        [last] = client.get(PUT, params={"correlation_id": "c"}).json()["messages"]
        assert (last["body"], last["body_encoding"]) == ("/wA=", "base64")
        lines = client.get(PUT, headers={"Accept": "application/x-ndjson"}).text.splitlines()
        assert [json.loads(line)["id"] for line in lines] == [each["id"] for each in found]
        gone = client.get(PUT, params={"after": "0" * 32})
        assert (gone.status_code, gone.json()["error"]) == (410, "BadMessageId")


def test_a_page_has_bounded_bodies(served: Served) -> None:
    served.space.put_many("orders", [b"x" * (2 << 20)] * 20)
    with served.client() as client:
        page = client.get(PUT, params={"limit": 1000}).json()
        assert len(page["messages"]) == 16
        assert all(each["body_cut"] and len(each["body"]) == 1 << 20 for each in page["messages"])
        assert len(client.get(PUT, params={"after": page["next"]}).json()["messages"]) == 4


def test_an_answer_that_fails_in_the_middle_ends_with_its_connection(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    served.space.put_many("orders", [b"1", b"2"])
    whole, looked = messages._whole, list[Any]()

    def fail(message: spool.Message) -> bytes:
        if looked:
            raise spool.DiskFailure("the disk has failed")
        looked.append(message)
        return whole(message) + b"x" * (1 << 20)

    monkeypatch.setattr(messages, "_whole", fail)
    with served.client() as client, pytest.raises(httpx.TransportError):
        client.get(PUT, headers={"Accept": "application/x-ndjson"})
    assert [record.getMessage() for record in caplog.records] == ["an answer was cut: the disk has failed"]
