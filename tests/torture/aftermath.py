"""After the deaths: open the space, decide what is in doubt, look at everything, open it again, and judge."""

import os
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import spool
from recovery.report import Finding
from spool.intake import Intake
from tests.torture import history, worker
from tests.torture.checker import Left, check
from tests.torture.history import Log, Record


@dataclass
class Aftermath:
    """What was found. ``findings``: damage when the space was first opened, and everything when it was opened again."""

    violations: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)
    messages: int = 0

    def assert_nothing_is_broken(self) -> None:
        assert self.violations == []
        assert self.findings == []
        assert self.leftovers == []


def look(
    root: str,
    logs: Path,
    rng: random.Random,
    *,
    empty: bool = True,
    power_was_cut: bool = False,
    until: int | None = None,
) -> Aftermath:
    """Recover and judge a space in which nobody is alive.

    ``empty``: take what is left out of the queues, else only look at it. ``power_was_cut``: counts of tries may be
    lost. ``until``: the moment of the death, if the logs go on behind it.
    """
    found = Aftermath()
    log = Log(str(logs / "end.log"), "end")
    with spool.open(root) as space:
        found.findings += space.recovery.damaged
        worker.resolve(space._store, log, records_of(logs, until), rng)
        Intake(space).run(once=True)
        left = list(_left(space, drained if empty else browsed))
        found.findings += space.check()
    with spool.open(root) as space:
        found.findings += [*space.recovery.findings, *space.check()]
    found.leftovers = [
        f"{folder}/{name}" for folder in ("active", "prepared") for name in os.listdir(f"{root}/{folder}")
    ]
    found.messages = len(left)
    found.violations = check(records_of(logs, until), left, count_tries=not power_was_cut)
    return found


def records_of(logs: Path, until: int | None = None) -> list[Record]:
    """What all workers wrote down before ``until``, and what was decided afterwards."""
    return [
        record
        for path in sorted(logs.glob("*.log"))
        for record in history.read(str(path))
        if until is None or record["at"] <= until or record["worker"] == "end"
    ]


def _left(space: spool.Space, take: Callable[[spool.Space, str], Iterable[spool.Message]]) -> Iterator[Left]:
    for queue in worker.QUEUES:
        for key, position, attempts in worker.described(take(space, queue)):
            yield queue, key, position, attempts


def drained(space: spool.Space, queue: str) -> Iterator[spool.Message]:
    """Everything that is left in a queue, taken."""
    while True:
        try:
            yield from space.get_many(queue, 1000)
        except spool.Empty:
            return


def browsed(space: spool.Space, queue: str) -> Iterable[spool.Message]:
    return space.browse(queue)
