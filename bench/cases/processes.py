"""Four producing and four consuming processes on one queue, one message a commit."""

import multiprocessing
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

_OF_EACH = 4
_ROW = Row("processes", "4 producing + 4 consuming processes, 1 a commit", "≥ 1.5 × PostgreSQL SKIP LOCKED")


def _measure(bench: Bench) -> Iterator[Result]:
    teams = {name: _Team(peer) for name, peer in bench.peers.items() if peer.concurrent}
    try:
        steps = {name: partial(team.slice, bench.sizes.process_messages) for name, team in teams.items()}
        in_turns(steps, 2)
        rates = in_turns(steps, bench.sizes.slices)
    finally:
        for team in teams.values():
            team.end()
    figures = {name: Figure(name, found, "messages/s", bench.peers[name].durable) for name, found in rates.items()}
    yield Chart("processes", "through 4 + 4 processes, 1 a commit: messages a second", list(figures.values()))
    ours = figures.pop("xaspool", None)
    if ours:
        yield compare(_ROW, ours, list(figures.values()), "PostgreSQL", 1.5)


class _Team:
    """The processes of one contender: between its slices they wait, and cost nothing."""

    def __init__(self, peer: Peer) -> None:
        spawn = multiprocessing.get_context("spawn")
        peer.line("processes").close()
        self.ends: list[Connection] = []
        self.members: list[Any] = []
        for place in range(2 * _OF_EACH):
            here, there = spawn.Pipe()
            member = spawn.Process(target=_work, args=(peer, place < _OF_EACH, there), daemon=True)
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
        ended: float = max(end.recv() for end in self.ends)
        return _OF_EACH * messages / (ended - begun)

    def end(self) -> None:
        for end in self.ends:
            end.send(0)
        for member in self.members:
            member.join()


def _work(peer: Peer, produces: bool, orders: Connection) -> None:
    line = peer.line("processes")
    orders.send("ready")
    while messages := orders.recv():
        for _ in range(messages):
            if produces:
                line.put(1)
            else:
                line.get_waiting()
        orders.send(time.monotonic())  # one clock for all processes of a machine
    line.close()


CASES = (Case("processes", (_ROW,), _measure),)
