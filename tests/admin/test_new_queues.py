"""The options of a new queue, and the errors and warnings of creating and changing one."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal
from unittest.mock import Mock

import pytest

import spool
from spool.model.settings import roles
from tests import children
from tests.spaces import fail_one, space_with

Make = Callable[..., spool.QueueConfig]


space = space_with(defaults={})


@pytest.fixture(params=["create_queue", "change_queue"])
def make(request: pytest.FixtureRequest, space: spool.Space) -> Make:
    """Return one of the two calls that set a queue's options."""
    if request.param == "change_queue":
        space.create_queue("q")
    found: Make = getattr(space, request.param)
    return found


def delays(config: spool.QueueConfig) -> tuple[float, float | None]:
    return config.retry_delay, config.retry_delay_max


def test_a_new_queue_waits_longer_and_longer_between_attempts(space: spool.Space) -> None:
    assert delays(space.create_queue("q")) == (1, 300)
    space.put("q", "bad")
    fail_one(space, "q")
    with pytest.raises(spool.Empty):
        space.get("q")


def test_a_queue_that_is_written_by_hand_has_the_same_delays(space: spool.Space) -> None:
    path = Path(space.path)
    space.close()
    (path / "space.toml").write_text("format = 1\n[queues.q]\nretries = 3\n")
    with spool.open(path) as space:
        assert delays(space.queues()["q"]) == (1, 300)
        assert delays(space.change_queue("q", retries=4)) == (1, 300)
        assert delays(space.change_queue("q", retry_delay=400)) == (400, 400)
        assert delays(space.change_queue("q", retry_delay=None, retry_delay_max=None)) == (1, None)


def test_the_spaces_defaults_come_before_those_of_new_queues(tmp_path: Path) -> None:
    with spool.create(tmp_path / "space", defaults={"retry_delay": 0, "retry_delay_max": 60}) as space:
        assert delays(space.create_queue("q")) == (0, 60)
    with spool.create(tmp_path / "other", defaults={"retry_delay": 400}) as space:
        assert delays(space.create_queue("q")) == (400, 400)


def test_a_delay_beyond_the_longest_one_raises_that_too(make: Make) -> None:
    assert delays(make("q", retry_delay=600)) == (600, 600)


def test_a_change_to_a_delay_beyond_the_longest_one_raises_that_only_to_the_delay(space: spool.Space) -> None:
    space.create_queue("q", retry_delay=1, retry_delay_max=5)
    assert delays(space.change_queue("q", retry_delay=20)) == (20, 20)
    space.create_queue("short", retry_delay=0.1, retry_delay_max=0.5)
    assert delays(space.change_queue("short", retry_delay=None)) == (1, 1)


def test_a_shorter_delay_leaves_the_longest_one(make: Make) -> None:
    assert delays(make("q", retry_delay=5)) == (5, 300)
    assert delays(make.__self__.change_queue("q", retry_delay_max=None)) == (5, None)  # type: ignore[attr-defined]


@pytest.mark.parametrize("option", ["error_queue", "reply_queue", "failure_queue"])
def test_a_queue_that_an_option_names_must_be_there(space: spool.Space, make: Make, option: str) -> None:
    space.create_queue("errors")
    before = Path(space.path, "space.toml").read_text()
    with pytest.raises(spool.QueueNotFound, match=rf"queue q: {option}: .*'erors'.*did you mean errors\?"):
        make("q", **{option: "erors"})
    assert Path(space.path, "space.toml").read_text() == before
    assert getattr(make("q", **{option: "errors"}), option) == "errors"


def test_queues_that_are_missing_are_made_if_that_is_asked_for(space: spool.Space, make: Make) -> None:
    make("q", retries=3, error_queue="errors", reply_queue="answers", create_missing=True)
    assert set(space.queues()) == {"q", "errors", "answers"}
    assert delays(space.queues()["errors"]) == (1, 300)
    assert sorted(entry.name for entry in Path(space.path, "drop").iterdir()) == ["answers", "errors", "q"]


