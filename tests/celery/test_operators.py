"""The commands of operators: inspect, control, events, and the end of workers."""

import os
import signal
import subprocess
import sys

import pytest
from celery import chord, states
from celery.exceptions import ChordError, WorkerLostError

from tests.celery.conftest import Shop, expect_all_run
from tests.celery.tasks import SPACE, application
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


def test_only_the_tasks_that_began_have_used_an_attempt_when_their_worker_dies(own: Shop) -> None:
    """Otherwise a few deaths would move tasks that never ran to the error queue."""
    own.space.create_queue("failed", role="error")
    own.space.create_queue("celery", retry_delay=0.0, retries=1, error_queue="failed")
    sent = [own.app.tasks["wait_for_word"].delay(str(number)).id for number in range(8)]
    begun: list[str] = []
    for name in ("first", "second"):
        with working(own.place, name) as worker:
            until(lambda: own.space.stats("notes").ready == 2 and own.space.stats("celery").claimed == 8, worker)
            worker.kill()
        begun += [message.body for message in own.space.get_many("notes", 2)]
    assert sorted(begun) == ["0", "0", "1", "1"]
    with working(own.place, "third", "-P", "solo") as worker:
        until(lambda: own.space.stats("notes").ready == 1, worker)
        worker.kill()
    assert {message.correlation_id for message in own.space.browse("failed")} == set(sent[:2])
    until(lambda: own.space.stats("celery").ready == 6)
    assert own.space.claims().take("celery", 8) != []
    expected = {id: int(number == 2) for number, id in enumerate(sent) if number > 1}
    assert {message.correlation_id: message.attempts for message in own.space.browse("celery")} == expected


def test_a_task_that_kills_its_worker_uses_an_attempt_each_time(own: Shop) -> None:
    """No process is left that could store the failure. The callers of the task and of its chord get the failure."""
    own.space.create_queue("failed", role="error")
    own.space.create_queue("celery", retry_delay=0.0, retries=1, error_queue="failed")
    tasks = own.app.tasks
    body = chord([tasks["kill_worker"].s(), tasks["add"].s(1, 1).set(countdown=600)])(tasks["total"].s())
    sent = body.parent.results[0]
    for _ in range(2):
        command = [sys.executable, "-m", "celery", "-A", "tests.celery.tasks", "worker", "-c", "1", "--without-mingle"]
        environment = {**os.environ, SPACE: own.space.path, "C_FORCE_ROOT": "1"}
        done = subprocess.run(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL, check=False)
        assert done.returncode == -signal.SIGKILL
    until(lambda: own.space.claims().take("celery") == [])
    [failed] = own.space.browse("failed")
    assert (failed.correlation_id, failed.origin_attempts) == (sent.id, 2)
    for result in (sent, body):
        with pytest.raises(WorkerLostError, match="died"):
            result.get(timeout=SECONDS)
    assert [own.app.AsyncResult(result.id).state for result in (sent, body)] == [states.FAILURE] * 2
    own.space.redrive("failed")
    assert own.app.AsyncResult(sent.id).state == states.PENDING


def test_the_last_attempt_of_a_task_that_kills_its_process_stores_the_failure(shop: Shop) -> None:
    """The chord of the task fails, too. (Celery takes a returned message for a task that runs again.)"""
    shop.space.create_queue("failed", role="error")
    shop.space.create_queue("risky", retry_delay=0.0, retries=0, error_queue="failed")
    assert shop.app.control.add_consumer("risky", reply=True, timeout=SECONDS, limit=1)
    tasks = shop.app.tasks
    body = chord([tasks["die"].s().set(queue="risky"), tasks["add"].s(1, 1)])(tasks["total"].s())
    until(lambda: body.state == states.FAILURE, shop.worker)
    assert isinstance(body.result, ChordError)
    part = body.parent.results[0]
    with pytest.raises(WorkerLostError, match="signal 9"):
        part.get(timeout=SECONDS)
    [failed] = shop.space.browse("failed", correlation_id=part.id)
    assert (failed.failure_reason or "").startswith("WorkerLostError: ")


def test_a_shutdown_ends_the_wait_of_a_part_of_a_chord_and_counts_no_attempt(own: Shop) -> None:
    """The test holds the counter of the chord, as a stopped process does."""
    own.space.create_queue("celery", retry_delay=0.0, retries=0)
    note, total = own.app.tasks["note"], own.app.tasks["count"]
    body = chord([note.s("part"), note.s("part")])(total.s())
    with own.space.claims() as holder:
        assert holder.take("celery.results", correlation_id=f"chord-unlock-{body.parent.id}")
        with working(own.place, "first") as worker:
            until(lambda: own.space.stats("notes").ready == 2, worker)
        assert worker.process.returncode == 0
        assert [message.attempts for message in own.space.browse("celery")] == [0, 0]
    with working(own.place, "second"):
        assert body.get(timeout=SECONDS) == 2


@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_a_killed_worker_of_another_pool_counts_only_the_task_that_began(own: Shop, pool: str) -> None:
    own.space.create_queue("celery", retry_delay=0.0, retries=9)
    sent = [own.app.tasks["wait_for_word"].delay(str(number)).id for number in range(3)]
    with application(own.space.path, broker_transport_options={"native_eta": False}) as app:
        sent.append(app.tasks["add"].apply_async((1, 1), countdown=600).id)  # the worker keeps this task in its memory
    with working(own.place, pool, "-P", pool, "-c", "1") as worker:
        held = 1 if pool == "solo" else 4
        until(lambda: own.space.stats("notes").ready == 1 and own.space.stats("celery").claimed == held, worker)
        worker.kill()
    until(lambda: own.space.stats("celery").claimed == 0)
    with own.space.claims() as claims:
        assert [message.attempts for message in claims.take("celery", 4)] == [1, 0, 0, 0]


def test_the_pool_solo_acknowledges_each_task_at_its_end(own: Shop) -> None:
    own.app.tasks["add"].delay(1, 1)
    own.app.tasks["wait_for_word"].delay("word")
    with working(own.place, "alone", "-P", "solo") as worker:
        until(lambda: own.space.stats("notes").ready == 1 and own.space.stats("celery").claimed == 1, worker)
        own.space.put("words", "", correlation_id="word")


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
    expected = {result.id for number, result in enumerate(results) if str(number) in running}
    assert {result.id for result in results if result.state == states.SUCCESS} == expected
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
