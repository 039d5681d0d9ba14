"""A disk that holds the next commit's flush until it is told to go on, so that others gather behind it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import spool
from spool.disk.disk import Disk, FlushFailed
from tests import door
from tests.at_once import AT_ONCE

PATIENT_SECONDS = 60


class HeldDisk(Disk):
    """``hold`` stops the next commit's flush; ``fails`` is raised by the flushes of the given commit and later ones."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.arrived = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()
        self.holding = False
        self.flush_fails: FlushFailed | None = None
        self.on_vote: Callable[[], None] = lambda: None  # called before the flush of each vote
        self.write_fails: Callable[[str], OSError | None] = lambda name: None

    def make_durable(self, handle: int, directory: str, **how: bool) -> None:
        if self.holding and directory == "committed":
            self.holding = False
            self.arrived.set()
            assert self.go_on.wait(PATIENT_SECONDS)
        elif self.flush_fails is not None:
            raise self.flush_fails
        elif directory == "prepared":
            self.on_vote()
        super().make_durable(handle, directory, **how)

    def create(self, name: str) -> int:
        if (error := self.write_fails(name)) is not None:
            raise error
        return super().create(name)


@contextmanager
def committed_here(space: spool.Space) -> Iterator[None]:
    """Commit all submissions of the block together, at its end, in this thread."""
    with door.without_commit_thread(space):
        try:
            yield
        finally:
            door.lead(space)


class Gathering:
    """A space with one commit held in its flush; ``join`` starts callers, each of which has joined the line when it
    returns; leaving lets the flush go on."""

    def __init__(self, path: Path) -> None:
        path.mkdir()
        self.disk = HeldDisk(str(path))
        self.space = spool.create(self.disk, defaults=AT_ONCE)
        self.threads: list[threading.Thread] = []
        self._came: dict[threading.Thread, threading.Event] = {}

    @contextmanager
    def held(self, queue: str = "orders") -> Iterator[None]:
        """Hold the flush of a put while the block runs. All callers have returned after the block."""
        self.disk.arrived.clear()
        self.disk.go_on.clear()
        self.disk.holding = True
        self.join(lambda: self.space.put(queue, "first"))
        assert self.disk.arrived.wait(PATIENT_SECONDS)
        try:
            yield
        finally:
            self.disk.go_on.set()
            self.end()

    def join(self, call: Callable[[], object]) -> "Caller":
        caller = Caller(call)
        self.threads.append(caller)
        caller.start()
        self.wait_for(caller)
        return caller

    def wait_for(self, caller: threading.Thread) -> None:
        """Wait until the caller has joined the line."""
        assert self.came(caller).wait(PATIENT_SECONDS)

    def came(self, caller: threading.Thread) -> threading.Event:
        """Set when the caller has joined the line."""
        return self._came.setdefault(caller, threading.Event())  # two threads that ask at once get the same event

    def end(self) -> None:
        for thread in self.threads:
            thread.join(PATIENT_SECONDS)
            assert not thread.is_alive()


class Caller(threading.Thread):
    """One call in a separate thread, and its result or error."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self.call = call
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self.call()
        except BaseException as error:
            self.error = error
