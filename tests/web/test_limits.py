"""A client with few rights cannot hold up the calls of others."""

import pytest

from forwarder.web import limits
from forwarder.web.tokens import Tokens
from forwarder.web.web_call import Server
from tests.web.conftest import Served

LOOK, CLAIM = "/v1/shop/queues/orders/messages", "/v1/shop/queues/orders/claims"


def test_a_receipt_names_another_process_in_one_way_only() -> None:
    server = Server(Tokens(), peers=("a", "b"))
    names = ("1.x", "0.x", "00.x", "01.x", "\u00b9.x", "2.x")
    assert [server.peer(name) for name in names] == ["b", None, None, None, None, None]


def test_looks_and_different_waits_are_limited(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_WAITS", (0, 0))
    served.server._state.looks.tokens += [""] * limits.MOST_LOOKS[0]
    with served.client() as client:
        answers = client.get(f"{served.url}{LOOK}"), client.post(f"{served.url}{CLAIM}")
    assert [each.status_code for each in answers] == [429, 429]
