"""The requests in a commit: messages to put, claimed messages to remove, or the batch of a transaction.

Each request adds its part to the batch of a commit, and learns the number of the commit and the ids of its messages.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from itertools import groupby
from operator import attrgetter
from typing import Any

from spool.coordination.counters import CounterPage
from spool.format.batch import CommitBatch, destinations_of
from spool.format.commands import addressing
from spool.log.quota import Usage, UsageByQueue, change_by
from spool.model.position import PositionRanges
from spool.model.xid import Xid
from spool.store.store import Store

_RANGE_BYTES = 32  # about the size of a range in a file
_ALIKE, _RANGES = attrgetter("alike"), attrgetter("ranges")
PUT, REMOVAL, BRANCH, ADOPTION = range(4)  # the kinds of packed requests


class Stage(Enum):
    WAITING = "waiting"
    LEADING = "waiting, and its thread leads"
    TAKEN = "taken"
    DONE = "done"


class CommitRequest:
    """One caller's part of a commit.

    ``number``: the number of the commit, once the commit has a number. ``error``: the error of a request that was not
    committed, or whose outcome is unknown. ``begin``, if set, is called when the request is taken, and returns False if
    the request was cancelled. ``on_done`` is called once for all requests that share this function and are done
    together. ``future``: the future that the caller got, if any.
    """

    is_empty = False  # nothing to commit
    votes = False  # whether this is a ``VoteRequest``, which needs no number
    # The prepared branch that the request commits; for such a request, ``refusal`` is called under the number lock.
    adopts: Xid | None = None
    branch, first = "", 0  # the branch of the messages, as hex, and the ordinal of the first message
    # The queue and the control fields, if the request only puts ``bodies`` and all bodies have the same fields.
    alike: tuple[str, Mapping[str, Any]] | None = None
    bodies: Sequence[bytes] = ()
    number: int | None = None
    error: BaseException | None = None
    caller = 0  # the thread that waits, or 0
    stage = Stage.WAITING
    signal: "threading.Lock | None" = None  # held until the waiting thread may go on
    begin: Callable[[], bool] | None = None
    on_done: Callable[[Sequence["CommitRequest"]], None] | None = None
    future: Any = None

    def __init__(self, page: CounterPage | None, messages: int, size: int) -> None:
        self.page = page  # the counters, as the caller has read them
        self.messages = messages
        self.bytes = size
        self.is_empty = not messages

    def destinations(self) -> Iterable[str]:
        """Return the queues into which the request puts or moves messages."""
        return ()

    def usage(self, _store: Store) -> UsageByQueue:
        """Return, for each queue, the change of its usage."""
        return {}

    def refusal(self, _store: Store, _page: CounterPage, _others: Collection[Xid]) -> Exception | None:
        """Return the error of a request that must not be committed, or None. Every earlier commit is applied already.

        ``page``: the counters, read under the number lock. ``others``: the branches that the same commit adopts
        already.
        """
        return None

    def append_to(self, batch: CommitBatch) -> None:
        """Append the request to a batch. Afterwards the messages of the request have ids."""

    def pack(self) -> tuple[Any, ...] | None:
        """Return the request as values that msgpack can encode, with its kind first; see ``posted``.

        None if only this process can commit the request.
        """
        return None

    def resolve(self, _store: Store) -> bool:
        """Complete a request that another process packed; return False if this process cannot commit the request."""
        return True

    @property
    def addressed(self) -> PositionRanges:
        """The committed messages that the request removes or changes."""
        return []

    @property
    def ids(self) -> list[str]:
        """Return the ids of the request's messages, once the request is in a batch."""
        return list(map(f"{self.branch}%08x".__mod__, range(self.first, self.first + self.messages)))

    @property
    def id(self) -> str:
        """Return the id of the request's first message."""
        return f"{self.branch}{self.first:08x}"


