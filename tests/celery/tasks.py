"""The application whose tasks the workers of these tests run. ``$XASPOOL_TEST_SPACE`` is the space."""

import os
import time
from typing import Any

from celery import Celery

import spool

SPACE = "XASPOOL_TEST_SPACE"


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

    @app.task(shared=False, name="fail")
    def fail() -> None:
        raise ValueError("this task fails")

    @app.task(shared=False, name="second_time", bind=True, max_retries=3)
    def second_time(self: Any, seconds: float) -> int:
        """Succeed in the third run."""
        if self.request.retries < 2:
            raise self.retry(countdown=seconds)
        return int(self.request.retries)

    return app


if SPACE in os.environ:
    app = application(os.environ[SPACE])
