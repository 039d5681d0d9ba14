"""The tasks. ``log`` is the path of a file into which a task writes a line."""

import os
import signal
import time
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from django.db import connection
from django.utils import timezone, translation

import spool
from django_xaspool.tasks import base

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task


def tell(log: str, line: object) -> None:
    with open(log, "a") as file:
        file.write(f"{line}\n")


@task
def add(a: int, b: int = 0) -> int:
    return a + b


@task(queue_name="mail", priority=7)
async def double(text: str) -> list[str]:
    return [text, text]


@task(takes_context=True)
def attempt(context: base.TaskContext) -> list[Any]:
    return [context.attempt, context.task_result.status, context.task_result.started_at is not None]


@task
def note(log: str, word: str) -> None:
    tell(log, word)


@task
def fail_unless(file: str) -> str:
    if not Path(file).exists():
        raise ValueError("no tea left")
    return "tea"


@task
def no_json() -> object:
    return {1, 2}


@task
def no_text() -> str:
    return "\ud800"


@task
def fail_without_text() -> None:
    raise ValueError("\ud800")


@task
def leave() -> None:
    raise SystemExit("early")


@task
def again() -> None:
    raise spool.Retry("later", delay=0)


@task
def fail_after_child(log: str) -> None:
    tell(log, note.enqueue(log, "child").id)
    raise ValueError("after the child")


@task
def hold(log: str) -> str:
    """Run until the file ``go`` beside the log exists."""
    tell(log, "held")
    while not Path(log).with_name("go").exists():
        time.sleep(0.01)
    return "gone on"


@task
def hold_once(log: str) -> str:
    return "in time" if Path(log).exists() else str(hold.func(log))


@task
def kill(log: str) -> None:
    tell(log, "killed")
    os.kill(os.getpid(), signal.SIGKILL)


@task
def cook(number: int) -> None:
    """Note in the database that an order's task ran. The row and the removal of the task are not one commit."""
    connection.cursor().execute("insert into cooked (number) values (%s)", [number])


variable: ContextVar[str] = ContextVar("variable", default="unset")


@task
def change_context() -> None:
    translation.activate("de")
    timezone.activate("Asia/Tokyo")
    variable.set("set")


@task
def context() -> list[str]:
    return [str(translation.get_language()), timezone.get_current_timezone_name(), variable.get()]


@task
def echo(*args: Any, **kwargs: Any) -> list[Any]:
    return [list(args), kwargs]
