"""Worker processes of the program ``dramatiq``, which are killed or stopped in the middle of their messages."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import dramatiq

import spool
from tests import children
from tests.dramatiq_broker.app import App

SECONDS = 60


@contextmanager
def dramatiq_program(
    app: App, processes: int = 2, module: str = "tests.dramatiq_broker.program"
) -> "Iterator[subprocess.Popen[bytes]]":
    """Run the program; kill all its processes at the end, if they still run."""
    command = [sys.executable, "-m", "dramatiq", f"{module}:broker"]
    program = subprocess.Popen(
        [*command, "--processes", str(processes), "--threads", "2"],
        env={**os.environ, "SPACE": app.broker.path, "dramatiq_queue_prefetch": "20"},
        cwd=Path(__file__).parents[2],
        start_new_session=True,
    )
    try:
        yield program
    finally:
        kill(program)


def kill(program: "subprocess.Popen[bytes]") -> None:
    """Kill the program and its workers."""
    with suppress(ProcessLookupError):
        os.killpg(program.pid, signal.SIGKILL)
    program.wait(SECONDS)


def test_the_messages_of_killed_workers_run_elsewhere_and_none_is_lost(tmp_path: Path) -> None:
    app = App(tmp_path / "space")
    held = ["hold0", "hold1"]
    for word in held:
        app.hold.send(word)
    for number in range(200):
        app.note.send(number)
    with dramatiq_program(app) as program:
        app.until_told(2, *held)  # the worker that runs them has claimed further messages
        kill(program)
    with dramatiq_program(app):
        app.broker.join("default", timeout=SECONDS * 1000)
    assert set(app.told()) >= {f"{word}-again" for word in held} | {str(number) for number in range(200)}
    assert not [*app.broker.space.browse("default.XQ")]


def test_a_stopped_program_interrupts_its_actors_and_loses_no_message(tmp_path: Path) -> None:
    app = App(tmp_path / "space")
    for number in range(2):
        app.hold.send(f"hold{number}")
    app.note.send_with_options(args=("later",), delay=3_600_000)
    with dramatiq_program(app, processes=1) as program:
        app.until_told(2)
        program.terminate()
        assert program.wait(SECONDS) == 0
    assert sorted(app.told())[1::2] == ["hold0-interrupted", "hold1-interrupted"]
    stats = app.broker.space.stats("default")
    assert (stats.ready + stats.delayed, stats.claimed) == (3, 0)  # the interrupted actors are to be repeated


def test_a_message_that_kills_its_workers_ends_in_the_dead_letter_queue(tmp_path: Path) -> None:
    app = App(tmp_path / "space", retries=1)
    app.kill.send()
    app.note.send("innocent")

    def work() -> None:
        dramatiq.Worker(app.broker, worker_timeout=50, worker_threads=1).start()
        app.broker.join("default", timeout=SECONDS * 1000)

    assert [children.exit_code_of(work) for _ in range(3)] == [-signal.SIGKILL, -signal.SIGKILL, 0]
    assert app.told() == ["killed", "killed", "innocent"]
    with spool.open(app.broker.path) as space:
        (dead,) = space.browse("default.XQ")
        assert (dead.headers["task"], dead.origin_attempts) == ("kill", 2)
