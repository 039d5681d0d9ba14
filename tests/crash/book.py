"""What several processes did to a space, and which sights of it that explains.

Every operation is a *deed*: what it puts, what it takes, and what may have become of it: nothing, in doubt, done. An
acknowledgement leaves one outcome, a kill several. A sight is explained if some choice of outcomes makes exactly the
messages visible that are visible.
"""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import spool
from spool.errors import CommitUnknown, SpoolError


class Outcome(Enum):
    NOTHING = "nothing"
    DOUBT = "in doubt"
    DONE = "done"


NOTHING, DOUBT, DONE = Outcome


@dataclass
class Deed:
    """``puts`` and ``takes``: (queue, body). ``from_queue``: it may have taken one message of this queue, and nothing
    tells which. ``may_return``: after a power cut it may be in doubt again, although it was rolled back, and what it
    took may have been taken by another since."""

    name: str
    puts: list[tuple[str, str]] = field(default_factory=list)
    takes: list[tuple[str, str]] = field(default_factory=list)
    from_queue: str | None = None
    outcomes: frozenset[Outcome] = frozenset([NOTHING])
    xid: str = ""
    may_return: bool = False
    ended: bool = False

    def may(self, *outcomes: Outcome) -> None:
        self.outcomes = frozenset(outcomes)

    def returns(self, after_cut: bool) -> bool:
        """Whether it may be in doubt again after it was rolled back."""
        return after_cut and self.may_return and NOTHING in self.outcomes

    def __str__(self) -> str:
        what = " ".join(["+" + body[:8] for _, body in self.puts] + ["-" + body[:8] for _, body in self.takes])
        what += f" -?{self.from_queue}" if self.from_queue else ""
        return f"{self.name}[{what}]: {' or '.join(sorted(one.value for one in self.outcomes))}"


@dataclass(frozen=True)
class Sight:
    """Bodies by queue, in order, and branches in doubt."""

    queues: tuple[tuple[str, tuple[str, ...]], ...]
    in_doubt: frozenset[str]


class Reader(Protocol):
    """Reads what is put, and takes nothing."""

    def judge(self, space: spool.Space, book: "Book") -> None:
        """Raises Unexplained if something is not there that it has not read."""


class Unexplained(AssertionError):
    """No history of the operations makes what was seen."""


