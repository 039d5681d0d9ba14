"""The cases of the table, in the table's order. Each module measures related cases."""

from bench.cases import (
    by_id,
    calls,
    celery,
    commits,
    database,
    forward,
    growth,
    http,
    latency,
    memory,
    network,
    opening,
    outstanding,
    processes,
    spark,
    start,
    threads,
    two_phase,
    web,
    workers,
)
from bench.cases.base import Case
from bench.cases.journal import on_journal

_OF_ANY_DISK = (
    *commits.CASES, *two_phase.CASES, *database.CASES, *threads.CASES, *outstanding.CASES, *processes.CASES,
)  # fmt: skip
_NOT_ON_JOURNAL = ("1000", "asyncio")

CASES: tuple[Case, ...] = (
    *calls.CASES, *(on_journal(case) for case in _OF_ANY_DISK if case.key not in _NOT_ON_JOURNAL), *_OF_ANY_DISK,
    *latency.CASES, *start.CASES, *opening.CASES, *memory.CASES, *by_id.CASES, *growth.CASES,
    *spark.CASES, *forward.CASES, *web.CASES, *workers.CASES, *network.CASES, *http.CASES, *celery.CASES,
)  # fmt: skip
