"""Processes of ``manage.py spool_worker``, which are killed or stopped in the middle of a task."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import spool
from django_xaspool.tasks import task_backends
from tests.clocks import until
from tests.django_backend import jobs

SECONDS = 60


@contextmanager
def worker(path: Path, *options: str) -> "Iterator[subprocess.Popen[str]]":
    """Start a worker; kill it at the end, if it still runs."""
    command = [sys.executable, "-m", "django", "spool_worker", "--settings", "tests.django_backend.conf", *options]
    environment, root = {**os.environ, "SPACE": str(path)}, Path(__file__).parents[2]
    process = subprocess.Popen(command, env=environment, cwd=root, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=SECONDS)


def status_of(result: Any) -> str:
    result.refresh()
    return str(result.status)


def wait_for(result: Any, status: str) -> None:
    until(lambda: status_of(result) == status)


def test_the_task_of_a_killed_worker_is_ready_at_once_and_runs_elsewhere(path: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    result = jobs.hold.enqueue(str(log))
    spool.shared(path).change_queue("default", retry_delay=0)
    with worker(path) as first:
        # (a message is claimed a moment before its attempt begins)
        until(lambda: log.exists() and log.read_text() != "")
        assert status_of(result) == "RUNNING"
        first.kill()
        first.wait(SECONDS)
        assert status_of(result) == "READY"
    (tmp_path / "go").touch()
    with worker(path):
        wait_for(result, "SUCCESSFUL")
    assert result.return_value == "gone on"
    assert result.attempts == 2


def test_sigterm_lets_the_running_task_end_and_leaves_the_others(path: Path, tmp_path: Path) -> None:
    running, waiting = jobs.hold.enqueue(str(tmp_path / "log")), jobs.add.enqueue(1)
    with worker(path, "--queue", "default") as process:
        wait_for(running, "RUNNING")
        process.terminate()
        assert process.stdout is not None
        while not process.stdout.readline().startswith("waiting for the running tasks"):
            assert process.poll() is None
        (tmp_path / "go").touch()
        out, _ = process.communicate(timeout=SECONDS)
    assert (process.returncode, out) == (0, "default: 1 succeeded, 0 failed, 0 to repeat\n")
    wait_for(running, "SUCCESSFUL")
    wait_for(waiting, "READY")


def test_a_second_sigterm_ends_the_worker_at_once_and_the_task_returns(path: Path, tmp_path: Path) -> None:
    result = jobs.hold.enqueue(str(tmp_path / "log"))
    with worker(path) as process:
        wait_for(result, "RUNNING")
        pause = threading.Event()
        while process.poll() is None:
            process.terminate()
            pause.wait(0.05)
    assert process.returncode == -signal.SIGTERM
    wait_for(result, "READY")


def test_a_task_that_kills_its_workers_fails(path: Path, tmp_path: Path) -> None:
    result = jobs.kill.enqueue(str(tmp_path / "log"))
    spool.shared(path).change_queue("default", retry_delay=0, retries=1)
    for _ in range(2):
        with worker(path, "--once") as process:
            assert process.wait(SECONDS) == -signal.SIGKILL
    with worker(path, "--once") as process:
        assert process.wait(SECONDS) == 0
    wait_for(result, "FAILED")
    assert (result.attempts, result.errors[0].traceback[:34]) == (2, "2 attempts failed; the last one: t")


def test_a_task_that_takes_too_long_returns(path: Path, tmp_path: Path) -> None:
    result = jobs.hold.enqueue(str(tmp_path / "log"))
    with worker(path, "--once", "--timeout", "0.1") as process:
        out, _ = process.communicate(timeout=SECONDS)
    assert "default: 0 succeeded, 0 failed, 1 to repeat" in out
    result.refresh()
    assert (result.status, result.attempts) == ("READY", 1)


def test_the_late_end_of_a_task_does_not_hide_the_result_of_its_next_run(path: Path, tmp_path: Path) -> None:
    result, backend = jobs.hold_once.enqueue(str(tmp_path / "log")), task_backends["default"]
    backend.space.change_queue("default", retry_delay=0)
    others = {*threading.enumerate()}
    worker = spool.Worker(backend.space, "default", backend.run, threads=2, timeout=0.5)
    with ThreadPoolExecutor() as threads:
        end = threads.submit(worker.run)
        wait_for(result, "SUCCESSFUL")
        (tmp_path / "go").touch()
        worker.stop()
        end.result()
    for late in {*threading.enumerate()} - others:
        late.join(SECONDS)
    wait_for(result, "SUCCESSFUL")
    assert (result.return_value, result.attempts) == ("in time", 2)
    assert len(list(backend.space.browse("django-results"))) == 1


@pytest.mark.parametrize(
    ("name", "code"), [("add", 0), ("no_json", 6), ("again", 5)], ids=["succeeded", "failed", "to repeat"]
)
def test_once_ends_with_the_exit_code_of_spool_worker(path: Path, name: str, code: int) -> None:
    getattr(jobs, name).enqueue(*([1] if name == "add" else []))
    with worker(path, "--once") as process:
        assert process.wait(SECONDS) == code
