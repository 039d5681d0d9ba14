"""A broker with actors, for tests and for the program ``tests.dramatiq_broker.program``."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dramatiq
from dramatiq.middleware import Shutdown
from dramatiq.results import Results

from dramatiq_xaspool import XaspoolBroker, XaspoolResults


class App:
    """The actors. Each of them writes a line into the file ``log`` beside the space when it begins or ends."""

    def __init__(self, space: Path, **options: Any) -> None:
        self.broker = XaspoolBroker(space, **options)
        self.results = XaspoolResults(space)
        self.broker.add_middleware(Results(backend=self.results))
        self.log = space.parent / "log"
        actor = dramatiq.actor
        self.note = actor(self._note, actor_name="note", broker=self.broker)
        self.urgent = actor(self._note, actor_name="urgent", broker=self.broker, priority=-10)
        self.add = actor(self._add, actor_name="add", broker=self.broker, store_results=True)
        self.fail = actor(
            self._fail, actor_name="fail", broker=self.broker, store_results=True, max_retries=1, min_backoff=1
        )
        self.hold = actor(self._hold, actor_name="hold", broker=self.broker, notify_shutdown=True, min_backoff=1)
        self.kill = actor(self._kill, actor_name="kill", broker=self.broker)

    def tell(self, line: object) -> None:
        with open(self.log, "a") as log:
            log.write(f"{line}\n")

    def told(self) -> list[str]:
        return self.log.read_text().split() if self.log.exists() else []

    def _note(self, word: object) -> None:
        self.tell(word)

    def _add(self, a: int, b: int) -> int:
        return a + b

    def _fail(self) -> None:
        self.tell("failed")
        raise ValueError("no tea\nleft")

    def _hold(self, word: str) -> None:
        """Run until the worker ends; the next run ends at once."""
        if word in self.told():
            return self.tell(f"{word}-again")
        self.tell(word)
        try:
            while True:
                time.sleep(0.01)
        except Shutdown:
            self.tell(f"{word}-interrupted")
            raise

    def _kill(self) -> None:
        self.tell("killed")
        os.kill(os.getpid(), signal.SIGKILL)

    def until_told(self, count: int = 0, *words: str) -> list[str]:
        """Wait until the log has this many lines, and these words."""
        pause = threading.Event()
        for _ in range(3000):
            told = self.told()
            if len(told) >= count and {*words} <= {*told}:
                return told
            pause.wait(0.02)
        raise AssertionError(self.told())


@contextmanager
def working(app: App, threads: int = 2) -> Iterator[dramatiq.Worker]:
    """Run a worker in this process."""
    worker = dramatiq.Worker(app.broker, worker_timeout=50, worker_threads=threads)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()
