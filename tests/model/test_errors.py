"""Errors carry the argument at fault as data: a command writes its own option without reading the text."""

import pickle
from pathlib import Path

import pytest

import spool


def refused(space: spool.Space, **options: object) -> spool.InvalidArgument:
    with pytest.raises(spool.InvalidArgument) as caught:
        space.create_queue("new", **options)  # type: ignore[arg-type]
    return caught.value


def test_an_error_names_the_argument_and_the_values_that_it_takes(space: spool.Space) -> None:
    error = refused(space, retry_delay="soon")
    assert (error.name, error.expected) == ("retry_delay", "a number of seconds, from 0 to less than 10000000000")
    assert str(error) == f"queue new: retry_delay is {error.expected}, not 'soon'"
    assert error.told({"retry_delay": "--retry-delay"}) == f"queue new: --retry-delay is {error.expected}, not 'soon'"


def test_a_value_that_reads_like_an_argument_stays_as_it_was_typed(space: spool.Space) -> None:
    error = refused(space, durability="retry_delay")
    expected = "queue new: --durability is one of flush, none, not 'retry_delay'"
    assert error.told({"retry_delay": "--retry-delay", "durability": "--durability"}) == expected


def test_an_error_about_two_arguments_names_both(space: spool.Space) -> None:
    error = refused(space, capacity_low="5 messages")
    names = {"capacity_low": "--capacity-low", "capacity_high": "--capacity-high"}
    assert error.told(names) == "queue new: --capacity-low needs a --capacity-high"
    assert error.name == "capacity_low"


def test_an_error_is_the_same_in_another_process(tmp_path: Path) -> None:
    spool.create(tmp_path).close()
    with pytest.raises(spool.SpaceExists) as caught:
        spool.create(tmp_path)
    error = pickle.loads(pickle.dumps(caught.value))
    assert (str(error), error.name) == (str(caught.value), "exist_ok")
    assert "pass --if-missing, or" in error.told({"exist_ok": "--if-missing"})


def test_another_error_names_no_argument(space: spool.Space) -> None:
    with pytest.raises(spool.QueueNotFound) as caught:
        space.put("nowhere", b"x")
    assert (caught.value.name, caught.value.expected) == (None, None)
