"""Rounds for tests: tasks that run in this process, and a service that answers as the test says."""

import dataclasses
import itertools
from collections.abc import Callable, Set
from types import SimpleNamespace
from typing import Any

import spool
from forwarder import Summary
from forwarder.result import RoundResult
from forwarder.round import CALLING_SECONDS, Job, Round, Route
from forwarder.services import Request, ServiceError
from forwarder.task import Chunk, TaskResult, deliver
from spool.model.position import Position
from spool.workers.outcome import Outcome, Replied

Answer = Callable[[Request], Outcome]
Run = Callable[[Route], Summary]

answers: dict[str, Answer] = {}

SPARK: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2, master="local[2]"))
"""The parts of a Spark session that a forwarder uses whose tasks run in this process."""


@dataclasses.dataclass(frozen=True)
class Scripted:
    """A service that answers as the test says."""

    name: str
    watched: float | None = None
    threads: int = 1

    def check(self) -> None:
        if self.name not in answers:
            raise ServiceError("no such answer")

    def open(self) -> "Scripted":
        return self

    def close(self) -> None:
        pass

    def __call__(self, request: Request) -> Outcome:
        return answers[self.name](request)


attempts = itertools.count()


def dies(chunks: list[Chunk]) -> list[TaskResult]:
    """Vote, and end before the commit."""
    in_process(chunks)
    raise KeyboardInterrupt


def in_process(chunks: list[Chunk]) -> list[TaskResult]:
    return [deliver(chunk, place, next(attempts)) for place, chunk in enumerate(chunks)]


def run_round(
    space: spool.Space, route: Route, job: Job, *, limit: int, tasks: int, timeout: float,
    calling: float = CALLING_SECONDS, passed: Set[Position] = frozenset(),
) -> RoundResult:  # fmt: skip
    with Round(space, route) as round_:
        if not round_.claim(limit, timeout=timeout, passed=passed):
            return RoundResult()
        round_.call(job, tasks=tasks, calling=calling)
        return round_.commit()


def forward(
    space: spool.Space, answer: Answer, *, queue: str = "work", on_failure: str = "reject", job=in_process,
    threads: int = 1,
) -> RoundResult:  # fmt: skip
    answers["it"] = answer
    route = Route(queue, Scripted("it", threads=threads), on_failure)
    return run_round(space, route, job, limit=1000, tasks=2, timeout=0)


def echo(request: Request) -> Outcome:
    return Replied(b"re: " + request.raw)
