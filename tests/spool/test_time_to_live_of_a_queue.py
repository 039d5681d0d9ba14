"""The option ``time_to_live`` of a queue applies to each new message whose put names no time."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

import spool
from tests.clocks import MovedClock, timed
from tests.spaces import space_with

space = space_with("forever", orders={"time_to_live": 60, "on_expiry": "drop"})


def put(space: spool.Space) -> object:
    return space.put("orders", b"body")


def put_text(space: spool.Space) -> object:
    return space.put("orders", "body", priority=60)


def put_many(space: spool.Space) -> object:
    return space.put_many("orders", [b"a", "b"])


def submit(space: spool.Space) -> object:
    return space.submit("orders", b"body").result()


def put_in_a_transaction(space: spool.Space) -> None:
    with space.transaction() as tx:
        tx.put("orders", b"body")
        tx.put("orders", "body")
        tx.put_many("orders", [b"body"])


def replace(space: spool.Space) -> object:
    return space.replace("orders", "body", correlation_id="c")


def reply_of_a_worker(space: spool.Space) -> object:
    space.put("forever", "task", reply_queue="orders")
    return space.work("forever", lambda message: "reply", once=True)


def new_message_of_a_worker(space: spool.Space) -> object:
    space.put("forever", "task")
    return space.work("forever", lambda message: spool.Translated([spool.NewMessage("orders", "body")]), once=True)


WAYS = [put, put_text, put_many, submit, put_in_a_transaction, replace, reply_of_a_worker, new_message_of_a_worker]


@pytest.mark.parametrize("way", WAYS)
def test_a_message_expires_in_each_way_in_which_it_is_put(space: spool.Space, way: Callable[[spool.Space], object]):
    way(space)
    found = [message.expires_at for message in space.browse("orders")]
    assert found
    assert all(at is not None and 0 < at - time.time() <= 60 for at in found)


def test_a_put_that_names_a_time_keeps_it(space: spool.Space) -> None:
    at = time.time() + 1000
    space.put("orders", "a", time_to_live=5)
    space.put("orders", "b", expires_at=at)
    with space.transaction() as tx:
        tx.put("orders", "c", time_to_live=5)
    one, two, three = [message.expires_at for message in space.browse("orders")]
    assert one is not None
    assert three is not None
    assert one - time.time() < 6
    assert three - time.time() < 6
    assert two == pytest.approx(at)
    assert space.find("forever", correlation_id="c") is None


def test_an_expired_message_is_not_delivered_and_a_changed_option_counts_for_new_messages(space: spool.Space) -> None:
    clock = MovedClock()
    with spool.open(timed(Path(space.path), clock)) as later:
        later.put("orders", "short")
        later.change_queue("orders", time_to_live=None)
        later.put("orders", "kept")
        clock.later = 61
        assert later.get("orders").body == "kept"
        with pytest.raises(spool.Empty):
            later.get("orders")
        assert later.stats("orders").expired == 1


@pytest.mark.parametrize("wrong", [0, -1, "60 s", True])
def test_a_wrong_time_is_refused(space: spool.Space, wrong: object) -> None:
    with pytest.raises(spool.InvalidArgument, match="time_to_live is a number of seconds above 0"):
        space.change_queue("orders", time_to_live=wrong)  # type: ignore[typeddict-item]
