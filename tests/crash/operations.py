"""The operations of several processes on one space, and the check of an observation against them.

An ``Operation`` notes the messages that it puts and takes, and its possible outcomes: nothing, in doubt, done. An
acknowledgement leaves one outcome, a kill leaves several. The log explains an observation if some choice of outcomes
makes exactly the observed messages visible.
"""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import spool
from spool.errors import CommitUnknown, SpoolError
from tests import door


class Outcome(Enum):
    NOTHING = "nothing"
    DOUBT = "in doubt"
    DONE = "done"


NOTHING, DOUBT, DONE = Outcome


@dataclass
class Operation:
    """``puts`` and ``takes``: (queue, body). ``from_queue``: the operation may have taken one message of this queue;
    the log does not know which. ``may_return``: after a power cut the operation may be in doubt again, although it was
    rolled back, and another operation may have taken its messages since."""

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
        """Return whether the operation may be in doubt again after it was rolled back."""
        return after_cut and self.may_return and NOTHING in self.outcomes

    def __str__(self) -> str:
        what = " ".join(["+" + body[:8] for _, body in self.puts] + ["-" + body[:8] for _, body in self.takes])
        what += f" -?{self.from_queue}" if self.from_queue else ""
        return f"{self.name}[{what}]: {' or '.join(sorted(one.value for one in self.outcomes))}"


@dataclass(frozen=True)
class Observation:
    """Bodies by queue, in order, and branches in doubt."""

    queues: tuple[tuple[str, tuple[str, ...]], ...]
    in_doubt: frozenset[str]


class Reader(Protocol):
    """Reads messages and takes none."""

    def judge(self, space: spool.Space, log: "OperationLog") -> None:
        """Raise Unexplained if a message that the reader has not read is missing."""


class Unexplained(AssertionError):
    """No outcome of the operations leads to the observation."""


