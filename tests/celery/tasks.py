"""The application whose tasks the workers of these tests run. ``$XASPOOL_TEST_SPACE`` is the space.

If ``$XASPOOL_TEST_LOG`` names a file, all programs note there what happens to tasks: a line for each event.
"""

import os
import signal
import time
from typing import Any, NoReturn

from celery import Celery, signals
from celery.exceptions import Reject

import celery_xaspool.attempts  # noqa: F401 - its receiver of a signal runs before the one below
import spool

SPACE = "XASPOOL_TEST_SPACE"
LOG = "XASPOOL_TEST_LOG"


def write_line(path: object, *words: object) -> None:
    """Append a line to a file. Lines of several processes do not mix."""
    handle = os.open(str(path), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(handle, (" ".join(map(str, words)) + "\n").encode())
    finally:
        os.close(handle)


class Unpicklable(Exception):
    def __init__(self, text: str, more: str = "") -> None:
        super().__init__(f"{text} {more}".strip())

    def __reduce__(self) -> NoReturn:
        raise TypeError("a lock cannot be pickled")


def application(path: object, **settings: Any) -> Celery:
    """Return an application with the tasks below, whose broker and results are the space at ``path``."""
    url = f"xaspool://{path}"
    app = Celery("tests.celery.tasks", broker=url, backend=url, set_as_current=False)
    app.conf.update(
        {"task_acks_late": True, "worker_hijack_root_logger": False, "broker_connection_retry_on_startup": True}
    )
    app.conf.update(settings)

    @app.task(shared=False, name="add")
    def add(x: int, y: int) -> int:
        return x + y

    @app.task(shared=False, name="total")
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    @app.task(shared=False, name="count")
    def count(values: list[Any]) -> int:
        return len(values)

    @app.task(shared=False, name="note")
    def note(text: str, seconds: float = 0.0) -> None:
        """Put a message into "notes", after some seconds."""
        time.sleep(seconds)
        spool.shared(path).put("notes", text)

    @app.task(shared=False, name="wait_for_word")
    def wait_for_word(word: str) -> str:
        """Note the word, and wait for the message that lets this task end."""
        space = spool.shared(path)
        space.put("notes", word)
        space.get("words", correlation_id=word, timeout=60)
        return word

    @app.task(shared=False, name="wait_for_file", ignore_result=True)
    def wait_for_file(path: str) -> None:
        """Wait until another program creates a file."""
        while not os.path.exists(path):
            time.sleep(0.02)

    @app.task(shared=False, name="process")
    def process() -> int:
        return os.getpid()

    @app.task(shared=False, name="fail")
    def fail() -> None:
        raise ValueError("this task fails")

    @app.task(shared=False, name="refuse")
    def refuse() -> None:
        raise Reject("no tea left")

    @app.task(shared=False, name="refuse_for_error")
    def refuse_for_error() -> None:
        try:
            raise ValueError("no tea left")
        except ValueError as error:
            raise Reject(error) from error

    @app.task(shared=False, name="fail_unacknowledged", acks_on_failure=False)
    def fail_unacknowledged() -> None:
        raise Unpicklable("several", "words")

    @app.task(shared=False, name="late", acks_on_timeout=False, time_limit=1)
    def late() -> None:
        time.sleep(600)

    @app.task(shared=False, name="die", reject_on_worker_lost=True)
    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    @app.task(shared=False, name="kill_worker")
    def kill_worker() -> None:
        os.kill(os.getppid(), signal.SIGKILL)

    @app.task(shared=False, name="second_time", bind=True, max_retries=3)
    def second_time(self: Any, seconds: float) -> int:
        """Succeed in the third run."""
        if self.request.retries < 2:
            raise self.retry(countdown=seconds)
        return int(self.request.retries)

    for name, late in (("logged", True), ("logged_early", False)):

        @app.task(
            shared=False, name=name, bind=True, ignore_result=True, acks_late=late, reject_on_worker_lost=True,
        )  # fmt: skip
        def logged(self: Any, seconds: float = 0.0) -> None:
            """Log the beginning and the end, with this process and the worker."""
            run = self.request.id, os.getpid(), os.getppid()
            write_line(os.environ[LOG], "begin", *run, int(self.request.delivery_info["redelivered"]))
            time.sleep(seconds)
            write_line(os.environ[LOG], "end", *run)

    @app.task(shared=False, name="logged_total", bind=True)
    def logged_total(self: Any, numbers: list[int]) -> None:
        write_line(os.environ[LOG], "total", self.request.id, sum(numbers))

    @app.task(shared=False, name="logged_loss", ignore_result=True)
    def logged_loss(body: str) -> None:
        """Log that a chord has failed."""
        write_line(os.environ[LOG], "lost", body)

    return app


def _log_publishing(step: str) -> Any:
    def log(headers: Any, sender: str, **_: Any) -> None:
        write_line(os.environ[LOG], step, headers["id"], sender)

    return log


def _log_acceptance(request: Any, **_: Any) -> None:
    """Log which process accepts the task, before the worker records the attempt: a kill can come between the two."""
    record, id = request.on_accepted, request.id

    def on_accepted(pid: int, time_accepted: float) -> Any:
        write_line(os.environ[LOG], "accepted", id, pid)
        return record(pid, time_accepted)

    request.on_accepted = on_accepted


LOGGING: dict[str, Any] = {
    "beat_schedule": {"tick": {"task": "logged", "schedule": 0.1, "args": (0.003,)}},
    "task_reject_on_worker_lost": True,
    "result_expires": 1,  # shorter than most chords last
}

if LOG in os.environ:
    signals.before_task_publish.connect(_log_publishing("publishing"), weak=False)
    signals.after_task_publish.connect(_log_publishing("published"), weak=False)
    signals.task_received.connect(_log_acceptance, weak=False)

if SPACE in os.environ:
    app = application(os.environ[SPACE], **(LOGGING if LOG in os.environ else {}))
