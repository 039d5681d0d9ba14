"""After the kills: open the space, decide branches in doubt, read all messages, open the space again, and judge."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import spool
from spool.admin.findings import Finding
from spool.intake import Intake
from tests import door
from tests.shown import left_over
from tests.torture import history, worker
from tests.torture.checker import Left, check
from tests.torture.history import Log, Record


@dataclass
class Aftermath:
    """The state afterwards. ``findings``: damage at the first opening, and all findings at the second."""

    violations: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)
    messages: int = 0

    def assert_nothing_is_broken(self) -> None:
        assert self.violations == []
        assert self.findings == []
        assert self.leftovers == []


class Cut(NamedTuple):
    """A power cut: the moments just before and just after the cut, and the moment when no worker was alive any more."""

    begun: int
    done: int
    over: int


def look(
    root: str, logs: Path, rng: random.Random, *, empty: bool = True, cuts: Sequence[Cut] = (), until: int | None = None
) -> Aftermath:
    """Recover and judge a space that no live process has open.

    ``empty``: take the remaining messages out of the queues, instead of only reading them. ``cuts``: the power cuts,
    which may lose counts of attempts. ``until``: the moment of a cut, if the logs go on after it.
    """
    if until is not None:
        cuts = (Cut(until, until, until),)
    found = Aftermath()
    log = Log(str(logs / "end.log"), "end")
    with spool.open(root) as space:
        found.findings += space.recovery.damaged
        worker.resolve(door.core(space), log, records_of(logs, until), rng)
        Intake(space).run(once=True)
        left = list(_left(space, drained if empty else browsed))
        found.findings += space.check()
    with spool.open(root) as space:
        found.findings += [*space.recovery.findings, *space.check()]
    found.leftovers = left_over(root)
    found.messages = len(left)
    records = records_of(logs, until)
    found.violations = [*_too_late(records, cuts), *check(_promised(records, cuts), left, count_attempts=not cuts)]
    return found


def records_of(logs: Path, until: int | None = None) -> list[Record]:
    """The logs of all workers before ``until``, and the later decisions."""
    return [
        record
        for path in sorted(logs.glob("*.log"))
        for record in history.read(str(path))
        if until is None or record["at"] <= until or record["worker"] == "end"
    ]


_PROMISES = {"ack": "commit", "prepared": "prepare"}  # and the calls


def _late(record: Record, cuts: Sequence[Cut]) -> Cut | None:
    """Return the cut during or after which the record was written."""
    return next((cut for cut in cuts if cut.begun < record["at"] <= cut.over), None)


def _promised(records: list[Record], cuts: Sequence[Cut]) -> list[Record]:
    """Return the records without the acknowledgements during a cut, and without the numbers that a cut may have taken
    back. A flush under way may return successfully during a simulated cut (seen on ext4 and xfs), which a machine
    without power could not report."""
    if not cuts:
        return records
    said = [record for record in records if record["event"] in _PROMISES and record["worker"] != "end"]
    late = {(record["tx"], record["event"]) for record in said if _late(record, cuts)}
    late |= {(tx, "prepare") for tx, event in late if event == "prepared"}
    kept = {record["tx"] for record in said if record["event"] == "ack"} - {tx for tx, event in late if event == "ack"}
    return [
        record if record["event"] != "number" or record["tx"] in kept else {**record, "number": None}
        for record in records
        if record["worker"] == "end"
        or not ((record["tx"], record["event"]) in late or (record["event"] == "saw" and _late(record, cuts)))
    ]


def _too_late(records: list[Record], cuts: Sequence[Cut]) -> Iterator[str]:
    """Calls that began after the cut must fail."""
    asked = {(record["tx"], record["event"]): record["at"] for record in records if record["worker"] != "end"}
    for record in records:
        cut = _late(record, cuts)
        wanted = _PROMISES.get(record["event"])
        if cut is not None and wanted is not None and asked[record["tx"], wanted] > cut.done:
            yield f"{record['tx']} asked for {wanted} after the cut, and was told {record['event']}"


def _left(space: spool.Space, take: Callable[[spool.Space, str], Iterable[spool.Message]]) -> Iterator[Left]:
    for queue in worker.QUEUES:
        for key, position, attempts in worker.described(take(space, queue)):
            yield queue, key, position, attempts


def drained(space: spool.Space, queue: str) -> Iterator[spool.Message]:
    """Take and return all messages that are left in a queue."""
    while True:
        try:
            yield from space.get_many(queue, 1000)
        except spool.Empty:
            return


def browsed(space: spool.Space, queue: str) -> Iterable[spool.Message]:
    return space.browse(queue)
