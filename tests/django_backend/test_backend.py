"""The backend: tasks, states and results, with the worker in this process."""

import asyncio
import os
from datetime import datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import transaction
from django.test import override_settings
from django.utils import timezone

import spool
from django_xaspool import XaspoolBackend
from django_xaspool.tasks import exceptions, signals, task_backends
from tests import children
from tests.django_backend import jobs
from tests.django_backend.conf import tasks_in
from tests.watch.healthy import expect_healthy_an_hour_later


def work(**options: Any) -> str:
    """Run each task that can run now once, and return the output of the worker."""
    out = StringIO()
    call_command("spool_worker", once=True, stdout=out, **options)
    return out.getvalue()


def states(*results: Any) -> list[str]:
    for result in results:
        result.refresh()
    return [str(result.status) for result in results]


def test_tasks_of_each_kind_run_and_keep_their_results(path: Path) -> None:
    plain, coroutine, context = jobs.add.enqueue(1, b=2), jobs.double.enqueue("tea"), jobs.attempt.enqueue()
    assert states(plain, coroutine, context) == ["READY"] * 3
    assert work().splitlines()[1:] == ["default: 2 succeeded, 0 failed, 0 to repeat",
                                       "mail: 1 succeeded, 0 failed, 0 to repeat"]  # fmt: skip
    assert states(plain, coroutine, context) == ["SUCCESSFUL"] * 3
    assert (plain.return_value, coroutine.return_value) == (3, ["tea", "tea"])
    assert context.return_value == [1, "RUNNING", True]
    assert len(plain.worker_ids) == 1
    assert plain.enqueued_at <= plain.started_at <= plain.finished_at
    found = jobs.double.get_result(coroutine.id)
    assert (found.task.queue_name, found.task.priority, found.args) == ("mail", 7, ["tea"])


def test_a_task_keeps_the_time_of_its_enqueuing(path: Path) -> None:
    """So the result of ``enqueue`` equals the result that ``get_result`` finds."""
    result = jobs.add.enqueue(1, b=2)
    assert jobs.add.get_result(result.id) == result
    work()
    assert jobs.add.get_result(result.id).enqueued_at == result.enqueued_at


def test_a_task_of_an_atomic_block_is_sent_by_the_commit_and_not_before(path: Path) -> None:
    with transaction.atomic():
        sent = jobs.add.enqueue(1)
        with pytest.raises(exceptions.TaskResultDoesNotExist):
            sent.refresh()
    assert states(sent) == ["READY"]
    with transaction.atomic():
        undone = jobs.add.enqueue(2)
        transaction.set_rollback(True)
    with pytest.raises(exceptions.TaskResultDoesNotExist):
        undone.refresh()
    with override_settings(TASKS=tasks_in(path, database=None)), transaction.atomic():
        assert states(jobs.add.enqueue(3)) == ["READY"]


def test_a_task_runs_after_its_time(path: Path) -> None:
    later = timezone.now() + timedelta(hours=1)
    result = jobs.add.using(run_after=later).enqueue(1)
    past = jobs.add.using(run_after=timezone.now() - timedelta(hours=1)).enqueue(2)
    work()
    assert states(result, past) == ["READY", "SUCCESSFUL"]
    assert result.task.run_after == later


@override_settings(USE_TZ=False)
def test_without_time_zones_all_times_are_naive(path: Path) -> None:
    result = jobs.add.using(run_after=datetime.now() - timedelta(hours=1)).enqueue(1)
    work()
    result.refresh()
    assert result.finished_at.tzinfo is None
    assert result.task.run_after.tzinfo is None


def test_tasks_of_higher_priority_run_first(path: Path, tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    for priority in (0, -100, 100, 50, -50, 0):
        jobs.note.using(priority=priority).enqueue(log, str(priority))
    work()
    assert Path(log).read_text().split() == ["100", "50", "0", "0", "-50", "-100"]


def test_a_failed_task_keeps_its_traceback_and_can_be_redriven(path: Path, tmp_path: Path) -> None:
    result = jobs.fail_unless.enqueue(str(tmp_path / "tea"))
    assert "default: 0 succeeded, 1 failed" in work()
    assert states(result) == ["FAILED"]
    (error,) = result.errors
    assert error.exception_class is ValueError
    assert "fail_unless" in error.traceback
    assert error.traceback.endswith("ValueError: no tea left\n")
    space = spool.shared(path)
    (failed,) = space.browse("django-failed")
    assert failed.failure_reason == "ValueError: no tea left"  # the cause alone
    (tmp_path / "tea").touch()
    assert space.redrive("django-failed") == 1
    assert states(result) == ["READY"]
    work()
    assert states(result) == ["SUCCESSFUL"]
    assert (result.return_value, result.errors) == ("tea", [])


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("no_json", TypeError),
        ("no_text", spool.InvalidArgument),
        ("fail_without_text", ValueError),
        ("leave", SystemExit),
    ],
)
def test_a_task_fails_if_its_value_is_no_json_or_if_it_raises_anything(path: Path, name: str, error: type) -> None:
    result = getattr(jobs, name).enqueue()
    work()
    assert states(result) == ["FAILED"]
    assert result.errors[0].exception_class is error