class PutRequest(CommitRequest):
    """Messages for one queue, as ``validation.encode_bodies`` groups them. Neighbouring puts share a branch."""

    def __init__(
        self, page: CounterPage | None, queue: str, groups: list[tuple[Sequence[bytes], dict[str, Any]]]
    ) -> None:
        self.page = page
        self.messages = self.bytes = 0
        for bodies, attributes in groups:
            self.messages += len(bodies)
            self.bytes += sum(map(len, bodies))
            self.bodies, self.alike = bodies, (queue, attributes)
        if groups[1:]:
            self.alike = None
        self.queue = queue
        self.groups = groups

    def destinations(self) -> Iterable[str]:
        return (self.queue,)

    def usage(self, _store: Store) -> UsageByQueue:
        return {self.queue: Usage(self.messages, self.bytes)}

    def append_to(self, batch: CommitBatch) -> None:
        self.branch, self.first = batch.shared_branch()
        for bodies, attributes in self.groups:
            batch.put(self.queue, bodies, attributes)

    def pack(self) -> tuple[Any, ...]:
        return PUT, self.queue, self.groups


class RemovalRequest(CommitRequest):
    """Claimed messages that leave their queue. ``ranges``: (number, first ordinal, count)."""

    def __init__(self, page: CounterPage | None, ranges: PositionRanges) -> None:
        self.page = page
        self.messages, self.bytes = 0, _RANGE_BYTES * len(ranges)
        self.ranges = ranges

    def usage(self, store: Store) -> UsageByQueue:
        batch = CommitBatch()
        self.append_to(batch)
        return change_by(store.view, batch.tables)

    def append_to(self, batch: CommitBatch) -> None:
        for number, first, count in self.ranges:
            batch.remove(number, first, count, "dequeued")

    def pack(self) -> tuple[Any, ...]:
        return REMOVAL, self.ranges

    @property
    def addressed(self) -> PositionRanges:
        return self.ranges


class BranchRequest(CommitRequest):
    """The batch of one transaction. ``branch``: the id of the transaction's branch, as hex."""

    def __init__(self, page: CounterPage | None, branch: str, batch: CommitBatch) -> None:
        super().__init__(page, batch.messages, batch.size)
        self.branch = branch
        self.batch = batch
        self.is_empty = batch.is_empty

    def destinations(self) -> Iterable[str]:
        return destinations_of(self.batch.tables)

    def usage(self, store: Store) -> UsageByQueue:
        return change_by(store.view, self.batch.tables)

    def append_to(self, batch: CommitBatch) -> None:
        batch.append(self.batch)

    def pack(self) -> tuple[Any, ...] | None:
        packed = self.batch.pack()
        return None if packed is None else (BRANCH, self.branch, packed)

    @property
    def addressed(self) -> PositionRanges:
        return [command[1:4] for table in self.batch.tables for command in addressing(table.commands)]


def batch_of(requests: Sequence[CommitRequest]) -> CommitBatch:
    """Return one batch of all requests in their order, with adoptions last: adopted messages have the last ordinals.

    Neighbouring requests with equal ``alike`` become one put. Removals come first, sorted, so that removals of
    neighbouring messages become one command.
    """
    batch = CommitBatch()
    adopting: list[CommitRequest] = []
    removals = [request for request in requests if type(request) is RemovalRequest] if requests[1:] else ()
    if removals[1:]:
        for removal in sorted(removals, key=_RANGES):
            removal.append_to(batch)
        requests = [request for request in requests if type(request) is not RemovalRequest]
    for alike, neighbours in groupby(requests, _ALIKE):
        if alike is not None:
            branch, first = batch.shared_branch()
            bodies: list[bytes] = []
            for request in neighbours:
                request.branch, request.first = branch, first
                first += request.messages
                bodies += request.bodies
            queue, attributes = alike
            batch.put(queue, bodies, attributes)
            continue
        for request in neighbours:
            if request.adopts is None:
                request.append_to(batch)
            else:
                adopting.append(request)
    for request in adopting:
        request.append_to(batch)
    return batch