class Book:
    """All deeds so far. Bodies are unique; a body's first letter names its producer, whose bodies rise.

    ``losing``: queues without durability: a power cut may take what concerns these alone, except from a vote.
    ``alike``: bodies of one deduplication key, of which one alone is committed. ``offset``: the number of the commit up
    to which a stream has read, by its checkpoint.
    """

    def __init__(self, there: Sequence[tuple[str, str]]) -> None:
        self.deeds: list[Deed] = []
        self.losing: frozenset[str] = frozenset()
        self.alike: frozenset[tuple[str, str]] = frozenset()
        self.offset = 0
        self.readers: list[Reader] = []
        for place in there:
            self.deeds.append(Deed("before", [place], outcomes=frozenset([DONE]), ended=True))

    # -- writing ------------------------------------------------------------------------------------------------------

    def begin(self, name: str, *puts: tuple[str, str], from_queue: str | None = None) -> Deed:
        deed = Deed(name, list(puts), from_queue=from_queue)
        self.deeds.append(deed)
        return deed

    @contextmanager
    def ending(self, deed: Deed) -> Iterator[None]:
        """Around a call that commits the deed: done when it returns, undone by an error that says so."""
        deed.may(NOTHING, DONE)
        try:
            yield
        except CommitUnknown:
            raise
        except SpoolError:
            deed.may(NOTHING)
            deed.ended = True
            raise
        deed.may(DONE)
        deed.ended = True

    def put(self, space: spool.Space, name: str, queue: str, *bodies: str) -> None:
        deed = self.begin(name, *((queue, body) for body in bodies))
        with self.ending(deed):
            space.put_many(queue, bodies, transaction=None)

    def get(self, space: spool.Space, name: str, queue: str) -> str | None:
        """Take one message, if there is one; a message that is surely there is found."""
        surely = self._surely(queue)
        begun = len(self.deeds)
        deed = self.begin(name, from_queue=queue)
        try:
            with self.ending(deed):
                body = text(space.get(queue, transaction=None))
                self.saw(queue, body)
                deed.takes, deed.from_queue = [(queue, body)], None
        except spool.Empty:
            others = [one for one in self.deeds[begun:] if one is not deed and _touches(one, queue)]
            if surely and not others:
                raise Unexplained(f"{name} found nothing in {queue}, where {surely} must be\n{self}") from None
            return None
        self._once()
        return body

    def saw(self, queue: str, body: str) -> None:
        """What one process has seen is there for all, and stays."""
        found = [deed for deed in self.deeds if (queue, body) in deed.puts]
        if not found or DONE not in found[0].outcomes:
            raise Unexplained(f"{body} was seen in {queue}, and was never committed there\n{self}")
        found[0].may(DONE)

    def _surely(self, queue: str) -> list[str]:
        """Bodies that every process must find now."""
        if any(not deed.ended and (_touches(deed, queue)) for deed in self.deeds):
            return []
        taken = {place for deed in self.deeds if deed.outcomes != {NOTHING} for place in deed.takes}
        return [
            body
            for deed in self.deeds
            if deed.outcomes == {DONE}
            for place, body in deed.puts
            if place == queue and (place, body) not in taken
        ]

    def untaken(self, queue: str) -> set[str]:
        """Bodies that are in the queue for certain, unless a deed has them of which it is not known what it took."""
        taken = {place for deed in self.deeds if deed.outcomes != {NOTHING} for place in deed.takes}
        surely = {place for deed in self.deeds if deed.outcomes == {DONE} for place in deed.puts}
        return {body for place, body in surely - taken if place == queue}

    def unknown_takers(self, queue: str) -> int:
        """How many deeds may have taken a message of the queue of which nothing tells which."""
        return sum(deed.from_queue == queue and deed.outcomes != {NOTHING} for deed in self.deeds)

    def _once(self) -> None:
        taken = [place for deed in self.deeds if deed.outcomes == {DONE} for place in deed.takes]
        if len(taken) != len(set(taken)):
            raise Unexplained(f"a message was delivered twice\n{self}")

    # -- reading ------------------------------------------------------------------------------------------------------

    def explain(self, sight: Sight, *, after_cut: bool = False) -> None:
        """Raises Unexplained if no choice of outcomes makes this sight, or the order is wrong."""
        self._once()
        wanted = {(queue, body) for queue, bodies in sight.queues for body in bodies}
        if len(wanted) != sum(len(bodies) for _, bodies in sight.queues):
            raise Unexplained(f"a message is there twice: {sight}\n{self}")
        for queue, bodies in sight.queues:
            for producer in {body[0] for body in bodies}:
                mine = [body for body in bodies if body[0] == producer]
                if mine != sorted(mine):
                    raise Unexplained(f"queue {queue} is out of order: {mine}\n{self}")
        if not any(seen == wanted and doubt == sight.in_doubt for seen, doubt in self._sights(after_cut)):
            raise Unexplained(f"nothing explains {sight}\n{self}")

    def _sights(self, after_cut: bool) -> Iterator[tuple[set[tuple[str, str]], frozenset[str]]]:
        everything = sorted({place for deed in self.deeds for place in deed.puts})
        options = [list(self._options(deed, everything, after_cut)) for deed in self.deeds]
        for choice in itertools.product(*options):
            added: set[tuple[str, str]] = set()
            taken: list[tuple[str, str]] = []
            doubt = set()
            for deed, (outcome, takes) in zip(self.deeds, choice, strict=True):
                if outcome is DONE:
                    added.update(deed.puts)
                    taken += takes
                elif outcome is DOUBT:
                    doubt.add(deed.xid)
                    taken += [] if deed.returns(after_cut) else takes
            hidden = {
                place
                for deed, (outcome, takes) in zip(self.deeds, choice, strict=True)
                if outcome is DOUBT
                for place in takes
            }
            if after_cut and self.losing:  # the removal of a message that is lost does nothing
                taken = [place for place in taken if place in added or place[0] not in self.losing]
            for one in added & self.alike or {None}:
                there = added - (self.alike - {one})
                if len(taken) == len(set(taken)) and there.issuperset(taken):
                    yield there.difference(taken) - hidden, frozenset(doubt)

    def _options(
        self, deed: Deed, everything: list[tuple[str, str]], after_cut: bool
    ) -> Iterator[tuple[Outcome, list[tuple[str, str]]]]:
        outcomes = deed.outcomes | ({DOUBT} if deed.returns(after_cut) else set())
        if after_cut and self._may_be_lost(deed):
            outcomes |= {NOTHING}
        for outcome in outcomes:
            yield outcome, deed.takes
            if deed.from_queue is not None and outcome is not NOTHING:
                for place in everything:
                    if place[0] == deed.from_queue:
                        yield outcome, [place]

    def _may_be_lost(self, deed: Deed) -> bool:
        queues = {queue for queue, _ in (*deed.puts, *deed.takes)} | ({deed.from_queue} if deed.from_queue else set())
        return not deed.xid and self.losing.issuperset(queues)

    def __str__(self) -> str:
        return "\n".join(f"  {line}" for line in (*self.deeds, *self.readers))


class Reading:
    """A read of a queue that takes nothing: what is there from its plan to its end comes once, whole commits of it."""

    def __init__(self, book: Book, queue: str) -> None:
        self._book = book
        self._queue = queue
        self._there = book.untaken(queue)
        self._found: set[str] = set()

    def found(self, body: str) -> None:
        """A row."""
        if body in self._found:
            raise Unexplained(f"{body} was read twice\n{self._book}")
        self._book.saw(self._queue, body)
        self._found.add(body)

    def goes_on(self) -> None:
        """Another plan is made: of a stream, with an offset."""
        self._there |= self._book.untaken(self._queue)

    def end(self) -> None:
        """All that was planned has been read."""
        book = self._book
        for deed in book.deeds:
            there = {body for queue, body in deed.puts if queue == self._queue}
            if there & self._found:
                self._there |= there
        missing = (self._there & book.untaken(self._queue)) - self._found
        if len(missing) > book.unknown_takers(self._queue):
            raise Unexplained(f"{sorted(missing)} were not read, and are there\n{book}")


def _touches(deed: Deed, queue: str) -> bool:
    """Whether it takes, or may take, from this queue."""
    return deed.from_queue == queue or any(place == queue for place, _ in deed.takes)


def text(message: spool.Message) -> str:
    """The body, whether it was put as text or dropped as bytes."""
    return message.body.decode() if isinstance(message.body, bytes) else str(message.body)


def look(space: spool.Space) -> Sight:
    """What an application sees now."""
    queues = tuple((queue, tuple(text(m) for m in space.browse(queue))) for queue in sorted(space.queues()))
    return Sight(queues, frozenset(map(str, space._store.view.prepared.branches)))
