"""The cases of the table, in its order; each module measures what belongs together."""

from bench.cases import by_id, commits, growth, latency, memory, opening, outstanding, processes, threads
from bench.cases.base import Case

CASES: tuple[Case, ...] = (
    *commits.CASES, *threads.CASES, *outstanding.CASES, *processes.CASES, *latency.CASES, *opening.CASES,
    *memory.CASES, *by_id.CASES, *growth.CASES,
)  # fmt: skip