def test_create_missing_makes_the_error_queue_that_the_space_s_defaults_name(tmp_path: Path) -> None:
    with spool.create(tmp_path / "space", defaults={"error_queue": "errors"}) as space:
        with pytest.raises(spool.QueueNotFound, match="queue q: error_queue"):
            space.create_queue("q")
        space.create_queue("q", create_missing=True)
        assert space.queues()["q"].error_queue == "errors"
        assert space.queues()["errors"].error_queue is None


def test_a_queue_may_name_itself_for_replies(space: spool.Space) -> None:
    assert space.create_queue("q", reply_queue="q").reply_queue == "q"


@pytest.mark.parametrize(
    ("options", "warns"), [({"retries": 3}, True), ({}, False), ({"retries": 3, "error_queue": "errors"}, False)]
)
def test_retries_without_an_error_queue_are_warned_of(
    space: spool.Space, make: Make, caplog: pytest.LogCaptureFixture, options: dict[str, Any], warns: bool
) -> None:
    space.create_queue("errors")
    make("q", **options)
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(told) == warns
    assert not warns or "queue q has retries, 3, and no error_queue" in told[0]


def test_a_change_of_something_else_does_not_warn_again(space: spool.Space, caplog: pytest.LogCaptureFixture) -> None:
    space.create_queue("q", retries=3)
    caplog.clear()
    space.change_queue("q", max_messages=100)
    assert not caplog.records


@pytest.mark.parametrize("durability", ["flush", "none"])
def test_c06_durability_is_by_a_flush_or_none(make: Make, durability: Literal["flush", "none"]) -> None:
    assert make("q", durability=durability).durability == durability


def test_c06_another_durability_is_refused(make: Make) -> None:
    with pytest.raises(spool.InvalidArgument, match="durability is one of flush, none, not 'full'"):
        make("q", durability="full")


def test_a_queue_that_is_ensured_is_created_once_and_keeps_the_options_of_the_administrator(space: spool.Space) -> None:
    assert space.ensure_queue("q", retries=3, error_queue="errors").retries == 3
    assert {"q", "errors"} == space.queues().keys()
    space.change_queue("q", retries=9)
    assert space.ensure_queue("q", retries=3, error_queue="errors").retries == 9
    for wrong in (".hidden", ["q"]):
        with pytest.raises(spool.InvalidArgument, match="cannot be a queue's name"):
            space.ensure_queue(wrong)  # type: ignore[arg-type]
    with pytest.raises(spool.InvalidArgument, match="retries"):
        space.ensure_queue("new", retries=-1)


def test_processes_that_ensure_a_queue_at_the_same_time_get_the_same_queue(space: spool.Space) -> None:
    def ensure() -> None:
        with spool.open(space.path) as opened:
            for number in range(20):
                assert opened.ensure_queue(f"q{number}", retries=3).retries == 3

    started = [children.start(ensure) for _ in range(3)]
    assert [children.exit_code(child) for child in started] == [0, 0, 0]
    assert len(space.queues()) == 20


def test_a_queue_that_is_ensured_changes_its_role_once_from_work(space: spool.Space) -> None:
    """A program gives the role to a queue that an earlier version of the program has created without one."""
    space.create_queue("results", retries=3)
    assert space.ensure_queue("results").role == "work"
    assert space.ensure_queue("results", role="state") == replace(space.queues()["results"], role="state", retries=3)
    assert space.ensure_queue("results", role="error").role == "state"
    assert space.ensure_queue("errors", role="error").role == "error"


def test_a_role_that_cannot_be_stored_stops_no_program(space: spool.Space, caplog: pytest.LogCaptureFixture) -> None:
    space.create_queue("results")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spool.admin.admin.change_queue", Mock(side_effect=spool.DiskFailure(28, "no space left")))
        assert space.ensure_queue("results", role="state").role == "work"
    assert "queue results keeps its role for now" in caplog.text
    assert space.ensure_queue("results", role="state").role == "state"


def test_the_error_queue_of_another_queue_has_the_role_error_unless_it_has_another_role(space: spool.Space) -> None:
    space.create_queue("orders", error_queue="failed", create_missing=True)
    space.create_queue("mail", error_queue="kept", create_missing=True)
    space.change_queue("kept", role="state")
    assert roles(space.queues()) == {"orders": "work", "failed": "error", "mail": "work", "kept": "state"}
