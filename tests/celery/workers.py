"""Real workers of Celery, as processes of the tests."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import spool
from tests.celery.tasks import SPACE
from tests.clocks import until as until

ROOT = Path(__file__).parents[2]
SECONDS = 60


class Worker:
    """A worker with two processes, which is ready when the constructor returns."""

    def __init__(self, place: Path, name: str, *options: str) -> None:
        self.name = f"{name}@test"
        self._log = place / f"{name}.log"
        command = (sys.executable, "-m", "celery", "-A", "tests.celery.tasks", "worker", "-n", self.name, "-l", "INFO")
        if name != "shared":
            command += ("--without-mingle", "--without-gossip")  # (a second less)
        if not {"-c", "-P"} & {*options}:
            command += ("-c", "2")
        environment = {**os.environ, SPACE: str(place / "space"), "C_FORCE_ROOT": "1"}
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(
                (*command, *options), cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        until(lambda: f"{self.name} ready" in self.log or self.process.poll() is not None, self)
        assert self.process.poll() is None, self.log

    @property
    def log(self) -> str:
        return self._log.read_text()

    def kill(self) -> None:
        """Kill the worker and its pool."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(SECONDS)

    def stop(self) -> None:
        """Let the worker finish its running tasks."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(SECONDS)


@contextmanager
def working(place: Path, name: str = "worker", *options: str) -> Iterator[Worker]:
    worker = Worker(place, name, *options)
    try:
        yield worker
    finally:
        try:
            worker.stop()
        finally:
            if worker.process.poll() is None:
                worker.kill()


@contextmanager
def prepared(place: Path) -> Iterator[spool.Space]:
    """Create the space of the tasks, and close it for this process afterwards."""
    space = spool.shared(place / "space")
    space.create_queues(["notes", "words"], exist_ok=True, durability="none")
    try:
        yield space
    finally:
        space.close()
