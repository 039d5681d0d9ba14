"""An option that has no effect as its queue is set is accepted, and the log says so."""

from pathlib import Path
from typing import Any

import pytest

import spool
from spool.intake import Intake
from tests.spaces import space_with

space = space_with("errors", defaults={})


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"retries": 0, "retry_delay": 5.0}, "retry_delay has no effect, because retries is 0"),
        ({"retries": 0, "retry_delay_max": 5.0}, "retry_delay_max has no effect, because retries is 0"),
        ({"retry_delay": 0.0, "retry_delay_max": 5.0}, "retry_delay_max has no effect, because retry_delay is 0"),
        ({"capacity_high": "5 messages"}, "capacity_high has no effect, because there is no capacity_command"),
        ({"capacity_timeout": 5.0}, "capacity_timeout has no effect, because there is no capacity_command"),
    ],
)
def test_a_queue_s_option_without_effect_is_told_when_it_is_set(
    space: spool.Space, options: dict[str, Any], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    space.create_queue("made", error_queue="errors", **options)
    assert [f"queue made: {told}" in text for text in caplog.messages] == [True]
    caplog.clear()
    space.create_queue("changed", error_queue="errors")
    space.change_queue("changed", **options)
    assert [f"queue changed: {told}" in text for text in caplog.messages] == [True]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"retries": 0, "retry_delay": 1.0, "retry_delay_max": 300.0},
        {"retries": 0, "retry_delay": 0.0},
        {"retries": 3, "retry_delay": 5.0, "retry_delay_max": 50.0},
        {"capacity_high": "5 messages", "capacity_low": "1 message", "capacity_command": "true"},
    ],
)
def test_options_with_an_effect_and_defaults_are_not_told(
    space: spool.Space, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    space.create_queue("made", error_queue="errors", **options)
    space.change_queue("made", **options)
    assert caplog.messages == []


def test_a_priority_that_its_queue_s_order_ignores_is_told_once(space: spool.Space, caplog: pytest.LogCaptureFixture):
    space.create_queue("orders")
    for _ in range(3):
        space.put("orders", "tea", priority=90)
    with space.transaction() as transaction:
        transaction.put("orders", "tea", priority=90)
    assert caplog.messages == [
        "queue orders: priority has no effect, because the queue's order is fifo "
        "(spool-admin queue change orders --order priority,fifo)"
    ]


def test_a_priority_that_is_changed_in_vain_is_told(space: spool.Space, caplog: pytest.LogCaptureFixture) -> None:
    space.create_queue("orders")
    space.change(space.put("orders", "tea"), priority=90)
    assert ["queue orders: priority has no effect" in text for text in caplog.messages] == [True]


def test_a_dropped_file_s_priority_is_told(space: spool.Space, caplog: pytest.LogCaptureFixture) -> None:
    space.create_queue("orders")
    Path(space.path, "drop/orders/one.msgpack").write_bytes(b"\x82\xa4body\xa1x\xa8priority\x5a")
    assert Intake(space).run(once=True).messages == 1
    assert ["queue orders: priority has no effect" in text for text in caplog.messages] == [True]


def test_a_new_message_s_priority_is_told(space: spool.Space, caplog: pytest.LogCaptureFixture) -> None:
    """The priority is that of a message which a function returns."""
    space.create_queue("menus")
    space.create_queue("dishes")
    space.put_many("menus", ["soup", "cake"])

    def split(message: spool.Message) -> spool.Translated:
        return spool.Translated([spool.NewMessage("dishes", message.body, priority=90)])

    assert space.work("menus", split, once=True).delivered == 2
    assert ["queue dishes: priority has no effect" in text for text in caplog.messages] == [True]


def test_a_deduplication_key_without_a_window_is_told(space: spool.Space, caplog: pytest.LogCaptureFixture) -> None:
    space.create_queue("orders", deduplication_window=0)
    for _ in range(2):
        space.put("orders", "tea", deduplication_key="tea of today")
    assert space.stats("orders").ready == 2
    expected = ["queue orders: deduplication_key has no effect, because the queue's deduplication_window is 0"]
    assert caplog.messages == expected


def test_options_of_a_put_with_an_effect_are_not_told(space: spool.Space, caplog: pytest.LogCaptureFixture) -> None:
    space.create_queue("orders", order="priority,fifo")
    space.create_queue("plain")
    space.put("orders", "tea", priority=90, deduplication_key="tea")
    space.put("plain", "tea", priority=50, deduplication_key="tea", group="kitchen")
    assert caplog.messages == []
