"""Messages that a client holds, in a directory and by HTTP; the leases of messages that it holds by HTTP."""

import json
import time
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import spool
from spool.client import claims as leases
from spool.client.connection import HttpConnection
from tests.children import exit_code_of
from tests.client.conftest import WAIT, served
from tests.clocks import until


def test_a_held_message_is_in_use(space: Any) -> None:
    held, free = space.put_many("other", ["held", "free"])
    with space.claims() as claims:
        claims.take("other")
        for options in ({}, {"timeout": 0.05}):
            with pytest.raises(spool.MessageInUse, match=f"message {held} is held by a transaction"):
                space.get("other", message_id=held, **options)
        with pytest.raises(spool.Empty, match=f"queue replies has no message {held}"):
            space.get("replies", message_id=held)
        assert claims.take("other", message_id=held) == []
        assert space.get("other", message_id=free).body == "free"
    assert space.get("other", message_id=held).body == "held"


def test_a_message_is_ended_once_and_for_any_reason(space: Any) -> None:
    space.put_many("orders", ["a", "b", "c"])
    with space.claims() as claims:
        a, b, c = claims.take("orders", 3)
        ending = claims.remove([a, a])
        with pytest.raises(spool.BadMessageId):
            claims.remove([a])
        with pytest.raises(spool.InvalidArgument, match="delay is a number of seconds from 0"):
            claims.fail(b, "x", -1)
        reasons: list[Any] = [7, ""]
        for message, reason in zip((b, c), reasons, strict=True):
            assert claims.fail(message, reason, delay=1000).result(WAIT) is None
        assert ending.result(WAIT) is None
    assert [message.failure_reason for message in space.browse("orders")] == ["7", ""]


# -- by HTTP -----------------------------------------------------------------------------------------------------------


def test_leases_are_renewed_while_they_are_held(directory: Path) -> None:
    spied = mock.patch.object(HttpConnection, "repeated", side_effect=HttpConnection.repeated, autospec=True)
    with mock.patch.object(leases, "_RENEWAL_SECONDS", 0.05), served(directory) as address:
        with spool.connect(address) as remote, remote.claims() as claims:
            remote.put_many("orders", ["a", "b"])
            taken = claims.take("orders", 2)
            with spied as calls:
                until(lambda: calls.call_count > 2)
            claims.remove(taken).result(WAIT)
            assert remote.stats("orders").dequeued == 2
    told = [(json.loads(call.kwargs["content"]).keys(), call.kwargs["params"]) for call in calls.mock_calls[:2]]
    assert told == [({"receipts"}, {"lease": 60.0})] * 2, "each call names the receipts of both messages"


def test_an_extended_lease_is_not_shortened_by_its_renewal(directory: Path) -> None:
    with served(directory) as address, spool.connect(address) as remote, remote.claims() as claims:
        remote.put_many("orders", ["a", "b"])
        claims.take("orders")
        for wrong in (0, 43_201):
            with pytest.raises(spool.InvalidArgument, match="lease"):
                claims.extend(wrong)
        claims.extend(600.0)
        claims.take("orders")
        with mock.patch.object(HttpConnection, "repeated", side_effect=HttpConnection.repeated, autospec=True) as calls:
            claims.extend_if_before(time.monotonic() + leases.LEASE_SECONDS, leases.LEASE_SECONDS)
            claims.extend()
        told = [json.loads(call.kwargs["content"]) for call in calls.call_args_list]
        assert [len(each.get("receipts", [])) for each in told] == [0, 1], "the first call is for the second message"
        assert [call.kwargs["params"] for call in calls.call_args_list] == [{"lease": 60.0}] * 2


def test_dropped_claims_renew_nothing(directory: Path) -> None:
    with (
        mock.patch.multiple(leases, LEASE_SECONDS=1.0, _RENEWAL_SECONDS=0.2),
        served(directory) as address,
        spool.connect(address) as remote,
    ):
        remote.put("orders", "a")
        assert len(remote.claims().take("orders")) == 1
        assert remote.get("orders", timeout=WAIT).attempts == 1


def test_a_forked_child_releases_nothing(directory: Path) -> None:
    with served(directory) as address, spool.connect(address) as remote, remote.claims() as claims:
        remote.put("orders", "a")
        taken = claims.take("orders")

        def use() -> None:
            for call in (partial(claims.take, "orders"), partial(claims.remove, taken), partial(claims.begin, *taken)):
                with pytest.raises(spool.NotOpen, match="parent"):
                    call()
            claims.close()

        assert exit_code_of(use) == 0
        assert remote.stats("orders").claimed == 1
