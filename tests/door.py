"""The door to the parts of a space behind its public calls.

Tests take a public call where one shows the same. Otherwise they go through this module, which alone knows the private
names of a space. ``owner`` is an open space, its engine, or a transaction.
"""

import math
import os
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from unittest import mock

import spool
import xa
from spool.coordination.counters import CounterPage
from spool.disk.disk import Disk
from spool.format.header import Adoption, BranchEntry, Header, SectionEntry, stamp
from spool.format.reader import FileContents, contents_of
from spool.format.table import CompactedTable
from spool.index.index import Index
from spool.log import write_set
from spool.log.adoption import adoption, voted_contents
from spool.log.commit_file import CommitFileWriter
from spool.log.engine_commit import commit_batch
from spool.log.leader import Leader, commit_submitted
from spool.log.ring import Ring, posted
from spool.log.visibility import catch_up
from spool.log.write import Write
from spool.log.write_set import WriteSet, removal
from spool.maintenance import reclaim as reclaiming
from spool.maintenance.disk_space import rooms
from spool.maintenance.housekeeper import Housekeeper
from spool.model.position import Position
from spool.model.xid import BRANCH_ID_BYTES, FORMAT_LOCAL, Xid
from spool.policies import attempt_journal
from spool.runtime.clock import Clock, Deadline
from spool.store.store import WAIT_SECONDS, Store
from spool.transactions.coordinated import CoordinatedTransaction
from spool.transactions.core import Core

PATIENT_SECONDS = 60


class Owner(Protocol):
    _store: Store


def store(owner: Owner) -> Store:
    return owner._store


def core(space: spool.Space) -> Core:
    return space._core


def disk(owner: Owner) -> Disk:
    return owner._store.files.disk


def clock(owner: Owner) -> Clock:
    return owner._store.clock


def deadline(owner: Owner, seconds: float = WAIT_SECONDS) -> Deadline:
    return owner._store.deadline(seconds)


def index(owner: Owner) -> Index:
    """Return the queues in the memory of this process."""
    return owner._store.view.index


def counters(owner: Owner) -> CounterPage:
    """Read the numbers that all processes of the space share."""
    return owner._store.shared.counters.read()


def in_work(space: spool.Space) -> list[Position]:
    """Return the messages for which the death of this process would count an attempt."""
    journal = attempt_journal.read_journal(disk(space), core(space).journal.xid)
    catch_up(store(space))
    return attempt_journal.uncounted(index(space), journal)


def next_check(arrivals: spool.QueueArrivals) -> float:
    """Return when the watching thread checks the queues by itself, by the monotonic clock."""
    return arrivals._check_at


# -- housekeeping, done by the test -----------------------------------------------------------------------------------


def reclaim(owner: Owner, *args: Any, **options: Any) -> int:
    """Remove the files that the space no longer needs. Return their number."""
    with owner._store.guard.step:
        return reclaiming.reclaim(owner._store, *args, **options)


def compact(space: spool.Space) -> int:
    """Compact the queues. Return the number of written files."""
    with space._store.guard.step:
        return space._housekeeper.compact()


def hold(transaction: spool.Transaction) -> Any:
    return transaction._hold


def housekeeper(space: spool.Space) -> Housekeeper:
    return space._housekeeper


def housekeep(space: spool.Space, *, due: bool = True) -> bool:
    """Do a whole round, as the thread of the housekeeper does. ``due``: whether the time of a round has come."""
    return space._housekeeper._round(due=due)


def steps(space: spool.Space, *, due: bool = True) -> None:
    """Do the steps of a round, whichever process was elected."""
    space._housekeeper._do_steps(due=due)


def expire(space: spool.Space) -> None:
    space._housekeeper._expire()


def save(space: spool.Space, least: int = 0) -> None:
    """Save a checkpoint if it has at least so many entries."""
    space._housekeeper._save(least)


def reclaim_behind(space: spool.Space, behind: int = 0) -> None:
    """Reclaim as a round does: the newest ``behind`` numbers are kept for readers."""
    space._housekeeper._reclaim(behind)


def is_elected(space: spool.Space) -> bool:
    """Return whether this process does the housekeeping of the space."""
    return space._housekeeper._is_elected()


# -- transactions -----------------------------------------------------------------------------------------------------


