"""A space is restored while programs use it: ``mv space old; mv copy space``. Each program ends with a clear error, or
goes on with the new space, within seconds: also a program that waits without a search for messages."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import wait
from pathlib import Path

import pytest
from kombu import Connection

import spool
from tests import door
from tests.at_once import AT_ONCE
from tests.celery import tasks
from tests.clocks import until
from tests.dramatiq_broker.app import App
from tests.spaces import opened_path

SECONDS = 60
ROOT = Path(__file__).parents[2]
TOLD = "was moved, replaced or removed while the space is in use: close the space in every process, then open it again"


def start(name: str) -> tuple[str, ...]:
    """The command of a program of this project."""
    return (sys.executable, "-c", f"import xaspool_scripts.start; xaspool_scripts.start.{name}()")


# By name: the command, what its output says once it runs, and whether it goes on with the new space.
PYTHON = (sys.executable, "-m")
PROGRAMS = {
    "celery": ((*PYTHON, "celery", "-A", "tests.celery.tasks", "worker", "-c", "1", "-l", "INFO"), "ready", True),
    "dramatiq": ((*PYTHON, "dramatiq", "tests.dramatiq_broker.program:broker", "-p", "1"), "ready for action", True),
    "django": (
        (*PYTHON, "django", "spool_worker", "--settings", "tests.django_backend.conf", "--queue", "mail"),
        "running",
        False,
    ),
    "worker": ((*start("worker"), "work=builtins:repr"), "", False),
    "forward": ((*start("forward"), "--route", "forward=python:builtins:repr", "--no-spark"), "forwarding", False),
    "intake": (start("intake"), "taking files", False),
    "metrics": ((*start("admin"), "metrics", "--listen", "127.0.0.1:0"), "serving", False),
    "console": ((*start("admin"), "console", "--listen", "127.0.0.1:0"), "console of", False),
    "serve": ((*start("serve"), "--listen", "127.0.0.1:0"), "serving", False),
    "aio": ((sys.executable, __file__), "waiting", False),
}


class Program:
    def __init__(self, name: str, path: Path) -> None:
        command, self.says, self.goes_on = PROGRAMS[name]
        self._log = path.parent / f"{name}.log"
        own = {"SPOOL_SPACE": str(path), "SPACE": str(path), tasks.SPACE: str(path), "PYTHONPATH": str(ROOT)}
        environment = {**os.environ, **own, "C_FORCE_ROOT": "1", "PYTHONUNBUFFERED": "1"}
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    def has_started(self) -> bool:
        assert self.process.poll() is None, self.log
        return self.says in self.log

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def close(self) -> None:
        if not self.has_ended():
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(SECONDS)


@contextmanager
def running(path: Path) -> Iterator[dict[str, Program]]:
    with ExitStack() as at_end:
        programs = {}
        for name in PROGRAMS:
            programs[name] = Program(name, path)
            at_end.callback(programs[name].close)
        for program in programs.values():
            until(program.has_started, program)
        yield programs


def replace(path: Path) -> None:
    path.rename(path.with_name("old"))
    path.with_name("copy").rename(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A space, with a copy beside it."""
    path = tmp_path / "space"
    with spool.create(path, defaults=AT_ONCE) as space:
        for queue in ("orders", "work", "forward", "notes", "default", "mail"):
            space.create_queue(queue)
    shutil.copytree(path, tmp_path / "copy")
    return path


