"""The times of schedules: cron expressions, time zones, and the two days of a year on which the clocks change."""

from datetime import datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spool.errors import InvalidArgument
from spool.model.schedule import Schedule

BERLIN = ZoneInfo("Europe/Berlin")
SPRING, AUTUMN = datetime(2026, 3, 28, 12, tzinfo=BERLIN), datetime(2026, 10, 24, 12, tzinfo=BERLIN)


def schedule(cron: str, timezone: str = "Europe/Berlin") -> Schedule:
    return Schedule("s", "q", cron, timezone, "once", b"body", None, {})


def times(cron: str, after: datetime, count: int) -> list[str]:
    """The next times, each computed from the one before, as the commits of a schedule do."""
    found, moment = [], after.timestamp()
    for _ in range(count):
        due = schedule(cron).time_after(moment)
        assert due is not None
        found.append(datetime.fromtimestamp(due, BERLIN).strftime("%d %H:%M %z"))
        moment = due
    return found


def test_a_time_that_does_not_exist_is_due_once_at_the_end_of_the_gap():
    assert times("30 2 * * *", SPRING, 3) == ["29 03:00 +0200", "30 02:30 +0200", "31 02:30 +0200"]
    assert times("0 2,3 * * *", SPRING, 2) == ["29 03:00 +0200", "30 02:00 +0200"]
    halves = times("*/30 * * * *", SPRING.replace(day=29, hour=1), 3)
    assert halves == ["29 01:30 +0100", "29 03:00 +0200", "29 03:30 +0200"]


def test_a_time_that_exists_twice_is_due_once():
    assert times("30 2 * * *", AUTUMN, 3) == ["25 02:30 +0200", "26 02:30 +0100", "27 02:30 +0100"]
    second = datetime(2026, 10, 25, 2, 10, fold=1, tzinfo=BERLIN)  # a put that is late, from the second of the hours
    assert times("30 2 * * *", second, 1) == ["26 02:30 +0100"]


def test_each_half_hour_of_a_repeated_hour_is_due():
    halves = times("*/30 * * * *", AUTUMN.replace(day=25, hour=1, minute=30), 4)
    assert halves == ["25 02:00 +0200", "25 02:30 +0200", "25 02:00 +0100", "25 02:30 +0100"]


@given(
    st.sampled_from(["30 2 * * *", "*/7 * * * *", "0 */3 * * *", "15 1,2,3 * * *", "@monthly", "*/20 * * * * *"]),
    st.sampled_from([SPRING, AUTUMN]),
    st.integers(0, 72 * 3600),
)
def test_times_only_go_forward(cron: str, day: datetime, seconds: int):
    """From wherever it begins, a schedule gives each of its times once."""
    moment = day.timestamp() + seconds
    found = [moment]
    for _ in range(10):
        found.append(schedule(cron).time_after(found[-1]) or 0.0)
    assert all(one < other for one, other in pairwise(found))


def test_times_with_names():
    for name, same in (("@hourly", "0 * * * *"), ("@daily", "0 0 * * *"), ("@weekly", "0 0 * * SUN")):
        assert times(name, SPRING, 3) == times(same, SPRING, 3)


@pytest.mark.parametrize(
    "cron", ["", "0 3 * *", "60 * * * *", "* * 31 2 *", "@often", "a b c d e", "1-L * * * *", None]
)
def test_a_wrong_cron_is_one_error_that_shows_the_form(cron: str):
    with pytest.raises(InvalidArgument, match=r"cron is five fields: minute, hour, .*e\.g\. 0 3") as caught:
        schedule(cron).time_after(SPRING.timestamp())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("zone", ["Europe/Berlni", "", "Europe", "../etc/passwd", "a\0b", None])
def test_an_unknown_zone_is_one_error_that_shows_the_form(zone: str):
    with pytest.raises(InvalidArgument, match=r"timezone is the name of a time zone, e.g. Europe/Berlin"):
        schedule("0 3 * * *", zone).time_after(SPRING.timestamp())
