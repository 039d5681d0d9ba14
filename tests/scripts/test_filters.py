"""The commands choose failed messages by reason, by several ids and by time."""

from pathlib import Path

import pytest

import spool
from tests.scripts.conftest import Run


@pytest.fixture
def failed(path: Path) -> dict[str, str]:
    """The ids of failed messages, by their bodies."""
    with spool.open(path) as space:
        space.create_queue("failed")
        space.change_queue("orders", retries=0, error_queue="failed")
        ids = {body: space.put("orders", body) for body in ("tea", "rye", "soup")}

        def refuse(message: spool.Message) -> None:
            raise spool.Reject("five soups" if message.body == "soup" else "HTTP 503 Service Unavailable")

        space.work("orders", refuse, once=True)
    return ids


def test_the_list_of_an_error_queue_shows_the_reasons(run: Run, failed: dict[str, str]) -> None:
    header, *lines = run("message", "list", "failed").text.splitlines()
    assert "reason" in header.split()
    assert [("HTTP 503 Service Unavailable" in line, "five soups" in line) for line in lines] == [
        (True, False), (True, False), (False, True),
    ]  # fmt: skip
    assert "reason" not in run("message", "list", "orders").text
    (only,) = run("message", "list", "failed", "--reason", "soups", "--json").objects
    assert (only["id"], only["failure_reason"]) == (failed["soup"], "five soups")
    assert only["failed_at"] > only["enqueued_at"]


def test_x17_a_redrive_returns_messages_that_the_filters_choose(run: Run, path: Path, failed: dict[str, str]) -> None:
    assert run("message", "redrive", "failed", "--reason", "HTTP 503", "--since", "1h", "--dry-run").text == "2\n"
    assert run("message", "redrive", "failed", "--reason", "HTTP 503", "--until", "1h").text == "0\n"
    assert run("message", "redrive", "failed", "--id", failed["tea"], "--id", failed["rye"]).text == "2\n"
    assert run("queue", "purge", "failed", "--reason", "HTTP 503", "--yes").text == "0\n"
    assert run("queue", "purge", "failed", "--since", "2020-01-31T08:00", "--yes").text == "1\n"
    with spool.open(path) as space:
        assert [message.body for message in space.browse("orders")] == ["tea", "rye"]
