"""A schedule is changed in one commit, and keeps the times of its last message."""

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

import spool
from tests.schedules.test_due import MINUTE, START, Life, life
from tests.shown import shown

__all__ = ["life"]
pytestmark = pytest.mark.usefixtures("quiet")


def test_a_change_keeps_the_times_of_the_last_message(life: Life):
    life.minutely()
    life.pass_time(MINUTE)
    before = life.schedule
    changed = life.space.change_schedule("s", cron="0 3 * * *", timezone="Asia/Tokyo", missed="skip", body={"n": 1})
    assert changed == life.schedule
    assert shown([changed], "cron timezone missed body") == [("0 3 * * *", "Asia/Tokyo", "skip", {"n": 1})]
    assert (changed.last_due, changed.last_put, changed.queue) == (before.last_due, before.last_put, "q")
    assert datetime.fromtimestamp(changed.next_due or 0, UTC).hour == 18
    again = life.space.change_schedule("s", body="x", content_type="text/csv")
    assert again == changed._replace(raw=b"x", codec="text", options={"content_type": "text/csv"})


@pytest.mark.parametrize(("missed", "due"), [("once", ["22:14"]), ("skip", [])])
def test_a_late_message_is_put_after_the_change_as_the_rule_says(life: Life, missed: str, due: list[str]):
    life.minutely()
    life.clock.later += 5 * MINUTE
    life.space.change_schedule("s", cron="@hourly", body="new", missed=missed)  # type: ignore[arg-type]
    assert life.pass_time(0) == due
    assert [message.body for message in life.space.browse("q")] == ["new"] * len(due)
    assert life.schedule.next_due == START - 13 * MINUTE - 20 + 60 * MINUTE


@pytest.mark.parametrize(
    ("before", "next_due"),
    [
        ("2024-10-27T00:29:50", "2024-10-28T01:30:00"),  # 2:30 comes twice on this day, and was due the first time
        ("2024-03-31T00:59:50", "2024-04-01T00:30:00"),  # 2:30 does not exist, and was due at 3:00
    ],
)
def test_a_change_on_the_day_when_the_clocks_change_repeats_no_time(life: Life, before: str, next_due: str):
    life.clock.later += datetime.fromisoformat(before).replace(tzinfo=UTC).timestamp() - START
    life.space.create_schedule("s", "q", "x", cron="30 2 * * *", timezone="Europe/Berlin")
    assert len(life.pass_time(20)) == 1
    life.clock.later += 40 * MINUTE
    changed = life.space.change_schedule("s", cron="30 2 * * *", timezone="Europe/Berlin")
    assert changed.next_due == datetime.fromisoformat(next_due).replace(tzinfo=UTC).timestamp()


WRONG: list[tuple[Callable[[spool.Space], object], str]] = [
    (lambda space: space.change_schedule("t", cron="@daily"), "no schedule 't'"),
    (lambda space: space.change_schedule("s", cron="25 * *"), r"cron is five fields.*not '25 . .': Wrong number"),
    (lambda space: space.change_schedule("s", cron="0 0 */29 2 1#5"), "never comes"),
    (lambda space: space.change_schedule("s", timezone="Europe/Berlni"), "did you mean Europe/Berlin"),
    (lambda space: space.change_schedule("s", missed="all"), "missed is one of"),  # type: ignore[arg-type]
    (lambda space: space.change_schedule("s", body=""), "is empty"),
]


@pytest.mark.parametrize(("call", "told"), WRONG)
def test_each_wrong_change_is_one_error_and_changes_nothing(
    life: Life, call: Callable[[spool.Space], object], told: str
):
    life.minutely()
    before = life.schedule
    with pytest.raises(spool.InvalidArgument, match=told):
        call(life.space)
    assert life.schedule == before
