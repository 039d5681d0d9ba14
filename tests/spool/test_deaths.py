"""The option ``deaths`` of a queue limits the attempts that end with the death of their process, apart from
``retries``."""

from collections.abc import Callable
from pathlib import Path

import pytest

import spool
from tests import children
from tests.spaces import path_with

path = path_with("errors", orders={"retries": 0, "deaths": 2, "error_queue": "errors"})

Handling = Callable[[spool.Space], object]


def get(space: spool.Space) -> object:
    return space.transaction().__enter__().get("orders")


def claim(space: spool.Space) -> object:
    claims = space.claims()
    return claims.begin(claims.take("orders")[0])


def work(space: spool.Space) -> object:
    return space.work("orders", children.die, once=True)


def put(path: Path) -> str:
    with spool.open(path) as space:
        return space.put("orders", "poison")


def die(path: Path, handle: Handling = get) -> None:
    """Let another process handle a message, and kill it in the middle."""
    children.let_die(lambda: handle(spool.open(path)))


def fail(path: Path) -> None:
    with spool.open(path) as space, pytest.raises(ZeroDivisionError), space.transaction() as transaction:
        transaction.get("orders")
        raise ZeroDivisionError("no")


def change(path: Path, **options: int | None) -> None:
    with spool.open(path) as space:
        space.change_queue("orders", **options)  # type: ignore[arg-type]


def only(path: Path, queue: str = "orders") -> spool.Message:
    """Return the only message of the queue."""
    with spool.open(path) as space:
        (message,) = space.browse(queue)
        return message


@pytest.mark.parametrize("handle", [get, claim, work])
def test_deaths_use_up_no_retries_and_more_than_the_limit_move_the_message(path: Path, handle: Handling) -> None:
    put(path)
    for deaths in (1, 2):
        die(path, handle)
        assert (only(path).attempts, only(path).deaths) == (deaths, deaths)
    die(path, handle)
    message = only(path, "errors")
    assert (message.origin_attempts, message.attempts, message.deaths) == (3, 0, 0)
    assert message.failure_reason == "the process that held it died"


@pytest.mark.parametrize(("deaths", "end"), [(0, fail), (None, die)])
def test_failures_use_up_no_deaths_and_without_the_option_a_death_counts_as_any_failure(
    path: Path, deaths: int | None, end: Callable[[Path], object]
) -> None:
    change(path, retries=1, deaths=deaths)
    put(path)
    end(path)
    assert (only(path).attempts, only(path).deaths) == (1, 0)
    end(path)
    assert only(path, "errors").origin_attempts == 2


def test_a_failure_after_deaths_counts_for_the_retries_alone(path: Path) -> None:
    put(path)
    die(path)
    die(path)
    change(path, retries=1)
    fail(path)
    assert (only(path).attempts, only(path).deaths) == (3, 2)
    fail(path)
    message = only(path, "errors")
    assert (message.origin_attempts, message.deaths) == (4, 0)


def test_without_an_error_queue_the_message_is_dropped_and_logged(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    change(path, deaths=0, error_queue=None)
    assert "queue orders has deaths, 0, and no error_queue" in caplog.text
    put(path)
    die(path)
    with spool.open(path) as space:
        assert list(space.browse("orders")) == []
    assert "one attempt failed (no error queue is set): the process that held it died" in caplog.text


def test_while_the_error_queue_is_missing_no_death_removes_the_message(path: Path) -> None:
    put(path)
    settings = path / "space.toml"
    settings.write_text(settings.read_text().replace('error_queue = "errors"', 'error_queue = "missing"'))
    for _ in range(3):
        die(path)
    message = only(path)
    assert message.attempts == 3
    assert message.not_before is not None


def test_a_message_that_is_moved_or_redriven_may_die_as_often_as_a_new_one(path: Path) -> None:
    id_ = put(path)
    die(path)
    with spool.open(path) as space:
        moved = space.move(id_, "orders")
    assert (moved.attempts, moved.deaths) == (0, 0)
    for _ in range(3):
        die(path)
    with spool.open(path) as space:
        assert space.redrive("errors") == 1
    message = only(path)
    assert (message.attempts, message.deaths, message.origin_attempts) == (0, 0, 0)


def test_the_death_of_a_task_of_the_forwarder_is_a_death(path: Path) -> None:
    put(path)
    with spool.open(path) as space, space.claims() as claims:
        (message,) = claims.take("orders")
        for _ in range(2):
            assert space.engine.count_failure(message.position, "its worker died", died=True) == "orders"
        assert space.engine.count_failure(message.position, "its worker died", died=True) == "errors"
