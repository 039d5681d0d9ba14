"""Producing and consuming processes on one queue, one message a commit: one of each, and four of each."""

import multiprocessing
import statistics
import time
from collections.abc import Iterator
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from bench.cases.base import Case, Result, compare
from bench.figures import Figure, in_turns
from bench.peers.base import Peer
from bench.setting import Bench
from bench.table import Chart, Row

_PAIR = Row("pair", "1 producing + 1 consuming process, 1 a commit", "≥ 1.0 × PostgreSQL SKIP LOCKED")
_FOUR = Row("processes", "4 producing + 4 consuming processes, 1 a commit", "≥ 1.0 × PostgreSQL SKIP LOCKED")


def _measure(row: Row, of_each: int, bench: Bench) -> Iterator[Result]:
    teams = {name: Team(peer, row.key, of_each) for name, peer in bench.peers.items() if peer.concurrent}
    try:
        steps = {name: partial(team.slice, bench.sizes.process_messages) for name, team in teams.items()}
        in_turns(steps, 2)
        rates = in_turns(steps, bench.sizes.slices)
        for team in teams.values():
            team.check()
    finally:
        for team in teams.values():
            team.end()
    figures = {name: Figure(name, found, "messages/s", bench.peers[name].durable) for name, found in rates.items()}
    words = f"through {of_each} + {of_each} processes, 1 a commit: messages a second"
    yield Chart(row.key, words, list(figures.values()))
    ours = figures.pop("xaspool", None)
    if ours:
        note = f"{1000 * statistics.median(teams['xaspool'].busy):.2f} ms of processor a message"
        yield compare(row, ours, list(figures.values()), "PostgreSQL", 1.0, note)


class Team:
    """The processes of one contender: between its slices they wait, and cost nothing."""

    def __init__(self, peer: Peer, queue: str, of_each: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.of_each, self.peer, self.queue = of_each, peer, queue
        self.busy: list[float] = []  # by slice, the processor's seconds that a message took of all its processes
        peer.line(queue).close()
        self.ends: list[Connection] = []
        self.members: list[Any] = []
        for place in range(2 * of_each):
            here, there = spawn.Pipe()
            member = spawn.Process(target=_work, args=(peer, queue, place < of_each, there), daemon=True)
            member.start()
            there.close()
            self.ends.append(here)
            self.members.append(member)
        for end in self.ends:
            end.recv()

    def slice(self, messages: int) -> float:
        """Messages a second, from the word until the last is taken: each process puts, or takes, so many."""
        begun = time.monotonic()
        for end in self.ends:
            end.send(messages)
        told: list[tuple[float, float]] = [end.recv() for end in self.ends]
        self.busy.append(sum(busy for _, busy in told) / (self.of_each * messages))
        return self.of_each * messages / (max(ended for ended, _ in told) - begun)

    def check(self) -> None:
        """As many were taken as were put, so none is left: RuntimeError if one is, since then another came twice."""
        line = self.peer.line(self.queue)
        left = line.get(1)
        line.close()
        if left:
            raise RuntimeError(f"{self.peer.name}: a message is left, so another one came twice")

    def end(self) -> None:
        for end in self.ends:
            end.send(0)
        for member in self.members:
            member.join()


def _work(peer: Peer, queue: str, produces: bool, orders: Connection) -> None:
    line = peer.line(queue)
    orders.send("ready")
    while messages := orders.recv():
        before = time.process_time()
        for _ in range(messages):
            if produces:
                line.put(1)
            else:
                line.get_waiting()
        orders.send((time.monotonic(), time.process_time() - before))  # one clock for all processes of a machine
    line.close()


CASES = tuple(Case(row.key, (row,), partial(_measure, row, count)) for row, count in ((_PAIR, 1), (_FOUR, 4)))
