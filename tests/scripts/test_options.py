"""Times and sizes on the command line: accepted and refused forms."""

import click
import pytest

import spool
from xaspool_scripts.terminal.shared_options import duration, duration_or_forever, moment, short_duration, size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 30.0), ("0", 0.0), (".5", 0.5), ("90s", 90.0), ("5m", 300.0), ("2 h", 7200.0), ("7d", 604_800.0),
     ("1w", 604_800.0)],
)  # fmt: skip
def test_a_duration_is_seconds_or_a_number_with_a_unit(text: str, seconds: float) -> None:
    assert duration(text) == duration_or_forever(text) == seconds


@pytest.mark.parametrize("text", ["", "-1", "nan", "inf", "1e400", "9" * 400, "5 minutes", "m", "forever ", "1h30m"])
def test_a_text_that_is_no_duration_is_refused_with_examples(text: str) -> None:
    for read in (duration, duration_or_forever):
        with pytest.raises(click.BadParameter, match="90s, 15m, 2h or 7d"):
            read(text)


def test_a_wait_may_be_forever() -> None:
    assert duration_or_forever("forever") is None
    with pytest.raises(click.BadParameter, match="nor forever"):
        duration_or_forever("ever")


@pytest.mark.parametrize(
    ("text", "number"),
    [("1000", 1000), ("1 GiB", 1 << 30), ("1GiB", 1 << 30), ("500 kB", 500_000), ("1.5 MiB", 3 << 19)],
)
def test_a_size_is_bytes_or_a_number_with_a_unit(text: str, number: int) -> None:
    assert size(text) == number


@pytest.mark.parametrize("text", ["", "80%", "5 messages", "GiB", "1 gib", "1.5"])
def test_a_text_that_is_no_size_is_refused_with_examples(text: str) -> None:
    with pytest.raises(click.BadParameter, match="1 GiB"):
        size(text)


def test_a_time_span_where_a_moment_belongs_is_answered_with_the_options_for_spans() -> None:
    with pytest.raises(click.BadParameter, match="--delay or --time-to-live"):
        moment("1h")
    with pytest.raises(click.BadParameter, match=r"08:00$"):
        moment("soon")


def test_a_call_takes_a_tenth_of_a_second_at_least() -> None:
    assert short_duration("5m") == 300
    with pytest.raises(click.BadParameter, match=r"less than 0\.1 seconds"):
        short_duration("0.05")


def test_a_mistyped_queue_is_answered_in_python_too(path: object) -> None:
    with spool.open(str(path)) as space, pytest.raises(spool.QueueNotFound, match=r"did you mean orders\?"):
        space.put("Order", b"x")