def test_a_task_that_asks_for_further_attempts_fails_after_the_retries_of_its_queue(path: Path) -> None:
    result = jobs.again.enqueue()
    spool.shared(path).change_queue("default", retries=1)
    work()
    assert states(result) == ["READY"]
    assert result.attempts == 1
    work()
    assert states(result) == ["FAILED"]
    assert result.errors[0].exception_class is spool.RequestFailed
    assert result.errors[0].traceback == "2 attempts failed; the last one: later"


def test_a_message_that_this_program_has_no_task_for_returns_for_another_program(path: Path) -> None:
    result = jobs.add.enqueue(1)
    space = spool.shared(path)
    space.put("default", {**space.get("default").body, "task": "tests.django_backend.jobs.new"})
    assert "default: 0 succeeded, 0 failed, 1 to repeat" in work()
    (returned,) = space.browse("default")
    assert "new" in str(returned.failure_reason)
    with pytest.raises(exceptions.TaskResultDoesNotExist):
        result.refresh()


@pytest.mark.parametrize(
    ("options", "place", "said"),
    [
        ({"retries": 3, "error_queue": "django-failed"}, "django-failed", "1 failed, 0 to repeat"),
        ({"retries": 0}, "default", "0 failed, 1 to repeat"),
    ],
    ids=["error queue", "no error queue"],
)
def test_a_message_of_another_framework_delays_no_task_and_is_never_dropped(
    path: Path, options: Any, place: str, said: str
) -> None:
    space = spool.shared(path)
    space.ensure_queue("default", **options)
    foreign = space.put("default", "no task")
    result = jobs.add.enqueue(1)
    assert f"default: 1 succeeded, {said}" in work()
    assert states(result) == ["SUCCESSFUL"]
    (kept,) = space.browse(place)
    reason = "not a task of Django (it has no task), so another program uses the queue default: give each"
    assert (kept.id, kept.attempts, str(kept.failure_reason).startswith(reason)) == (foreign, 0, True)


