"""Take a message and write a row in one transaction, compared with the same work in PostgreSQL alone.

For PostgreSQL alone, the queue is a table (``bench.peers.postgresql``), so one commit covers message and row. In the
case with two phases, PostgreSQL alone prepares its only transaction by ``PREPARE TRANSACTION``, and then commits it.
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import count
from typing import Any

import spool
import xa
from bench.cases.base import Case, Result, compare
from bench.figures import Figure, in_turns
from bench.peers.base import BODY
from bench.peers.postgresql import PostgreSQLLine
from bench.setting import Bench
from bench.table import Row, unmeasured

_THREADS = 8
_PEER = "PostgreSQL"
_ONE = Row("database", "take a message and write a row, one thread", "≥ 0.5 × PostgreSQL alone")
_EIGHT = Row("database-threads", f"take a message and write a row, {_THREADS} threads", "≥ 0.8 × PostgreSQL alone")
_TWO_PHASES = Row(
    "database-two-phase", "take a message and write a row, PREPARE TRANSACTION", "≥ 0.7 × PostgreSQL's own"
)

Work = Callable[[int], None]


class _Alone:
    """PostgreSQL alone: one connection for each thread."""

    def __init__(self, lines: list[PostgreSQLLine], two_phase: bool) -> None:
        self._lines = lines
        self._two_phase = two_phase
        self._names = count()
        self._run = time.time_ns()

    def fill(self, messages: int) -> None:
        self._lines[0].put(messages)

    def work(self, thread: int) -> None:
        line = self._lines[thread]
        if not self._two_phase:
            with line.db.transaction():
                self._move(line)
            return
        name = f"'bench-{self._run}-{next(self._names)}'"
        line.db.execute("begin")
        self._move(line)
        line.db.execute(f"prepare transaction {name}", prepare=False)  # each statement is different
        line.db.execute(f"commit prepared {name}", prepare=False)

    def _move(self, line: PostgreSQLLine) -> None:
        [(_, body)] = line.db.execute(line.sql_get, (1,), binary=True).fetchall()
        line.db.execute("insert into bench_rows values (%s)", (body,))


class _Together:
    """A space and PostgreSQL under one transaction manager: one connection for each thread."""

    def __init__(
        self, space: spool.Space, manager: "xa.TransactionManager", databases: list[Any], two_phase: bool
    ) -> None:
        self._space = space
        self._manager = manager
        self._databases = databases
        self._two_phase = two_phase

    def fill(self, messages: int) -> None:
        self._space.put_many("orders", [BODY] * messages)

    def work(self, thread: int) -> None:
        database = self._databases[thread]
        with self._manager.transaction() as transaction:
            transaction.enlist(self._space)
            transaction.enlist(database, two_phase=self._two_phase)
            database.execute("insert into bench_rows values (%s)", (self._space.get("orders").body,))


def _measure(row: Row, threads: int, two_phase: bool, least: float, bench: Bench) -> Iterator[Result]:
    peer = bench.peers.get(_PEER)
    if peer is None:
        yield unmeasured(row, f"{_PEER} is not here")
        return
    with bench.scratch("database") as directory, ExitStack() as stack:
        lines = [peer.line("bench_queue") for _ in range(2 * threads)]
        for line in lines:
            stack.callback(line.close)
        first = lines[0].db  # type: ignore[attr-defined]
        first.execute("create table if not exists bench_rows (body bytea)")
        databases = [line.db for line in lines[threads:]]  # type: ignore[attr-defined]
        manager = stack.enter_context(xa.TransactionManager(f"{directory}/decisions"))
        space = stack.enter_context(spool.create(f"{directory}/space"))
        space.create_queue("orders")
        manager.prepare_database(first)
        contenders: dict[str, _Alone | _Together] = {
            _PEER: _Alone(lines[:threads], two_phase),  # type: ignore[arg-type]
            "xaspool": _Together(space, manager, databases, two_phase),
        }
        commits = bench.sizes.thread_commits
        pool = stack.enter_context(ThreadPoolExecutor(threads))
        steps = {name: partial(_slice, pool, one, threads, commits) for name, one in contenders.items()}
        in_turns(steps, 1)
        rates = in_turns(steps, bench.sizes.slices)
        first.execute("drop table bench_rows")
    figures = {name: Figure(name, found, "transactions/s", True) for name, found in rates.items()}
    yield compare(row, figures["xaspool"], [figures[_PEER]], _PEER, least)


def _slice(pool: ThreadPoolExecutor, one: _Alone | _Together, threads: int, commits: int) -> float:
    """Return the transactions per second of one slice."""
    one.fill(threads * commits)
    together = threading.Barrier(threads + 1)

    def run(thread: int) -> None:
        together.wait()
        for _ in range(commits):
            one.work(thread)

    callers = [pool.submit(run, thread) for thread in range(threads)]
    together.wait()
    begun = time.perf_counter()
    for caller in callers:
        caller.result()
    return threads * commits / (time.perf_counter() - begun)


CASES = (
    Case("database", (_ONE,), partial(_measure, _ONE, 1, False, 0.5)),
    Case("database-threads", (_EIGHT,), partial(_measure, _EIGHT, _THREADS, False, 0.8)),
    Case("database-two-phase", (_TWO_PHASES,), partial(_measure, _TWO_PHASES, 1, True, 0.7)),
)