def branch(space: spool.Space, **options: Any) -> CoordinatedTransaction:
    """Begin a branch of a coordinator. options: those of ``CoordinatedTransaction``."""
    return CoordinatedTransaction(space._core, **options)


def batch(transaction: Any) -> WriteSet:
    """Return the commit that the transaction has gathered so far."""
    found: WriteSet = transaction.writes
    return found


def add(transaction: Any, *actions: tuple[Any, ...]) -> None:
    """Add to the commit of a transaction. actions: the name of a method of the commit, and its arguments."""
    act(transaction.writes, actions)


def act(batch: Any, actions: Iterable[tuple[Any, ...]]) -> Any:
    for name, *arguments in actions:
        getattr(batch, name)(*arguments)
    return batch


def commit(space: spool.Space, *actions: tuple[Any, ...]) -> int:
    """Commit as the engine itself does, outside of any transaction. actions: as in ``add``."""
    store, batch = space._store, act(WriteSet(), actions)
    with store.guard:
        return commit_batch(store, batch, store.deadline(), flush=True)


def outcomes(manager: xa.TransactionManager) -> Any:
    """Return the branches that the manager commits in the background."""
    return manager._outcomes


def settle(manager: xa.TransactionManager) -> None:
    """Wait until the manager has committed every branch in the background."""
    manager._outcomes.wait(PATIENT_SECONDS)


# -- commits that fail or wait -----------------------------------------------------------------------------------------


def _nothing(*_: object) -> None: ...


def _noticed(
    target: Any, name: str, *, before: Callable[..., object] = _nothing, after: Callable[[], object] = _nothing
) -> Any:
    """Let a method call a function before it, with its arguments, and another one after it."""
    inner = getattr(target, name)

    def method(*arguments: Any) -> Any:
        before(*arguments)
        result = inner(*arguments)
        after()
        return result

    return mock.patch.object(target, name, method)


def before_attempts(act: Callable[[int], object]) -> Any:
    """Call ``act`` before each attempt to commit, with the number of requests. If it raises, the attempt fails."""
    return _noticed(Write, "name", before=lambda write: act(len(write.write_sets)))


@contextmanager
def failing_attempts(fail: Callable[[], object], times: float = math.inf) -> Iterator[list[int]]:
    """Let so many attempts to commit fail. Yields the numbers of their requests."""
    failed = list[int]()

    def act(requests: int) -> None:
        if len(failed) < times:
            failed.append(requests)
            fail()

    with before_attempts(act):
        yield failed


def no_spare_is_left_for_others() -> AbstractContextManager[object]:
    """Let a commit overwrite a consumed file even if few are in free/."""
    return mock.patch.object(WriteSet, "files_to_leave", int)


@contextmanager
def unknown_attempts(*, happened: bool) -> Iterator[None]:
    """Let each request have an unknown outcome. ``happened``: whether it is committed."""
    commit = Leader._commit

    def committing(leader: Leader, left: Sequence[WriteSet]) -> None:
        if happened:
            commit(leader, left)
        for request in left:
            request.error = spool.CommitUnknown("another process did not end the commit")

    # (beside another process that leads, this process commits the requests nevertheless)
    with mock.patch.object(Ring, "exchange", lambda _, left: left), mock.patch.object(Leader, "_commit", committing):
        yield


SUBMISSION = Leader, "submit"  # the function that hands a request to the thread that commits


def waiting(space: spool.Space) -> int:
    """Return the number of messages whose commit has not begun."""
    return space._core.leader.waiting


def waiting_requests(space: spool.Space) -> int:
    return len(space._core.leader._waiting)


def is_led(space: spool.Space) -> bool:
    """Return whether a thread commits, or is about to."""
    return space._core.leader._led


def commit_thread(space: spool.Space) -> threading.Thread | None:
    """Return the thread that commits submitted messages, once a message was submitted."""
    return space._core.leader._thread


def drain(space: spool.Space) -> None:
    """Accept no more requests, and return when all are committed."""
    space._core.leader.drain()


def end_program(space: spool.Space) -> None:
    """Commit the submitted messages as the end of the program does."""
    commit_submitted(space._core.leader)


def put_of(queue: str, body: bytes) -> WriteSet:
    found = WriteSet()
    found.put(queue, [body], {})
    return found