def test_each_program_goes_on_with_the_new_space_or_ends_with_a_clear_error(path: Path) -> None:
    celery = tasks.application(path)
    dramatiq = App(path)
    with running(path) as programs:
        celery.send_task("note", ("before",))
        spool.shared(path).get("notes", timeout=SECONDS)
        dramatiq.note.send("before")
        dramatiq.until_told(1, "before")
        spool.shared(path).put("work", "before")
        until(lambda: spool.shared(path).stats("work").dequeued == 1, programs["worker"])
        replace(path)
        celery.send_task("note", ("after",))
        dramatiq.note.send("after")
        until(lambda: "after" in dramatiq.told(), programs["dramatiq"])
        with spool.open(path) as space:
            until(lambda: space.stats("notes").ready, programs["celery"])
        for name, program in programs.items():
            if not program.goes_on:
                until(program.has_ended, program)
                assert program.process.returncode == 1, (name, program.log)
                assert re.search(TOLD, program.log), (name, program.log)
                assert "Traceback" not in program.log, (name, program.log)
    spool.shared(path).close()


space = opened_path()


def test_arrivals_become_readable_and_raise(space: spool.Space, path: Path) -> None:
    """An event loop waits for the descriptor, and makes no other call."""
    with space.arrivals(["orders"]) as arrivals:
        arrivals.ready()
        replace(path)
        assert wait([arrivals.fileno()], SECONDS)
        with pytest.raises(spool.SpaceStopped, match=TOLD):
            arrivals.ready()


@pytest.mark.parametrize("change", [replace, shutil.rmtree], ids=["replaced", "removed"])
def test_each_call_raises_once_the_housekeeper_has_looked(
    space: spool.Space, path: Path, change: Callable[[Path], None]
) -> None:
    change(path)
    with pytest.raises(spool.SpaceStopped, match=TOLD):
        door.store(space).check_in_place()
    for call in (space.stats, space.queues, space.metrics, lambda: space.put("orders", 1), lambda: space.get("orders")):
        with pytest.raises(spool.SpaceStopped, match=TOLD):
            call()


def test_a_space_that_is_back_in_its_place_is_used_again(space: spool.Space, path: Path) -> None:
    store = door.store(space)
    path.rename(path.with_name("old"))
    with pytest.raises(spool.SpaceStopped, match=TOLD):
        store.check_in_place()
    path.with_name("old").rename(path)
    store.check_in_place()
    space.put("orders", "tea")
    assert space.get("orders").body == "tea"


def test_shared_opens_the_new_space_and_creates_none_in_the_middle_of_a_restore(path: Path) -> None:
    first = spool.shared(path)
    first.put("orders", "before")
    path.rename(path.with_name("old"))
    for _ in range(2):
        with pytest.raises(spool.SpaceStopped, match=TOLD):
            spool.shared(path)
    assert not path.exists()
    path.with_name("copy").rename(path)
    second = spool.shared(path)
    assert second is not first
    assert second.stats("orders").ready == 0
    with pytest.raises(spool.NotOpen):
        first.put("orders", "lost")
    second.close()
    with spool.open(path.with_name("old")) as old:
        assert old.get("orders").body == "before"


def test_a_space_that_was_replaced_can_be_closed(path: Path) -> None:
    """Also while other processes commit, so that the close takes the lead among them."""
    with spool.open(path) as space:
        space.submit("orders", "tea").result(SECONDS)
        door.expect_others(space, 64)
        replace(path)
    assert door.store(space).closed


def test_a_task_of_celery_that_ends_after_its_connection_was_lost_harms_nothing(path: Path) -> None:
    with Connection(f"xaspool://{path}") as connection:
        queue = connection.SimpleQueue("tea")
        for kind in ("black", "green"):
            queue.put(kind)
        first, second = queue.get(timeout=SECONDS), queue.get(timeout=SECONDS)
    first.ack()
    second.reject()
    assert spool.shared(path).stats("tea").ready == 2
    spool.shared(path).close()


async def _wait(path: str) -> None:
    """Wait for a message in a task; the program that ``PROGRAMS`` calls "aio"."""
    async with spool.aio.open(path) as space:
        print("waiting")
        await space.get("orders", timeout=None)


if __name__ == "__main__":
    try:
        asyncio.run(_wait(os.environ["SPACE"]))
    except spool.SpaceStopped as error:
        sys.exit(str(error))
