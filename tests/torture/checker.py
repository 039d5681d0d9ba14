"""Compares the logs of all workers with the messages at the end, and names every broken promise.

Pure. A transaction without an acknowledgement may have happened or not; its traces tell. Only a plain get can die
without a trace, before it returns its message. The checker knows the positions that the get was locking, and only
messages at these positions may be missing.
"""

import enum
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from tests.torture.history import Record

Place = tuple[str, str]  # (queue, key); no two transactions put the same key
Position = tuple[int, int]
Left = tuple[str, str, Position, int]  # the messages at the end: (queue, key, position, attempts)


class Outcome(enum.Enum):
    """How a transaction ended."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    MAYBE = "maybe"


class Delivery(NamedTuple):
    """A delivered message; ``tx`` is None for a message that was left at the end."""

    place: Place
    position: Position
    attempts: int
    at: int
    tx: "Tx | None" = None


@dataclass(eq=False)
class Tx:
    """One transaction, as its records tell."""

    name: str
    worker: str
    began_at: int
    noted: bool = False
    ordered: bool = True
    joined: bool = False
    puts: list[Place] = field(default_factory=list)
    gots: list[Delivery] = field(default_factory=list)
    claimed: set[Position] = field(default_factory=set)
    trying: set[Position] = field(default_factory=set)
    number: int | None = None
    numbered: bool = False
    file: str | None = None  # in which it was committed, as it was named before
    ended_at: int | None = None
    last_at: int = 0  # of its last record
    events: set[str] = field(default_factory=set)
    last_decision: str = ""
    outcome: Outcome = Outcome.ROLLED_BACK

    @property
    def touched(self) -> set[Position]:
        """The positions that it had locked, or was locking when it died."""
        return self.claimed | self.trying

    def position_of(self, place: int) -> Position | None:
        """Return the position of the transaction's n-th put, if the commit number is known."""
        known = self.number is not None and self.ordered and not self.joined
        return (self.number, place) if known else None


def check(records: Iterable[Record], left: Iterable[Left], *, count_attempts: bool = True) -> list[str]:
    """Every broken promise, in words. ``count_attempts``: no power cut took counts of attempts, which are not
    flushed."""
    from tests.torture.sight import unseen

    history = History(records, left)
    broken = [*history.broken, *history.lost(), *history.doubled(), *history.unordered(), *unseen(history)]
    return [*broken, *history.untried()] if count_attempts else broken