@contextmanager
def beside(space: spool.Space, other: WriteSet | None) -> Iterator[None]:
    """Let a write set, unless it is None, be written together with the next one."""
    group, others = space._core.leader, [one for one in [other] if one is not None]
    write = group._write

    def write_both(write_sets: list[WriteSet], own: WriteSet | None = None) -> None:
        both, others[:] = [*others, *write_sets], []
        write(both, own)

    with mock.patch.object(group, "_write", write_both):
        yield


@contextmanager
def without_commit_thread(space: spool.Space) -> Iterator[None]:
    """Let submissions wait until a test leads."""
    group = space._core.leader
    with mock.patch.object(group, "_start"), mock.patch.object(group, "_wakes"):
        yield


@contextmanager
def asleep_until_drained(space: spool.Space) -> Iterator[None]:
    """Let submitted messages wait until no more are accepted."""
    group, wakes = space._core.leader, list[None]()
    wake = group._wakes.release
    with (
        _noticed(group, "_join", before=lambda *_: [wake() for _ in wakes]),
        mock.patch.object(group._wakes, "release", partial(wakes.append, None)),
    ):
        yield


def lead(space: spool.Space) -> None:
    """Make one commit of the waiting submissions, in this thread."""
    with space._store.guard:
        space._core.leader._lead()


@contextmanager
def noticing_joins(came: Callable[[], object]) -> Iterator[None]:
    """Call ``came`` in each thread whose request has joined the line."""
    with (
        _noticed(Leader, "_join", after=came),
        _noticed(Leader, "_add", after=came),
        _noticed(Leader, "_write", before=lambda *_: came()),
    ):
        yield


@contextmanager
def full_line(space: spool.Space, wait: Callable[..., object]) -> Iterator[None]:
    """Let the line of waiting requests have no room. ``wait`` is called in place of waiting for room."""
    group = space._core.leader
    with mock.patch.object(group, "_has_room", return_value=False), mock.patch.object(group, "_wait_for_room", wait):
        yield


# -- commits of several processes --------------------------------------------------------------------------------------


def expect_others(space: spool.Space, commits: int) -> None:
    """Let this process look for company in so many commits; 0: until it meets others."""
    space._core.leader.ring.expected = commits


def alone(space: spool.Space) -> Any:
    """Let this process look for no company."""
    return mock.patch.object(space._core.leader.ring, "expects_others", return_value=False)


def unmoved_branches() -> Any:
    """Let a process die, as it seems to others, before it moves the branches that it has committed."""
    return mock.patch("spool.log.write.move_adopted")


class Lead:
    """The lead among processes, in the hands of a test."""

    def __init__(self, space: spool.Space) -> None:
        self._group = space._core.leader
        self._ring = self._group.ring
        assert self._ring._try_lead()

    def join(self) -> int:
        """Join the posted requests. Return the number of those that this process can commit."""
        return len(self._ring._join())

    def forget(self) -> None:
        """Leave the joined requests as they are, as a process that dies does."""
        self._ring.joined.clear()

    def commit(self) -> None:
        """Commit the posted requests, and end the lead."""
        commit_posted(self._group, self._ring._join)


def commit_as_another(store: Store) -> None:
    """Take the lead, and commit the posted requests, as another process that has met the owners of the requests."""
    group = Leader(store, partial(rooms, store))
    group.ring.expected = 1
    try:
        commit_posted(group, partial(group.ring.exchange, []))
    finally:
        group._forget_name()


def commit_posted(group: Any, exchange: Callable[[], list[WriteSet]]) -> None:
    """Commit the posted requests, and end the lead."""
    try:
        group.ring.end(group._commit(exchange()))
    finally:
        group.ring.end(None)


@contextmanager
def leading(space: spool.Space) -> Iterator[Lead]:
    """Lead in this process. At the end commit the posted requests, as a leader does."""
    lead = Lead(space)
    with space._store.guard:
        yield lead
        lead.commit()


_STEPS = {"join": "_join", "take": "take", "finish": "end", "wait": "_wait", "read": "_read_answer"}


def before_step(space: spool.Space, step: str, act: Callable[[], object]) -> Any:
    """Call ``act`` before each such step of this process: a leader joins the posted requests, takes them for a number,
    and finishes them; an owner waits for the answer, and reads it."""
    return _noticed(space._core.leader.ring, _STEPS[step], before=lambda *_: act())