class OperationLog:
    """All operations so far. Bodies are unique. A body's first letter names its producer, and its bodies ascend.

    ``losing``: queues without durability; a power cut may take an operation that concerns only these and has not voted.
    ``alike``: bodies with one deduplication key, of which at most one is committed. ``offset``: the number of the last
    commit that a stream has read, by its checkpoint.
    """

    def __init__(self, there: Sequence[tuple[str, str]]) -> None:
        self.operations: list[Operation] = []
        self.losing: frozenset[str] = frozenset()
        self.alike: frozenset[tuple[str, str]] = frozenset()
        self.offset = 0
        self.readers: list[Reader] = []
        for place in there:
            self.operations.append(Operation("before", [place], outcomes=frozenset([DONE]), ended=True))

    # -- writing ------------------------------------------------------------------------------------------------------

    def begin(self, name: str, *puts: tuple[str, str], from_queue: str | None = None) -> Operation:
        operation = Operation(name, list(puts), from_queue=from_queue)
        self.operations.append(operation)
        return operation

    @contextmanager
    def ending(self, operation: Operation) -> Iterator[None]:
        """Surround the call that commits the operation: the outcome is "done" if the call returns, and "nothing" if its
        error tells that."""
        operation.may(NOTHING, DONE)
        try:
            yield
        except CommitUnknown:
            raise
        except SpoolError:
            operation.may(NOTHING)
            operation.ended = True
            raise
        operation.may(DONE)
        operation.ended = True

    def put(self, space: spool.Space, name: str, queue: str, *bodies: str) -> None:
        operation = self.begin(name, *((queue, body) for body in bodies))
        with self.ending(operation):
            space.put_many(queue, bodies, transaction=None)

    def get(self, space: spool.Space, name: str, queue: str) -> str | None:
        """Take one message, if one exists. Raises Unexplained if a certain message was not found."""
        surely = self._surely(queue)
        begun = len(self.operations)
        operation = self.begin(name, from_queue=queue)
        try:
            with self.ending(operation):
                body = text(space.get(queue, transaction=None))
                self.saw(queue, body)
                operation.takes, operation.from_queue = [(queue, body)], None
        except spool.Empty:
            others = [one for one in self.operations[begun:] if one is not operation and _touches(one, queue)]
            if surely and not others:
                raise Unexplained(f"{name} found nothing in {queue}, where {surely} must be\n{self}") from None
            return None
        self._once()
        return body

    def saw(self, queue: str, body: str) -> None:
        """A message that one process has seen is committed for all processes."""
        found = [operation for operation in self.operations if (queue, body) in operation.puts]
        if not found or DONE not in found[0].outcomes:
            raise Unexplained(f"{body} was seen in {queue}, and was never committed there\n{self}")
        found[0].may(DONE)

    def _surely(self, queue: str) -> list[str]:
        """Bodies that every process must find now."""
        if any(not operation.ended and (_touches(operation, queue)) for operation in self.operations):
            return []
        taken = {place for operation in self.operations if operation.outcomes != {NOTHING} for place in operation.takes}
        return [
            body
            for operation in self.operations
            if operation.outcomes == {DONE}
            for place, body in operation.puts
            if place == queue and (place, body) not in taken
        ]

    def untaken(self, queue: str) -> set[str]:
        """Bodies that are certainly in the queue, unless an operation of unknown takes has them."""
        taken = {place for operation in self.operations if operation.outcomes != {NOTHING} for place in operation.takes}
        surely = {place for operation in self.operations if operation.outcomes == {DONE} for place in operation.puts}
        return {body for place, body in surely - taken if place == queue}

    def unknown_takers(self, queue: str) -> int:
        """The number of operations that may have taken some message of the queue."""
        return sum(operation.from_queue == queue and operation.outcomes != {NOTHING} for operation in self.operations)

    def _once(self) -> None:
        taken = [place for operation in self.operations if operation.outcomes == {DONE} for place in operation.takes]
        if len(taken) != len(set(taken)):
            raise Unexplained(f"a message was delivered twice\n{self}")

    # -- reading ------------------------------------------------------------------------------------------------------

    def explain(self, observation: Observation, *, after_cut: bool = False) -> None:
        """Raise Unexplained if no choice of outcomes makes this observation, or the order is wrong."""
        self._once()
        wanted = {(queue, body) for queue, bodies in observation.queues for body in bodies}
        if len(wanted) != sum(len(bodies) for _, bodies in observation.queues):
            raise Unexplained(f"a message is there twice: {observation}\n{self}")
        for queue, bodies in observation.queues:
            for producer in {body[0] for body in bodies}:
                mine = [body for body in bodies if body[0] == producer]
                if mine != sorted(mine):
                    raise Unexplained(f"queue {queue} is out of order: {mine}\n{self}")
        if not any(seen == wanted and doubt == observation.in_doubt for seen, doubt in self._observations(after_cut)):
            raise Unexplained(f"nothing explains {observation}\n{self}")

    def _observations(self, after_cut: bool) -> Iterator[tuple[set[tuple[str, str]], frozenset[str]]]:
        everything = sorted({place for operation in self.operations for place in operation.puts})
        options = [list(self._options(operation, everything, after_cut)) for operation in self.operations]
        for choice in itertools.product(*options):
            added: set[tuple[str, str]] = set()
            taken: list[tuple[str, str]] = []
            doubt = set()
            for operation, (outcome, takes) in zip(self.operations, choice, strict=True):
                if outcome is DONE:
                    added.update(operation.puts)
                    taken += takes
                elif outcome is DOUBT:
                    doubt.add(operation.xid)
                    taken += [] if operation.returns(after_cut) else takes
            hidden = {
                place
                for operation, (outcome, takes) in zip(self.operations, choice, strict=True)
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
        self, operation: Operation, everything: list[tuple[str, str]], after_cut: bool
    ) -> Iterator[tuple[Outcome, list[tuple[str, str]]]]:
        outcomes = operation.outcomes | ({DOUBT} if operation.returns(after_cut) else set())
        if after_cut and self._may_be_lost(operation):
            outcomes |= {NOTHING}
        for outcome in outcomes:
            yield outcome, operation.takes
            if operation.from_queue is not None and outcome is not NOTHING:
                for place in everything:
                    if place[0] == operation.from_queue:
                        yield outcome, [place]

    def _may_be_lost(self, operation: Operation) -> bool:
        queues = {queue for queue, _ in (*operation.puts, *operation.takes)} | (
            {operation.from_queue} if operation.from_queue else set()
        )
        return not operation.xid and self.losing.issuperset(queues)

    def __str__(self) -> str:
        return "\n".join(f"  {line}" for line in (*self.operations, *self.readers))


class Reading:
    """A read that takes nothing: a message that is in the queue from plan to end is read once, in whole commits."""

    def __init__(self, log: OperationLog, queue: str) -> None:
        self._log = log
        self._queue = queue
        self._there = log.untaken(queue)
        self._found: set[str] = set()

    def found(self, body: str) -> None:
        """A row."""
        if body in self._found:
            raise Unexplained(f"{body} was read twice\n{self._log}")
        self._log.saw(self._queue, body)
        self._found.add(body)

    def goes_on(self) -> None:
        """A stream makes another plan, from an offset."""
        self._there |= self._log.untaken(self._queue)

    def end(self) -> None:
        """The reader has read the whole plan."""
        log = self._log
        for operation in log.operations:
            there = {body for queue, body in operation.puts if queue == self._queue}
            if there & self._found:
                self._there |= there
        missing = (self._there & log.untaken(self._queue)) - self._found
        if len(missing) > log.unknown_takers(self._queue):
            raise Unexplained(f"{sorted(missing)} were not read, and are there\n{log}")


def _touches(operation: Operation, queue: str) -> bool:
    """Return whether the operation takes, or may take, from this queue."""
    return operation.from_queue == queue or any(place == queue for place, _ in operation.takes)


def text(message: spool.Message) -> str:
    """The body as text; a dropped file's is bytes."""
    return message.body.decode() if isinstance(message.body, bytes) else str(message.body)


def look(space: spool.Space) -> Observation:
    """The messages and the branches in doubt that an application sees now."""
    queues = tuple((queue, tuple(text(m) for m in space.browse(queue))) for queue in sorted(space.queues()))
    return Observation(queues, frozenset(map(str, door.store(space).view.prepared.branches)))
