"""Failed messages are found, returned and deleted by reason, by id and by time; other messages remain."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import spool
from spool.errors import BadMessageId, Full, InvalidArgument
from tests import door
from tests.compaction import small_compactions
from tests.spaces import space_with

space = space_with("errors", orders={"retries": 0, "error_queue": "errors"})


def fail(space: spool.Space, body: object, reason: str) -> str:
    """Put a message whose only attempt fails; return its id."""
    id = space.put("orders", body)

    def refuse(message: spool.Message) -> None:
        raise spool.Reject(reason)

    space.work("orders", refuse, once=True)
    return id


def ids(space: spool.Space, **filters: Any) -> list[str]:
    return [message.id for message in space.browse("errors", **filters)]


def test_x17_only_messages_that_failed_by_one_reason_return(space: spool.Space) -> None:
    outage = [fail(space, number, "HTTP 503 Service Unavailable: try later") for number in range(3)]
    wrong = fail(space, "soup", "five soups")
    assert ids(space, reason="HTTP 503") == outage
    assert space.redrive("errors", reason="HTTP 503", dry_run=True) == 3
    assert space.redrive("errors", reason="HTTP 503") == 3
    assert ids(space) == [wrong]
    assert sorted(message.body for message in space.browse("orders")) == [0, 1, 2]
    assert space.purge("errors", reason="http") == 0, "upper and lower case differ"
    assert space.purge("errors", reason="soup") == 1


def test_x17_messages_are_chosen_by_several_ids_in_the_order_of_delivery(space: spool.Space) -> None:
    failed = [fail(space, number, "no") for number in range(5)]
    chosen = [failed[3], failed[1], failed[3], failed[1].upper()]
    assert ids(space, message_id=chosen) == [failed[1], failed[3]]
    assert ids(space, message_id=[]) == []
    assert ids(space, message_id=failed, reason="other") == []
    assert space.redrive("errors", message_id=chosen) == 2
    assert ids(space) == [failed[0], failed[2], failed[4]]
    assert space.purge("errors", message_id=frozenset(failed[:1])) == 1
    with pytest.raises(BadMessageId, match="is not a message id"):
        ids(space, message_id=[failed[0], "what"])
    with pytest.raises(InvalidArgument, match="an id or a list of ids"):
        ids(space, message_id=7)


def test_x17_a_redrive_that_meets_a_limit_tells_how_many_messages_it_has_moved(space: spool.Space) -> None:
    with space.transaction() as transaction:
        for number in range(2_100):
            transaction.put("errors", number, priority=1 + number % 2)
    space.change_queue("orders", max_messages=2_080)
    with pytest.raises(Full, match="raise the limit; 2,048 messages moved before") as refused:
        space.redrive("errors", "orders")
    assert (refused.value.queue, space.stats("orders").ready) == ("orders", 2_048)


def test_x17_the_time_of_a_message_is_that_of_its_failure_and_else_of_its_put(space: spool.Space) -> None:
    first = fail(space, "first", "no")
    waiting = space.put("orders", "waits")
    between = next(iter(space.browse("orders"))).enqueued_at
    space.work("orders", _raise, once=True)
    (late,) = space.browse("errors", message_id=waiting)
    assert late.failed_at is not None
    assert late.failed_at > late.enqueued_at == between
    assert ids(space, since=late.failed_at) == [waiting]
    assert ids(space, until=late.failed_at) == [first]
    assert ids(space, since=late.failed_at + 60) == []
    zoned = datetime.fromtimestamp(late.failed_at, UTC)
    assert ids(space, since=zoned - timedelta(hours=1), until=zoned + timedelta(hours=1)) == [first, waiting]
    assert ids(space, older_than=3600) == []
    put = space.put("orders", "new")
    (new,) = space.browse("orders", since=late.failed_at)
    assert (new.id, new.failed_at) == (put, None)
    assert [message.id for message in space.browse("orders", until=new.enqueued_at)] == []


def _raise(message: spool.Message) -> None:
    raise ValueError("broken")


def test_the_time_of_a_failure_survives_a_compaction_and_an_opening(space: spool.Space) -> None:
    for number in range(10):
        fail(space, number, "no")
    before = {message.id: message.failed_at for message in space.browse("errors")}
    with small_compactions():
        assert door.compact(space) > 0
    assert {message.id: message.failed_at for message in space.browse("errors")} == before
    path = space.path
    space.close()
    with spool.open(path) as again:
        assert {message.id: message.failed_at for message in again.browse("errors")} == before
        assert again.check() == []


@pytest.mark.parametrize(
    "wrong",
    [{"reason": ""}, {"reason": 503}, {"since": "yesterday"}, {"until": datetime(2026, 1, 1)}, {"older_than": -1}],
)
def test_a_filter_that_can_match_nothing_is_an_error(space: spool.Space, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(wrong))):
        ids(space, **wrong)
