"""Producing and consuming processes on one queue, one message per commit: 1, 4 or 16 of each kind, or 8 producers.

In another case the 8 producers commit in two phases. There each commit adopts the posted branches of all processes. If
each process committed only its own branches, eight processes would make about half as many commits per second, and four
processes about 0.8 times as many.
"""

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection
from operator import methodcaller
from typing import Any

from bench.cases.base import Case, Result, compare, drain
from bench.figures import Figure, in_turns, ratio
from bench.peers.base import Line, Peer
from bench.setting import Bench
from bench.table import Chart, Outcome, Row, Verdict

_PAIR = Row("pair", "1 producing + 1 consuming process, 1 a commit", "≥ 0.9 × SQLite")
_FOUR = Row("processes", "4 producing + 4 consuming processes, 1 a commit", "≥ 1.0 × PostgreSQL SKIP LOCKED")
_FOUR_SQLITE = Row("processes-sqlite", _FOUR.case, "≥ 1.7 × SQLite")
_MANY = Row(
    "many", "16 producing + 16 consuming processes, 1 a commit", "≥ 0.8 × 4 + 4; slowest process ≥ 0.3 × the mean"
)
_PUTTERS = Row("putters", "8 processes that only put, 1 a commit", "≥ 1.2 × PostgreSQL")
_TWO_PHASES = Row("two-phase-processes", "two-phase commit of one put, 8 processes", "≥ 1.0 × PostgreSQL's")

Put = Callable[[Line], None]
_PUT: Put = methodcaller("put", 1)
_PUT_IN_TWO_PHASES: Put = methodcaller("put_in_two_phases")


def _in_turns(teams: "dict[str, Team]", bench: Bench) -> dict[str, list[float]]:
    """Return the messages per second of each team, in one interleaved run."""
    try:
        steps = {name: partial(team.slice, bench.sizes.process_messages) for name, team in teams.items()}
        in_turns(steps, 2)
        rates = in_turns(steps, bench.sizes.slices)
        for team in teams.values():
            team.check()
        return rates
    finally:
        for team in teams.values():
            team.end()


def _measure_putters(row: Row, put: Put, least: float, bench: Bench) -> Iterator[Result]:
    peers = {name: peer for name, peer in bench.peers.items() if (peer.concurrent if put is _PUT else peer.two_phase)}
    teams = {name: Team(peer, row.key, 8, 0, put) for name, peer in peers.items()}
    rates = _in_turns(teams, bench)
    figures = {name: Figure(name, found, "messages/s", bench.peers[name].durable) for name, found in rates.items()}
    ours = figures.pop("xaspool", None)
    if ours:
        yield compare(row, ours, list(figures.values()), "PostgreSQL", least, _busy(teams["xaspool"]))


def _measure_many(bench: Bench) -> Iterator[Result]:
    ours = bench.peers.get("xaspool")
    if ours is None:
        return
    teams = {f"{count} + {count}": Team(ours, f"many-{count}", count) for count in (4, 16)}
    few, many = (Figure(name, found, "messages/s", ours.durable) for name, found in _in_turns(teams, bench).items())
    reached, share = ratio(many, few), statistics.median(teams["16 + 16"].shares)
    text = f"{reached:.2f} × 4 + 4; slowest process {share:.2f} × the mean"
    verdict = Verdict.of(reached >= 0.8 and share >= 0.3)
    yield Outcome(_MANY, text, verdict, many, [few], _busy(teams["16 + 16"]), against=few)


def _busy(team: "Team") -> str:
    return f"{1000 * statistics.median(team.busy):.2f} ms of processor a message"


def _measure(targets: Sequence[tuple[Row, str, float]], of_each: int, bench: Bench) -> Iterator[Result]:
    """``targets``: rows, each with a contender and the least ratio."""
    key = targets[0][0].key
    teams = {name: Team(peer, key, of_each) for name, peer in bench.peers.items() if peer.concurrent}
    rates = _in_turns(teams, bench)
    figures = {name: Figure(name, found, "messages/s", bench.peers[name].durable) for name, found in rates.items()}
    words = f"through {of_each} + {of_each} processes, 1 a commit: messages a second"
    yield Chart(key, words, list(figures.values()))
    ours = figures.pop("xaspool", None)
    if ours:
        for row, against, least in targets:
            yield compare(row, ours, list(figures.values()), against, least, _busy(teams["xaspool"]))


class Team:
    """The processes of one contender. Between the contender's slices, they wait and use no processor time."""

    def __init__(self, peer: Peer, queue: str, producers: int, consumers: int | None = None, put: Put = _PUT) -> None:
        """``consumers``: None means the same number as producers."""
        spawn = multiprocessing.get_context("spawn")
        self.peer, self.queue, self.producers = peer, queue, producers
        consumers = producers if consumers is None else consumers
        self.left = 0  # the number of messages that no process takes
        self._takes = consumers > 0
        self.busy: list[float] = []  # for each slice, the processor seconds per message, of all processes
        self.shares: list[float] = []  # for each slice, the slowest process's share of the mean speed
        peer.line(queue).close()
        self.ends: list[Connection] = []
        self.members: list[Any] = []
        for place in range(producers + consumers):
            here, there = spawn.Pipe()
            member = spawn.Process(
                target=_work, args=(peer, queue, put if place < producers else None, there), daemon=True
            )
            member.start()
            there.close()
            self.ends.append(here)
            self.members.append(member)
        for end in self.ends:
            end.recv()

    def slice(self, messages: int) -> float:
        """Return the messages per second from the start to the last take. Each process puts or takes ``messages``."""
        begun = time.monotonic()
        for end in self.ends:
            end.send(messages)
        told: list[tuple[float, float]] = [end.recv() for end in self.ends]
        count, seconds = self.producers * messages, [ended - begun for ended, _ in told]
        self.left += 0 if self._takes else count
        self.busy.append(sum(busy for _, busy in told) / count)
        self.shares.append(statistics.harmonic_mean(seconds) / max(seconds))
        return count / max(seconds)

    def check(self) -> None:
        """Check the queue. RuntimeError unless exactly ``left`` messages remain."""
        line = self.peer.line(self.queue)
        drain(line, self.left)
        line.close()

    def end(self) -> None:
        for end in self.ends:
            end.send(0)
        for member in self.members:
            member.join()


def _work(peer: Peer, queue: str, put: Put | None, orders: Connection) -> None:
    """``put``: None for a process that consumes."""
    line = peer.line(queue)
    orders.send("ready")
    while messages := orders.recv():
        before = time.process_time()
        for _ in range(messages):
            if put is not None:
                put(line)
            else:
                line.get_waiting()
        orders.send((time.monotonic(), time.process_time() - before))  # all processes of a machine have the same clock
    line.close()


CASES = (
    Case(_PAIR.key, (_PAIR,), partial(_measure, [(_PAIR, "SQLite", 0.9)], 1)),
    Case(
        _FOUR.key,
        (_FOUR, _FOUR_SQLITE),
        partial(_measure, [(_FOUR, "PostgreSQL", 1.0), (_FOUR_SQLITE, "SQLite", 1.7)], 4),
    ),
    Case(_MANY.key, (_MANY,), _measure_many),
    Case(_PUTTERS.key, (_PUTTERS,), partial(_measure_putters, _PUTTERS, _PUT, 1.2)),
    Case(_TWO_PHASES.key, (_TWO_PHASES,), partial(_measure_putters, _TWO_PHASES, _PUT_IN_TWO_PHASES, 1.0)),
)
