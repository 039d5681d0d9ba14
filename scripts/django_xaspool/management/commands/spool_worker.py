"""``manage.py spool_worker``: run the tasks of a backend, with one worker of xaspool for each queue."""

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import close_old_connections, connections

import spool
from django_xaspool.backend import XaspoolBackend
from django_xaspool.outbox import Outbox
from django_xaspool.tasks import base, task_backends

_POLL_SECONDS = 0.2  # the longest time until the main thread, which runs the signal handlers, acts on a signal
_OUTBOX_SECONDS = 5.0  # between two searches for tasks that dead processes have left in the outbox


class Command(BaseCommand):
    help = (
        "Runs the tasks of a django_xaspool backend. After the first SIGTERM or Ctrl-C, the program ends when the "
        "running tasks have ended; the second signal ends it at once, and other workers run these tasks again."
    )

    _code = 0  # as of spool-worker: 4 a message was damaged, 6 a task failed for good, 5 tasks are left

    def run_from_argv(self, argv: list[str]) -> None:
        super().run_from_argv(argv)
        if self._code:
            sys.exit(self._code)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--backend", default=base.DEFAULT_TASK_BACKEND_ALIAS, help="the alias in TASKS")
        parser.add_argument("--queue", action="append", help="a queue; may be repeated (default: all of the backend)")
        parser.add_argument("--threads", type=int, default=1, help="how many tasks of each queue run side by side")
        parser.add_argument("--once", action="store_true", help="run each task that can run now once, then end")
        parser.add_argument("--timeout", type=float, help="how many seconds a task may take (default: no limit)")

    def handle(self, *, backend: str, queue: list[str] | None, **options: Any) -> None:
        found = task_backends[backend]
        if not isinstance(found, XaspoolBackend):
            raise CommandError(f"TASKS[{backend!r}] has another backend: set django_xaspool.XaspoolBackend")
        if found.outbox is not None and connections[found.outbox.database].in_atomic_block:
            raise CommandError(
                "the worker has separate connections, which do not see the rows of this atomic block: in a TestCase, "
                "call django_xaspool.testing.run_tasks()"
            )
        names = sorted(set(queue or found.queues))
        if not names or (found.queues and not found.queues.issuperset(names)):
            known = f"one of {', '.join(sorted(found.queues))}" if found.queues else "at least one"
            raise CommandError(f"name the queues of this worker with --queue, {known}")
        chosen = {name: options[name] for name in ("threads", "once", "timeout")}
        self._signals: list[int] = []
        try:
            space = found.space_with(*names)
            workers = [spool.Worker(space, name, found.run, **chosen) for name in names]
            with _moving(found.outbox, once=options["once"]):
                self._run(workers)
            if options["once"]:
                self._code = _exit_code([worker.summary for worker in workers])
        except spool.SpoolError as error:
            raise CommandError(str(error)) from error

    def _run(self, workers: list[spool.Worker]) -> None:
        with ExitStack() as at_end, ThreadPoolExecutor(len(workers)) as threads:
            for number in (signal.SIGTERM, signal.SIGINT):
                at_end.callback(signal.signal, number, signal.signal(number, self._note_signal))
            self._tell(f"running the tasks of {', '.join(worker.queue for worker in workers)}")
            ends = [threads.submit(worker.run) for worker in workers]
            while wait(ends, _POLL_SECONDS).not_done:
                if self._signals or any(end.done() and end.exception() for end in ends):
                    for worker in workers:
                        worker.stop()
                if self._signals:
                    self._signals.clear()
                    self._tell("waiting for the running tasks; a second signal ends them")
        for worker in workers:
            done = worker.summary
            failed = done.rejected + done.dead_lettered + done.dropped
            self._tell(f"{worker.queue}: {done.delivered} succeeded, {failed} failed, {done.retried} to repeat")
        for end in ends:
            end.result()

    def _note_signal(self, number: int, frame: Any) -> None:
        self._signals.append(number)
        signal.signal(number, signal.SIG_DFL)

    def _tell(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()


def _exit_code(summaries: Sequence[spool.WorkSummary]) -> int:
    if any(done.quarantined for done in summaries):
        return 4
    if any(done.rejected + done.dead_lettered + done.dropped for done in summaries):
        return 6
    return 5 if any(done.left for done in summaries) else 0


@contextmanager
def _moving(outbox: Outbox | None, *, once: bool) -> Iterator[None]:
    """Move the rows of the outbox: before the block if ``once``, otherwise in a thread until the end of the block."""
    if outbox is None:
        yield
        return
    if once:
        outbox.move_all()
        yield
        return
    stopped = threading.Event()

    def move() -> None:
        while True:
            outbox.move_all()
            close_old_connections()
            if stopped.wait(_OUTBOX_SECONDS):
                return

    mover = threading.Thread(target=move, name="xaspool outbox")
    mover.start()
    try:
        yield
    finally:
        stopped.set()
        mover.join()