def posted_put(queue: str, body: bytes) -> tuple[bytes, Any]:
    """Return a put as a process posts it: the arguments of ``RequestSlots.post`` after the slot."""
    return posted([put_of(queue, body)])  # type: ignore[return-value]


def posted_adoption(space: spool.Space, xid: Xid) -> tuple[bytes, Any]:
    return posted([adoption(None, space._store.view.prepared.branches[xid])])  # type: ignore[arg-type, return-value]


def posted_removal(*ranges: tuple[int, int, int]) -> tuple[bytes, Any]:
    return posted([removal(None, list(ranges))])  # type: ignore[return-value]


# -- files of messages, and commits ------------------------------------------------------------------------------------


@contextmanager
def fixed(writer: dict[str, object], ids: Callable[[int], bytes], xids: Callable[[int], bytes]) -> Iterator[None]:
    """Let the files of the block name this writer, and let two functions make random ids: those of branches of
    messages, and those of xids, which must differ while their files exist."""
    with (
        mock.patch("spool.log.commit_file.writer_name", return_value=writer),
        mock.patch("spool.model.xid.os", urandom=xids),
        mock.patch.object(os, "urandom", ids),
    ):
        yield


def small_sections() -> Any:
    """Let a section of a file hold few messages, few bytes of bodies, and few commands."""
    return mock.patch.multiple(write_set, SECTION_MESSAGES=6, SECTION_BYTES=2_000, MOST_ADDRESSED=4)


def write_file(
    path: Path, actions: Iterable[tuple[Any, ...]], time: float, durable_mark: int, number: int, *,
    supersedes: tuple[int, ...] = (), adopts: Sequence[Adoption] = (), padded: bool = False,
) -> Header:  # fmt: skip
    """Write a file of messages, stamped if it has a number. actions: as in ``add``.

    ``padded``: whether the file is padded like one that may overwrite another.
    """
    batch = WriteSet(supersedes)
    batch.adopts += adopts
    (path.parent / "active").mkdir(exist_ok=True)
    file = CommitFileWriter(Disk(str(path.parent)), Xid(FORMAT_LOCAL, b"written", b""))
    pool = mock.Mock(take=mock.Mock(return_value=None)) if padded else None
    file.complete(act(batch, actions), time, durable_mark, pool=pool)
    if number:
        assert file.handle is not None
        file.disk.write_at(file.handle, *stamp(number))
    file.close()
    (path.parent / file.name).rename(path)
    (path.parent / "active").rmdir()
    return file.contents(0).header


def contents(owner: Owner, name: str) -> Any:
    """Return the header and the columns that a reader gets from a file, as dicts and lists. Votes have the number 0."""
    return _readable(contents_of(disk(owner), name))


def _readable(found: Any) -> Any:
    number = found.header.number if found.header.is_numbered else 0
    return _plain({**found.header._asdict(), "number": number, "tables": found.tables})


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        shown = [field.name for field in fields(value) if field.compare and field.name[0] != "_"]
        return {name: _plain(getattr(value, name)) for name in shown}
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return list(map(_plain, value)) if isinstance(value, list | tuple | array) else value


def note(owner: Owner, number: int) -> bytes | None:
    """Return the note of a commit in the feed."""
    return owner._store.shared.feed.read(number)


def contents_with(table: Any, entry: SectionEntry) -> Any:
    """Return what a reader gets from a file with one branch, one section, and this table."""
    branch = BranchEntry(Xid(FORMAT_LOCAL, b"branch", b""), bytes(BRANCH_ID_BYTES), 0, entry.messages)
    return FileContents(Header(0, 1.0, {}, branches=(branch,), sections=(entry,)), (table,))


def compacted_table(**columns: Any) -> Any:
    """Return the table of a section that a compaction writes."""
    return CompactedTable(**columns)


def noted(owner: Owner, number: int) -> list[Any] | None:
    """Return the contents of the files of a commit, as its note has them; None if the files must be read."""
    found = owner._store.shared.feed.commit(number)
    return found and [_readable(file.contents) for file in found.files]


def commit_branches(space: spool.Space, xids: Sequence[Xid]) -> None:
    """Commit prepared branches in one file, as threads do that decide at the same time."""
    requests = [adoption(counters(space), voted_contents(space._store, xid)) for xid in xids]
    with space._store.guard:
        space._core.leader._write([*requests])
    for request in requests:
        if request.error is not None:
            raise request.error
