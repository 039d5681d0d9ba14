"""The page about tasks: what waits, what runs, what failed and why, and who works."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from spool.model.settings import WORK
from spool.watch.body_text import LIST_PREVIEW, piece
from spool.watch.tasks import Task, process_of, task_of
from xaspool_console.console import Console, page_routes
from xaspool_console.paging import page_of
from xaspool_console.troubles import queue_link

if TYPE_CHECKING:
    from spool import QueueEntry, Space, SpaceMetrics
    from spool.watch.failures import TaskFailures

_MOST_COUNTED = 10_000  # entries of the index of each queue
_MOST_QUEUES = 200  # queues whose waiting tasks are counted by name
_MOST_HELD = 100
_MOST_PIECE = 200
_MOST_ROWS = 500


@dataclass(frozen=True)
class WaitingRow:
    """The waiting messages of a queue with one name of a task. age: of the oldest, in seconds. is_whole: whether all
    messages of the queue were counted."""

    queue: str
    link: str
    task: str
    ready: int
    delayed: int
    age: float | None
    is_whole: bool


@dataclass(frozen=True)
class HeldRow:
    """A message that a program holds. since: when its handling began, in seconds since the epoch."""

    id: str
    queue: str
    link: str
    task: Task | None
    state: str
    since: float | None
    arguments: str
    worker: str


def routes(console: Console) -> list[BaseRoute]:
    return page_routes(console, {"/tasks": tasks_page})


def tasks_page(console: Console, request: Request) -> Response:
    snapshot = console.samples.snapshot()
    metrics, serving = snapshot.metrics, snapshot.consumers
    workers = [each for queue, found in serving.items() if metrics.roles.get(queue) == WORK for each in found]
    held = [] if console.space is None else _held(console.space, metrics)
    claimed = sum(stats.claimed + stats.in_doubt for name, stats in metrics.queues.items() if _is_work(metrics, name))
    return console.page(
        request, "tasks.html", metrics=metrics, waiting=page_of(request, _waiting(console.space, metrics)), held=held,
        others=max(0, claimed - len(held)), failures=metrics.failures[:_MOST_ROWS], failed=metrics.failed,
        workers=workers[:_MOST_ROWS], idle=sum(not each.is_busy for each in workers), queue_link=queue_link,
        failure_link=failure_link, unserved=_unserved(metrics, serving),
    )  # fmt: skip


def failure_link(failures: "TaskFailures") -> str:
    """Return the address of the list of these failed messages; "" if the list would not have exactly them."""
    if not failures.kept_in:
        return ""
    search = {"reason": failures.kind} if failures.kind and failures.queue != failures.kept_in else {}
    if failures.task:
        search["header"] = f"task={failures.task}"
    return f"{queue_link(failures.kept_in)}?{urlencode(search)}#messages"


def _is_work(metrics: "SpaceMetrics", queue: str) -> bool:
    return metrics.roles.get(queue) == WORK


def _waiting(space: "Space | None", metrics: "SpaceMetrics") -> list[WaitingRow]:
    rows = []
    for number, (name, stats) in enumerate(sorted(metrics.queues.items())):
        if not _is_work(metrics, name) or not stats.ready + stats.delayed:
            continue
        if space is None or number >= _MOST_QUEUES:
            rows.append(WaitingRow(name, queue_link(name), "", stats.ready, stats.delayed, stats.oldest_age, True))
            continue
        found, is_whole = space.engine.waiting_tasks(name, _MOST_COUNTED)
        for task, each in sorted(found.items()):
            age = None if each.oldest is None else max(0.0, metrics.at - each.oldest)
            rows.append(WaitingRow(name, queue_link(name), task, each.ready, each.delayed, age, is_whole))
    return rows


def _held(space: "Space", metrics: "SpaceMetrics") -> list[HeldRow]:
    entries = space.engine.held_messages(_MOST_HELD, LIST_PREVIEW)
    return [_held_row(each, metrics.at) for each in entries if each.message and _is_work(metrics, each.message.queue)]


def _held_row(entry: "QueueEntry", now: float) -> HeldRow:
    message, holder, task = entry.message, entry.holder, task_of(entry, now)
    assert message is not None
    arguments = task.arguments if task is not None and task.arguments else piece(message, _MOST_PIECE)
    return HeldRow(
        message.id, message.queue, queue_link(message.queue), task, task.state if task else entry.state,
        None if holder is None else holder.since, arguments, "" if holder is None else process_of(holder),
    )  # fmt: skip


def _unserved(metrics: "SpaceMetrics", serving: Iterable[str]) -> list[str]:
    """Return the queues whose ready messages no process takes, as far as the meters tell."""
    served = set(serving)
    return [
        name for name, stats in sorted(metrics.queues.items())
        if stats.ready and _is_work(metrics, name) and name not in served
    ][:_MOST_ROWS]  # fmt: skip
