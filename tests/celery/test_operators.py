"""The commands of operators: inspect, control, events, and the end of workers."""

import os
import signal
import subprocess
import sys

import pytest
from celery import chord, states

from tests.celery.conftest import Shop, expect_all_run
from tests.celery.tasks import SPACE
from tests.celery.workers import ROOT, SECONDS, until, working
from tests.watch.healthy import expect_healthy_an_hour_later


def celery(shop: Shop, *command: str) -> str:
    """Run a command of Celery as an operator does; returns its output."""
    environment = {**os.environ, SPACE: shop.space.path}
    done = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "tests.celery.tasks", *command],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_inspect_shows_the_tasks_of_a_worker(shop: Shop) -> None:
    wait, inspect = shop.app.tasks["wait_for_word"], shop.app.control.inspect([shop.worker.name])
    results = [wait.delay(f"word {number}") for number in range(4)]
    until(lambda: shop.space.stats("notes").ready == 2, shop.worker)
    assert len((inspect.active() or {})[shop.worker.name]) == 2
    until(lambda: len((inspect.reserved() or {}).get(shop.worker.name, [])) == 2, shop.worker)
    assert "pong" in celery(shop, "inspect", "ping")
    assert (inspect.stats() or {})[shop.worker.name]["broker"]["transport"] == "xaspool"
    revoked, results = results[-1], results[:-1]
    revoked.revoke()
    for number in range(4):
        shop.space.put("words", "", correlation_id=f"word {number}")
    assert [result.get(timeout=SECONDS) for result in results] == ["word 0", "word 1", "word 2"]
    until(lambda: revoked.state == states.REVOKED, shop.worker)


def test_a_program_sees_the_events_of_tasks(shop: Shop) -> None:
    seen = shop.app.events.State()
    with shop.app.connection_for_read() as connection:
        receiver = shop.app.events.Receiver(connection, handlers={"*": seen.event})
        with receiver.consumer_context() as (consuming, *_):
            sent = shop.app.tasks["add"].delay(1, 2)
            for _ in range(1000):
                if (task := seen.tasks.get(sent.id)) is not None and task.state == states.SUCCESS:
                    break
                consuming.drain_events(timeout=SECONDS)
    assert task.result == "3"
    assert task.worker.hostname == shop.worker.name


@pytest.mark.slow
def test_the_command_events_prints_the_events(shop: Shop) -> None:
    environment = {**os.environ, SPACE: shop.space.path, "PYTHONUNBUFFERED": "1"}
    output = shop.place / "events"
    with output.open("wb") as file, subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "tests.celery.tasks", "events", "--dump"],
        cwd=ROOT, env=environment, stdout=file,
    ) as events:  # fmt: skip
        until(lambda: shop.app.tasks["add"].delay(1, 2).get(timeout=SECONDS) and "succeeded" in output.read_text())
        events.send_signal(signal.SIGTERM)


def test_a_worker_and_a_program_survive_the_deletion_of_their_queue(own: Shop) -> None:
    add = own.app.tasks["add"]
    with working(own.place):
        for number in range(3):
            assert add.delay(number, 1).get(timeout=SECONDS) == number + 1
            until(lambda: own.space.stats("celery").claimed == 0)
            own.space.delete_queue("celery")


def test_tasks_that_a_killed_worker_held_run_elsewhere(own: Shop) -> None:
    """The worker runs two tasks and has reserved six. The kernel releases all of them."""
    words = [str(number) for number in range(8)]
    with working(own.place, "killed") as killed:
        results = [own.app.tasks["wait_for_word"].delay(word) for word in words]
        until(lambda: own.space.stats("notes").ready == 2 and own.space.stats("celery").claimed == 8, killed)
        killed.kill()
    until(lambda: own.space.stats("celery").ready == 8)
    expect_all_run(own, words, results)


def test_a_warm_shutdown_finishes_running_tasks_and_returns_the_others(own: Shop) -> None:
    with working(own.place, "first") as first:
        results = [own.app.tasks["wait_for_word"].delay(str(number)) for number in range(6)]
        until(lambda: own.space.stats("notes").ready == 2 and own.space.stats("celery").claimed == 6, first)
        running = {message.body for message in own.space.browse("notes")}
        first.process.send_signal(signal.SIGTERM)
        until(lambda: "Warm shutdown" in first.log, first)
        for number in range(6):
            own.space.put("words", "", correlation_id=str(number))
        first.process.wait(SECONDS)
    assert {result.id for result in results if result.state == states.SUCCESS} == {
        result.id for number, result in enumerate(results) if str(number) in running
    }
    assert [message.attempts for message in own.space.browse("celery")] == [0] * 4
    with working(own.place, "second"):
        assert [result.get(timeout=SECONDS) for result in results] == [str(number) for number in range(6)]


def test_an_operator_shuts_a_worker_down(own: Shop) -> None:
    with working(own.place, "leaving", "-P", "solo") as worker:
        own.app.control.shutdown()
        assert worker.process.wait(SECONDS) == 0


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_other_pools_run_tasks(own: Shop, pool: str) -> None:
    with working(own.place, pool, "-P", pool, "-c", "3"):
        results = [own.app.tasks["add"].delay(number, number) for number in range(50)]
        assert [result.get(timeout=SECONDS) for result in results] == [2 * number for number in range(50)]
        until(lambda: own.space.stats("celery").claimed == 0)


@pytest.mark.slow
def test_no_task_is_lost_whenever_workers_are_killed(own: Shop) -> None:
    for _ in range(20):
        results = [own.app.tasks["note"].delay(str(number), 0.005) for number in range(40)]
        with working(own.place, "killed") as killed:
            until(lambda results=results: any(result.ready() for result in results[10:]), killed)
            killed.kill()
        with working(own.place, "heir"):
            for result in results:
                result.get(timeout=SECONDS)
        own.space.purge("notes")


def test_a_healthy_space_has_no_finding_and_no_alert_an_hour_later(own: Shop) -> None:
    """X20."""
    tasks = own.app.tasks
    with working(own.place):
        assert chord([tasks["add"].s(n, n) for n in range(3)])(tasks["total"].s()).get(timeout=SECONDS) == 6
    states = {"celery.bindings", "celery.transient", "celery.results"}
    expect_healthy_an_hour_later(own.space.path, own.place, states)