def test_a_task_that_a_failed_task_has_enqueued_runs(path: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    jobs.fail_after_child.enqueue(str(log))
    work()
    assert log.read_text().split()[1] == "child"


def test_a_result_expires_and_an_id_without_a_task_has_no_result(path: Path) -> None:
    with override_settings(TASKS=tasks_in(path, result_ttl=60)):
        jobs.add.enqueue(1)
        work()
    (stored,) = spool.shared(path).browse("django-results")
    assert stored.expires_at is not None
    assert stored.expires_at - stored.enqueued_at == pytest.approx(60)
    for id in ("unknown", "", "x" * 300):
        with pytest.raises(exceptions.TaskResultDoesNotExist):
            jobs.add.get_result(id)


def test_the_asynchronous_calls_do_the_same(path: Path) -> None:
    async def calls() -> str:
        result = await jobs.add.aenqueue(1)
        await result.arefresh()
        return str((await jobs.add.aget_result(result.id)).status)

    assert asyncio.run(calls()) == "READY"


def test_x20_a_message_and_a_result_name_the_task_and_its_state(path: Path) -> None:
    done, failed = jobs.add.enqueue(1), jobs.no_json.enqueue()
    space = spool.shared(path)
    assert space.find("default", correlation_id=done.id).headers == {"task": "tests.django_backend.jobs.add"}
    work()
    for result, state in ((done, "SUCCESSFUL"), (failed, "FAILED")):
        headers = space.find("django-results", correlation_id=result.id).headers
        assert (headers["task"], headers["state"]) == (result.task.module_path, state)
        assert float(headers["runtime"]) >= 0
        assert headers["worker"] == f"{os.uname().nodename}:{os.getpid()}"
    [moved] = space.browse("django-failed")
    assert (moved.correlation_id, moved.headers) == (failed.id, {"task": "tests.django_backend.jobs.no_json"})
    assert str(moved.failure_reason).startswith("TypeError: ")


def test_each_task_runs_in_a_context_of_its_own(path: Path) -> None:
    """The language, the time zone and the context variables of a task do not stay for the next one."""
    jobs.change_context.enqueue()
    result = jobs.context.enqueue()
    work()
    result.refresh()
    assert result.return_value == ["en-us", "America/Chicago", "unset"]


def test_a_key_of_the_setting_that_has_no_effect_is_reported() -> None:
    found = XaspoolBackend("mail", {"QUEUE": ["post"], "OPTIONS": {"space": "/tmp"}})
    [warning] = found.check()
    assert warning.id == "django_xaspool.W002"
    assert warning.msg.startswith("TASKS['mail'] has the key 'QUEUE', which has no effect")


def test_signals_are_sent_and_a_failing_receiver_changes_no_outcome(path: Path) -> None:
    seen = []

    def receive(signal: Any, task_result: Any, **other: Any) -> None:
        seen.append(str(task_result.status))
        raise RuntimeError("of a receiver")

    for signal in (signals.task_enqueued, signals.task_started, signals.task_finished):
        signal.connect(receive)
    try:
        result = jobs.add.enqueue(1)
        work()
    finally:
        for signal in (signals.task_enqueued, signals.task_started, signals.task_finished):
            signal.disconnect(receive)
    assert states(result) == ["SUCCESSFUL"]
    assert seen == ["READY", "RUNNING", "SUCCESSFUL"]


def test_a_fork_enqueues_as_its_parent_does(path: Path) -> None:
    jobs.add.enqueue(1)
    assert children.exit_code_of(lambda: jobs.add.enqueue(2)) == 0
    jobs.add.enqueue(3)
    assert sorted(message.body["args"] for message in spool.shared(path).browse("default")) == [[1], [2], [3]]


def test_without_a_list_of_queues_any_queue_is_accepted(path: Path) -> None:
    tasks: dict[str, Any] = tasks_in(path)
    tasks["default"]["QUEUES"] = []
    with override_settings(TASKS=tasks):
        result = jobs.add.using(queue_name="any").enqueue(1)
        assert states(result) == ["READY"]
        with pytest.raises(CommandError, match="--queue"):
            work()
        work(queue=["any"])
        assert states(result) == ["SUCCESSFUL"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "needs the directory of a space"),
        ({"space": ""}, "needs the directory of a space"),
        ({"space": 7}, "needs the directory of a space"),
        ({"space": __file__}, "is a file: name a directory"),
        ({"space": "/tmp", "spce": 1}, "unknown option 'spce': it knows space, result_ttl, database"),
        ({"space": "/tmp", "result_ttl": 0}, "result_ttl is a number of seconds above 0, not 0"),
        ({"space": "/tmp", "result_ttl": "1d"}, "not '1d'"),
        ({"space": "/tmp", "database": "other"}, "no database 'other' in DATABASES"),
    ],
)
def test_a_wrong_option_is_refused_with_advice(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=said) as refused:
        XaspoolBackend("default", {"OPTIONS": options})
    assert "TASKS['default']" in str(refused.value)


def test_a_queue_of_the_backend_itself_is_refused() -> None:
    with pytest.raises(ImproperlyConfigured, match="itself needs the queue django-failed"):
        XaspoolBackend("default", {"QUEUES": ["django-failed"], "OPTIONS": {"space": "/tmp"}})


def test_the_worker_refuses_unknown_queues_and_other_backends(path: Path) -> None:
    with pytest.raises(CommandError, match="--queue, one of default, mail"):
        work(queue=["post"])
    with pytest.raises(CommandError, match="threads"):
        work(threads=0)
    other = f"{type(task_backends['default']).__mro__[1].__module__.rpartition('.')[0]}.dummy.DummyBackend"
    with override_settings(TASKS={"default": {"BACKEND": other}}), pytest.raises(CommandError, match="XaspoolBackend"):
        work()


def test_a_healthy_space_has_no_finding_and_no_alert_an_hour_later(path: Path, tmp_path: Path) -> None:
    """X20."""
    results = jobs.add.enqueue(1, b=2), jobs.double.enqueue("tea")
    work()
    assert states(*results) == ["SUCCESSFUL"] * 2
    expect_healthy_an_hour_later(str(path), tmp_path, {"django-results"})