class History:
    """All transactions and deliveries."""

    def __init__(self, records: Iterable[Record], left: Iterable[Left]) -> None:
        self.broken: list[str] = []
        self.transactions: dict[str, Tx] = {}
        self.looks: list[Record] = []
        self.seen: set[Place] = set()
        self.priorities: dict[Place, int] = {}
        self.touched_at: dict[Position, int] = {}
        for record in sorted(records, key=lambda record: record["at"]):
            self._read(record)
        self.left = [Delivery((queue, key), tuple(p), tries, END_OF_TIME) for queue, key, p, tries in left]
        self.deliveries: dict[Place, list[Delivery]] = defaultdict(list)
        for delivery in sorted([*self.gots(), *self.left], key=lambda delivery: delivery.at):
            self.deliveries[delivery.place].append(delivery)
        for tx in self.transactions.values():
            tx.outcome = self._outcome(tx)
        for tx in self.transactions.values():
            if tx.outcome is Outcome.MAYBE and (tx.puts or tx.gots):
                tx.outcome = self._by_its_traces(tx)

    # -- reading ----------------------------------------------------------------------------------------------------

    def _read(self, record: Record) -> None:
        event = record["event"]
        if event == "broken":
            self.broken.append(record["what"])
        elif event == "saw":
            self.looks.append(record)
            self.seen.update((record["queue"], key) for key in record["keys"])
        if not record["tx"]:
            return
        tx = self.transactions.setdefault(record["tx"], Tx(record["tx"], record["worker"], record["at"]))
        tx.events.add(event)
        tx.last_at = record["at"]
        tx.trying = set()
        if event == "begin":
            tx.noted, tx.ordered = record.get("noted", False), record.get("ordered", True)
        elif event == "put":
            places = [(record["queue"], key) for key in record["keys"]]
            tx.puts += places
            if "priority" in record:
                self.priorities.update(dict.fromkeys(places, record["priority"]))
        elif event == "got":
            for key, position, attempts in record["messages"]:
                tx.gots.append(Delivery((record["queue"], key), tuple(position), attempts, record["at"], tx))
        elif event == "try":
            tx.trying = set(_range(record))
            for position in tx.trying:
                self.touched_at.setdefault(position, record["at"])
        elif event == "claimed":
            tx.claimed.update(_range(record))
        elif event == "number":
            # First that the file may be committed, by a number that is not known yet, and then the file's number.
            if tx.last_decision == "commit":
                tx.file, tx.number, tx.numbered, tx.last_decision = (
                    record.get("file"),
                    record["number"],
                    True,
                    "numbered",
                )
            elif tx.last_decision == "numbered" and tx.number is None and tx.file == record.get("file"):
                tx.number = record["number"]
        elif event == "joined":
            tx.joined = True
        elif event in ("commit", "rollback"):
            tx.last_decision = event
        if event in ("ack", "rollback"):
            tx.ended_at = tx.ended_at or record["at"]  # a rollback that a power cut took back is done again

    def gots(self) -> Iterator[Delivery]:
        return (delivery for tx in self.transactions.values() for delivery in tx.gots)

    def _outcome(self, tx: Tx) -> Outcome:
        if "ack" in tx.events:
            return Outcome.COMMITTED
        if "rollback" in tx.events:
            return Outcome.ROLLED_BACK
        if "prepare" in tx.events and "commit" in tx.events:
            return Outcome.COMMITTED  # it voted, and no process may roll it back any more
        if "prepared" in tx.events:
            self.broken.append(f"{tx.name} voted yes and was forgotten: it never came up as in doubt")
        return Outcome.MAYBE if "commit" in tx.events else Outcome.ROLLED_BACK

    def _by_its_traces(self, tx: Tx) -> Outcome:
        """A commit that was not acknowledged happened if one of its puts was seen, not if one of its gets came back."""
        shown = [place for place in tx.puts if self.deliveries[place] or place in self.seen]
        back = [got.place for got in tx.gots if any(d.at > got.at for d in self.deliveries[got.place])]
        # The message may have returned, been locked by a later plain get, and died with that get.
        may_be_back = any(
            got.position in other.touched and other.last_at > got.at
            for got in tx.gots
            for other in self.transactions.values()
            if other.outcome is Outcome.MAYBE and not (other.puts or other.gots)
        )
        if shown and back:
            self.broken.append(f"half of {tx.name} happened: it put {shown[0]}, and {back[0]} that it took came back")
        if shown:
            return Outcome.COMMITTED
        if not tx.numbered:
            return Outcome.ROLLED_BACK  # it died before its file could get a number
        return Outcome.ROLLED_BACK if back or may_be_back or not tx.gots else Outcome.COMMITTED

    def _taken(self, place: Place) -> list[Delivery]:
        """The deliveries that were final."""
        return [d for d in self.deliveries[place] if d.tx is None or d.tx.outcome is Outcome.COMMITTED]

    def committed_puts(self) -> Iterator[tuple[Place, Position | None, Tx]]:
        for tx in self.transactions.values():
            if tx.outcome is Outcome.COMMITTED:
                yield from ((place, tx.position_of(i), tx) for i, place in enumerate(tx.puts))

    # -- the promises -----------------------------------------------------------------------------------------------

    def lost(self) -> Iterator[str]:
        """Yield each message of a committed put that no committed get took and that does not remain in its queue."""
        # (a plain get may have taken a message, and died before it returned)
        blind = {p for tx in self.transactions.values() if tx.outcome is Outcome.MAYBE for p in tx.touched}
        blind -= {d.position for d in [*self.gots(), *self.left] if d.tx is None or d.tx.outcome is Outcome.COMMITTED}
        unknown = []
        for place, position, tx in self.committed_puts():
            known = position or next((d.position for d in self.deliveries[place]), None)
            if self._taken(place):
                blind.discard(known)
            elif known is None:
                unknown.append((place, tx))
            elif known in blind:
                blind.remove(known)
            else:
                yield f"lost: {place} at {known}, which {tx.name} put"
        for place, tx in unknown[len(blind) :]:
            yield f"lost: {place}, which {tx.name} put; more such messages are missing than died with plain gets"

    def doubled(self) -> Iterator[str]:
        """No worker gets a message that another one holds or has taken, or that was never put."""
        put = {place for place, _, _ in self.committed_puts()}
        for place, deliveries in self.deliveries.items():
            names = [d.tx.name if d.tx is not None else "the end" for d in deliveries]
            if deliveries and place not in put:
                yield f"{place} was delivered to {names}, and never committed"
            if len(self._taken(place)) > 1:
                yield f"delivered twice: {place} to {names}"
            if len({d.position for d in deliveries}) > 1:
                yield f"{place} has changed its position: {[d.position for d in deliveries]}"
            yield from _overlaps(deliveries)

    def unordered(self) -> Iterator[str]:
        yield from self._unordered_puts()
        yield from self._unordered_gets()

    def _unordered_puts(self) -> Iterator[str]:
        """Each producer's messages have rising positions."""
        last: dict[tuple[str, str], Delivery] = {}
        for place, expected, tx in self.committed_puts():
            if (found := next(iter(self.deliveries[place]), None)) is None:
                continue
            if expected is not None and found.position != expected:
                yield f"{place} was put at {expected} and lies at {found.position}"
            line = (tx.worker if tx.ordered else tx.name, place[0])
            if line in last and last[line].position >= found.position:
                before = last[line]
                yield f"{tx.worker} put {place} after {before.place}, but {found.position} <= {before.position}"
            last[line] = found

    def _unordered_gets(self) -> Iterator[str]:
        """Each consumer gets messages in order, except messages that another consumer held and released meanwhile."""
        returned = set()
        for tx in self.transactions.values():
            kept = {got.position for got in tx.gots} if tx.outcome is Outcome.COMMITTED else set()
            returned |= tx.touched - kept
        highest: dict[tuple[str, str], Delivery] = {}
        by_priority = {queue for queue, _ in self.priorities}
        for got in sorted(self.gots(), key=lambda got: got.at):
            assert got.tx is not None
            if got.place[0] in by_priority:
                continue
            line = (got.tx.worker, got.place[0])
            before = highest.get(line)
            if before is not None and got.position <= before.position and got.position not in returned:
                yield f"{got.tx.name} got {got.place} at {got.position} after {before.place} at {before.position}"
            if before is None or got.position > before.position:
                highest[line] = got

    def untried(self) -> Iterator[str]:
        """An attempt that failed, by a rollback or by a death, is counted before the message is delivered again."""
        for place, deliveries in self.deliveries.items():
            for one, other in pairwise(deliveries):
                failed = one.tx is not None and one.tx.noted and one.tx.outcome is Outcome.ROLLED_BACK
                if failed and other.attempts <= one.attempts:
                    yield f"{place} failed in {one.tx.name} with {one.attempts} attempts, and came back with no more"


END_OF_TIME = 2**63


def _range(record: Record) -> Iterator[Position]:
    first = record["first"]
    return ((record["number"], ordinal) for ordinal in range(first, first + record["count"]))


def _overlaps(deliveries: list[Delivery]) -> Iterator[str]:
    """A message is one transaction's from its delivery until that transaction ended, and for ever if it committed."""
    for place, holder in enumerate(deliveries):
        if (tx := holder.tx) is None:
            continue
        until = END_OF_TIME - 1 if tx.outcome is Outcome.COMMITTED and "ack" in tx.events else tx.ended_at or holder.at
        for other in deliveries[place + 1 :]:
            if other.at <= until and other.tx is not tx:
                name = other.tx.name if other.tx is not None else "the end"
                yield f"{holder.place} was delivered to {name} while {tx.name} held it"
